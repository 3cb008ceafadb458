//! The interface that replication needs of a transport, with two implementations: [`ibex`] and
//! [`sockets`].
//!
//! Batches of the log's bytes go one way, the offset up to which they are durable comes back, and a
//! joining replica says where its log ends. A batch is whole records as they lie in the log, and
//! the first record says whether they follow or replace the replica's. Everything else (the log, its
//! checksums, the content of batches, the number outstanding, catching up, the quorum) is common code.

pub(crate) mod ibex;
mod security;
pub(crate) mod sockets;
mod wire;

use std::{net::SocketAddr, time::Duration};

use ibex_harness::Error;
use serde::{Deserialize, Serialize};

pub(crate) use self::wire::Join;
use crate::log::Log;

/// The primary's end, which replicas join.
pub(crate) trait Endpoint: Sized {
    /// A replica, as its primary sees it.
    type Link: ReplicaLink;

    /// Returns the address to which replicas connect.
    fn address(&self) -> SocketAddr;

    /// Describes the carrier of the bytes.
    fn carrier(&self) -> String;

    /// Returns a replica that has joined since the last call, if there is one, with the position up
    /// to which it has `log`. Never waits.
    fn poll_join(&mut self, log: &mut Log) -> Result<Option<Joined<Self::Link>>, Error>;

    /// Waits until one of `links` has acknowledged the log up to `offset`, or for `limit`. May
    /// return early.
    fn wait<'a>(
        &mut self,
        links: impl Iterator<Item = &'a mut Self::Link>,
        offset: u64,
        limit: Duration,
    ) where
        Self::Link: 'a;
}

/// A replica that has joined.
pub(crate) struct Joined<L> {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// The end of its part of the log.
    pub(crate) has: u64,
    /// The link to it.
    pub(crate) link: L,
}

/// The primary's link to a replica.
pub(crate) trait ReplicaLink {
    /// Sends the next batch of `log` that the replica lacks. Returns false if there is none, or no
    /// room for it.
    fn try_send(&mut self, log: &mut Log) -> Result<bool, Lost>;

    /// Returns the highest offset known to be acknowledged by the replica; 0 before the first
    /// acknowledgement.
    fn acknowledged(&mut self) -> Result<u64, Lost>;

    /// Tells the replica that the log ends behind the batches sent.
    fn end(self);
}

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
