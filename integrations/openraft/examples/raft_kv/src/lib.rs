//! A replicated store of keys and values: openraft over ibex, and redb on disk.
//!
//! A process of the cluster is a [`node`], which clients talk to by [`lines`]. The [`harness`] starts
//! clusters of such processes, and harms ([`chaos`]) and measures ([`compare`]) them.

pub mod chaos;
pub mod compare;
pub mod harness;
pub mod history;
pub mod lines;
pub mod network;
pub mod node;
pub mod store;
pub mod types;
