//! What goes wrong in a run, counted by kind: a fault that never happens shows nothing.
#![forbid(unsafe_code)]

use std::{fmt, ops::AddAssign};

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Bytes arrive steps after they were written.
    Delay,
    /// A wire takes a part of what is written.
    Cut,
    /// A wire is full and takes nothing.
    Full,
    /// A wire stands still.
    Stall,
    /// A side dies without a word.
    Crash,
    /// What it wrote last is lost with it.
    Loss,
    /// A session says goodbye in the middle of everything.
    Goodbye,
    /// An engine recalls credit.
    Recall,
}

/// How often each kind of fault happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults([u64; Fault::ALL.len()]);

impl Fault {
    const ALL: [Self; 8] = [
        Self::Delay,
        Self::Cut,
        Self::Full,
        Self::Stall,
        Self::Crash,
        Self::Loss,
        Self::Goodbye,
        Self::Recall,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delay => "delays",
            Self::Cut => "short writes",
            Self::Full => "full wires",
            Self::Stall => "stalls",
            Self::Crash => "crashes",
            Self::Loss => "losses",
            Self::Goodbye => "hasty goodbyes",
            Self::Recall => "recalls of credit",
        })
    }
}

impl Faults {
    /// Counts a fault if it has happened.
    pub(super) fn count(&mut self, fault: Fault, has_happened: bool) {
        self.0[fault as usize] += u64::from(has_happened);
    }

    /// Every kind, with how often it happened.
    pub fn by_kind(&self) -> impl Iterator<Item = (Fault, u64)> {
        Fault::ALL.into_iter().zip(self.0)
    }
}

impl AddAssign for Faults {
    fn add_assign(&mut self, other: Self) {
        for (sum, more) in self.0.iter_mut().zip(other.0) {
            *sum += more;
        }
    }
}
