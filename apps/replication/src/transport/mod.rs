//! The interface that replication needs of a transport, with two implementations: [`ibex`] and
//! [`sockets`].
//!
//! Batches of the log's bytes go one way, the offset up to which they are durable comes back, and a
//! joining replica says where its log ends. A batch is whole records as they lie in the log, and
//! the first record says whether they follow or replace the replica's. Everything else (the log, its
//! checksums, the content of batches, the number outstanding, catching up) is common code.

pub(crate) mod ibex;
mod security;
pub(crate) mod sockets;
mod wire;

use std::{net::SocketAddr, time::Duration};

use ibex_harness::Error;
use serde::{Deserialize, Serialize};

pub(crate) use self::wire::Join;
use crate::log::Log;

/// A primary's replicas together: each is sent the records that it lacks, and a record counts once
/// a majority has it. Over ibex this is a [`LogGroup`](::ibex::log::LogGroup), over sockets a
/// [`Quorum`](crate::quorum::Quorum).
///
/// A slow replica is sent less at a time and delays no other. A lost replica is left out until it
/// joins again. Both find the records that they lack in the log.
pub(crate) trait Replicas {
    /// Returns the address to which replicas connect.
    fn address(&self) -> SocketAddr;

    /// Describes the carrier of the bytes.
    fn carrier(&self) -> String;

    /// Admits a replica that has come, or leaves out a lost one, and returns that change, if there
    /// is one. Never waits.
    fn next_change(&mut self, log: &mut Log) -> Result<Option<Change>, Error>;

    /// Sends replicas the records that they lack, as far as each has room, and at most
    /// [`BATCHES_AT_ONCE`] each. Without that bound, a replica that catches up would take all the
    /// time while those that are abreast wait.
    fn send(&mut self, log: &mut Log) -> Result<(), Error>;

    /// Returns the offset up to which a majority has the log. The primary counts with `own`, up to
    /// which its own log is durable. A replica counts with its position at joining before it has
    /// acknowledged anything. One that had a record and is lost still has it, so the offset never
    /// falls.
    fn reached(&mut self, own: u64) -> u64;

    /// Waits until one more replica has the log up to `offset`, or for `limit`. May return early.
    /// Returns whether a replica may have come.
    fn wait(&mut self, offset: u64, limit: Duration) -> bool;

    /// Returns the number of joined replicas.
    fn present(&self) -> usize;

    /// Returns whether all replicas have joined and have the log up to `offset`.
    fn all_have(&self, offset: u64) -> bool;

    /// Tells all replicas that the log has ended.
    fn end(self);
}

/// A change among the replicas.
#[derive(Debug)]
pub(crate) enum Change {
    /// A replica joined, and has the log up to an offset.
    Joined {
        /// Index of the replica.
        replica: u32,
        /// The end of its part of the log.
        has: u64,
    },
    /// A replica is lost.
    Lost {
        /// Index of the replica.
        replica: u32,
        /// The reason.
        why: String,
    },
}

/// Returns the majority of the primary and `replicas` replicas.
pub(crate) fn majority(replicas: usize) -> usize {
    replicas.div_ceil(2) + 1
}

/// Batches that a replica is sent before another one's turn: as many as a log group sends.
pub(crate) const BATCHES_AT_ONCE: usize = 4;

/// A replica's link to its primary.
pub(crate) trait PrimaryLink {
    /// Waits up to `limit` for a batch and hands its records to `take`. Also hands over batches that
    /// arrived with it, if `together` is set or if the transport acknowledges several at once more
    /// cheaply.
    fn receive(
        &mut self,
        limit: Duration,
        together: bool,
        take: &mut dyn FnMut(&[u8]) -> Result<(), Error>,
    ) -> Result<Received, Error>;

    /// Acknowledges everything that [`receive`](Self::receive) handed out; it is durable, and the log
    /// ends at `end`.
    fn acknowledge(&mut self, end: u64) -> Result<(), Lost>;
}

/// The result of [`PrimaryLink::receive`].
#[derive(Debug)]
pub(crate) enum Received {
    /// Batches were handed out.
    Batches,
    /// No batch came in time.
    Nothing,
    /// The primary has ended the log.
    End,
    /// The primary is lost, perhaps only for a while.
    Lost(Lost),
}

/// The loss of the other process, with the reason. A primary continues without the replica.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) String);

impl Lost {
    fn because(why: impl ToString) -> Lost {
        Lost(why.to_string())
    }
}

/// The way in which both ends wait, over either transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Waiting {
    /// Sleep at once.
    Sleep,
    /// Poll for 20 µs, then sleep.
    Spin,
    /// Never sleep: poll, and yield the core between polls.
    Poll,
}

impl Waiting {
    /// Returns the time to poll before sleeping.
    fn spin(self) -> Duration {
        match self {
            Waiting::Sleep => Duration::ZERO,
            Waiting::Spin => Duration::from_micros(20),
            Waiting::Poll => Duration::MAX,
        }
    }
}
