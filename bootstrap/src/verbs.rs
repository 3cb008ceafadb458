//! A handshake's needs of RDMA: a device to offer, a queue pair to connect.
//!
//! Rules:
//!
//! - This crate knows no verbs. A crate that does implements these two traits.
//! - Every call may take milliseconds, because it opens a device or registers memory. So none is
//!   made on a thread that others wait for: an [`Acceptor`](crate::Acceptor) has a thread for them,
//!   and the thread of [`dial`](crate::dial) waits anyhow.
//! - An error is a text for people, which becomes part of the session's reason for another fabric.
#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt::Debug;
use std::net::IpAddr;

use crate::fabric::VerbsDevice;
use crate::message::VerbsEndpoint;
use crate::negotiate::End;

/// A node's RDMA devices, as handshakes see them.
pub trait VerbsSite: Debug + Send + Sync {
    /// Returns the device for a session whose connection has this address at this end.
    ///
    /// # Errors
    /// Why there is none.
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String>;

    /// Makes a queue pair on that device, for a session with a peer at `peer` in which this node is
    /// that end. It is ready to receive as soon as it is connected.
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

    /// Returns the pair as its own type, for the crate that made it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
