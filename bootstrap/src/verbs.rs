//! A handshake's needs of RDMA: a device to offer, a queue pair to connect.
//!
//! Rules: this crate knows no verbs, whoever has them implements these two traits; every
//! call may take milliseconds (a device is opened, memory registered), so none is made
//! where others wait: an [`Acceptor`](crate::Acceptor) has a thread for them, and
//! [`dial`](crate::dial) is one that waits; an error is a text for people, which ends in
//! the session's reason for another fabric.
#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;

use crate::fabric::VerbsDevice;
use crate::message::VerbsEndpoint;
use crate::negotiate::End;

/// A node's RDMA devices, as handshakes see them.
pub trait VerbsSite: Debug + Send + Sync {
    /// The device for a session whose connection has this address at this end.
    ///
    /// # Errors
    /// Why there is none.
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String>;

    /// A queue pair on that device, ready to receive as soon as it is connected, for a
    /// session with a peer at `peer` in which this node is that end.
    ///
    /// # Errors
    /// Why there can be none.
    fn prepare(&self, local: IpAddr, peer: IpAddr, end: End) -> Result<Box<dyn VerbsPair>, String>;
}

/// A queue pair that waits for its peer. Dropping it destroys it.
pub trait VerbsPair: Debug + Send {
    /// Returns the description of the queue pair that the peer needs.
    fn endpoint(&self) -> VerbsEndpoint;

    /// Connects it, until it can send. Nothing may be sent before the peer is known to
    /// have done the same: its *Ready* says so.
    ///
    /// # Errors
    /// Why it cannot be connected; it is of no further use then.
    fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String>;

    /// For whoever made it, to have it back as what it is.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
