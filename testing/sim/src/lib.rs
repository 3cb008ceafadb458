//! The simulation: sessions between two or more nodes, a clock and a seed.
//!
//! In a [`Simulation`], two nodes meet by the handshakes of the bootstrap. Wires that delay, cut
//! and stall bytes join their pure engine state, and an application on each side opens, publishes,
//! holds, acknowledges and closes as drawn from the seed. Rules:
//!
//! 1. Everything follows from one seed: the [options](SimOptions), the faults and the actions of
//!    the applications. The same seed makes the same run, frame by frame; [`Summary::trace`] proves
//!    it.
//! 2. The simulation knows both sides. After each step it therefore checks what neither side could:
//!    that everything reported is true, and that nothing grows beyond its bound.
//! 3. Once the faults stop, the simulation demands progress: every published message is delivered,
//!    every wait is answered, and both sides forget finished channels and send goodbye.
//!
//! A broken rule is a [`Violation`], which names the seed that reproduces it.
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
mod meeting;
mod memory;
mod met;
mod node;
mod options;
mod pair;
mod party;
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

/// A node of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first one.
    Left,
    /// The second one.
    Right,
}

impl Side {
    /// Returns the node at the other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Side::Left => Side::Right,
            Side::Right => Side::Left,
        }
    }
}

/// Result of a check, whose error describes a broken rule. The simulation adds seed, step and side.
type Checked<T = ()> = Result<T, String>;

/// Returns from the function with the broken rule unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($words:tt)+) => {
        if !$holds {
            return Err(format!($($words)+));
        }
    };
}
use ensure;
