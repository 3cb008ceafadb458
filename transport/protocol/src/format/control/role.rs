//! The two ends of a channel.
#![forbid(unsafe_code)]

use std::fmt;

/// An end of a channel: the sending or the receiving one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Role {
    /// The end that sends.
    Sender,
    /// The end that receives.
    Receiver,
}

ibex_base::wire_numbers! { Role { Sender = 0, Receiver = 1 } }

impl Role {
    /// The role at the other end.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Role::Sender => Role::Receiver,
            Role::Receiver => Role::Sender,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Sender => "sender",
            Role::Receiver => "receiver",
        })
    }
}
