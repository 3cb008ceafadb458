//! The types that openraft is configured by.

use std::fmt;

use openraft::Raft;
use serde::{Deserialize, Serialize};

use crate::store::Machine;

openraft::declare_raft_types!(
    /// Writes are [`Put`]s, and their answers only say that they are done.
    pub Types: D = Put, R = ()
);

/// A node of this cluster's raft.
pub type Node = Raft<Types, Machine>;

/// A write: the key has this value from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Put {
    /// The key.
    pub key: String,
    /// The value of the key.
    pub value: String,
}

impl fmt::Display for Put {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.key, self.value)
    }
}

/// An error that ends a part of the program.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
