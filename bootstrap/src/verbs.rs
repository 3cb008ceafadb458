//! A handshake's needs of RDMA: a device to offer, a queue pair to connect.
//!
//! Rules:
//!
//! - This crate knows no verbs. A crate that does implements these two traits.
//! - Every call may take milliseconds, because it opens a device or registers memory. So none is
//!   made on a thread that others wait for: a node has a thread for them.
//! - An error is a text for people, which becomes part of the session's reason for another fabric.
#![forbid(unsafe_code)]

use std::any::Any;
use std::fmt::Debug;
use std::net::{IpAddr, SocketAddr};

use crate::fabric::VerbsDevice;
use crate::identity::{Incarnation, NodeIdentity};
use crate::message::VerbsEndpoint;
use crate::party::Party;

/// A node's RDMA devices, as handshakes see them.
pub trait VerbsDevices: Debug + Send + Sync {
    /// Returns the device for a session whose connection has this address at this end.
    ///
    /// # Errors
    /// Why there is none.
    fn device(&self, local: IpAddr) -> Result<VerbsDevice, String>;

    /// Makes a queue pair on that device. It is ready to receive as soon as it is connected.
    ///
    /// # Errors
    /// Why there can be none.
    fn prepare(&self, wanted: &PairRequest) -> Result<Box<dyn VerbsPair>, String>;
}

/// The session that a queue pair is wanted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PairRequest {
    /// The address of this end of its connection.
    pub local: IpAddr,
    /// The address of the peer.
    pub peer: SocketAddr,
    /// The identity that a peer which dialed has offered, and its run; none at the end that dialed,
    /// and for a resumed session.
    pub offered: Option<(NodeIdentity, Incarnation)>,
    /// The end of the session that this node is.
    pub end: Party,
    /// The session to resume; none for a new one.
    pub resumes: Option<[u8; 16]>,
}

/// A queue pair that waits for its peer. Dropping it destroys it.
pub trait VerbsPair: Debug + Send {
    /// Returns the description of the queue pair that the peer needs.
    fn endpoint(&self) -> VerbsEndpoint;

    /// Connects the queue pair, until it can send. Nothing may be sent before the peer is known to
    /// have done the same: its *Ready* says so.
    ///
    /// # Errors
    /// Why the queue pair cannot be connected. It is of no further use then.
    fn connect(&mut self, theirs: &VerbsEndpoint) -> Result<(), String>;

    /// Returns the pair as its own type, for the crate that made it.
    fn into_any(self: Box<Self>) -> Box<dyn Any + Send>;
}
