//! The two ends of a handshake.
#![forbid(unsafe_code)]

use std::fmt;

/// A party to a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Party {
    /// The end that connected.
    Dialer,
    /// The end that listened.
    Acceptor,
}

impl Party {
    /// Returns the party at the other end.
    pub(crate) fn other(self) -> Party {
        match self {
            Party::Dialer => Party::Acceptor,
            Party::Acceptor => Party::Dialer,
        }
    }

    /// Returns the words for a queue pair that this end cannot make.
    pub(crate) fn cannot_prepare(self, why: &str) -> String {
        format!("the {self} cannot make a queue pair: {why}")
    }

    /// Returns the words for a queue pair that this end cannot connect to the other's.
    pub(crate) fn cannot_connect(self, why: &str) -> String {
        format!("the {self} cannot connect: {why}")
    }
}

impl fmt::Display for Party {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Party::Dialer => "connecting node",
            Party::Acceptor => "listening node",
        })
    }
}
