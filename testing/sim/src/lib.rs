//! The simulation: sessions of two nodes or more, a clock and a seed.
//!
//! A [`Simulation`] has two nodes meet by the handshakes of the bootstrap, joins their pure
//! engine state by wires that delay, cut and stall what passes, and lets an application on each
//! side open, publish, hold, acknowledge and close as the seed has it. Rules:
//!
//! 1. Everything is drawn from one seed: the [options](SimOptions), the faults and what the
//!    applications do. The same seed makes the same run, frame by frame, and
//!    [`Summary::trace`] says so.
//! 2. The simulation knows what both sides did, so after each step it checks what neither
//!    side could: that what was told is true, and that nothing grows beyond its bound.
//! 3. Once the faults stop, progress is demanded: everything published is delivered, who
//!    waits is answered, both sides forget what is over and say goodbye.
//!
//! A broken rule is a [`Violation`], which names the seed that shows it again.
#![forbid(unsafe_code)]

mod application;
mod campaign;
mod connection;
mod coverage;
mod fault;
mod hub;
mod ledger;
mod lender;
mod lines;
mod machine;
mod meeting;
mod memory;
mod node;
mod options;
mod pair;
mod party;
mod random;
mod receiver;
mod security;
mod sender;
mod simulation;
mod terms;
mod wire;

#[cfg(test)]
mod crowd;
#[cfg(test)]
mod secured_tests;
#[cfg(test)]
mod tests;

pub use campaign::{Campaign, Totals, Until};
pub use coverage::Coverage;
pub use fault::{Fault, Faults};
pub use options::{Crash, MeetingCut, SimOptions};
pub use simulation::{Simulation, Summary, Violation};

/// One of the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first one.
    Left,
    /// The second one.
    Right,
}

impl Side {
    /// The node at the other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// A rule that was broken, in words; the simulation adds seed, step and side.
type Checked<T = ()> = Result<T, String>;

/// Ends the function with the broken rule unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
use ensure;
