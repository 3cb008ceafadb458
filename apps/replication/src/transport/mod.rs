//! What replication asks of a transport, with two answers: [`ibex`] and [`sockets`].
//!
//! Batches of the log's bytes go one way, how far they are durable comes back, and whoever
//! joins says where its log ends. All else (the log, its framing and checksums, what goes
//! into a batch, how much may be outstanding, catching up, the quorum) is the same code for
//! both.

pub(crate) mod ibex;
mod security;
pub(crate) mod sockets;
mod wire;

use std::{net::SocketAddr, time::Duration};

use ibex_harness::Error;
use serde::{Deserialize, Serialize};

pub(crate) use self::wire::{Batch, Join};
use crate::log::Log;

/// Where a primary takes replicas in.
pub(crate) trait Endpoint: Sized {
    /// A replica, as its primary sees it.
    type Link: ReplicaLink;

    /// Where replicas connect to.
    fn address(&self) -> SocketAddr;

    /// What carries the bytes, in words.
    fn carrier(&self) -> String;

    /// A replica that has come since the last call, if one has, and the position up to which it
    /// has `log`. Never waits.
    fn poll_join(&mut self, log: &mut Log) -> Result<Option<Joined<Self::Link>>, Error>;

    /// Waits until one of `links` has acknowledged the log up to `offset`, for up to `limit`. May
    /// return early.
    fn wait<'a>(
        &mut self,
        links: impl Iterator<Item = &'a mut Self::Link>,
        offset: u64,
        limit: Duration,
    ) where
        Self::Link: 'a;
}

/// A replica that has come.
pub(crate) struct Joined<L> {
    /// Which one.
    pub(crate) replica: u32,
    /// Where its part of the log ends.
    pub(crate) has: u64,
    /// The way to it.
    pub(crate) link: L,
}

/// A replica, as its primary sees it.
pub(crate) trait ReplicaLink {
    /// Sends the next batch of `log` that the replica lacks; false if there is none, or no room.
    fn try_send(&mut self, log: &mut Log) -> Result<bool, Lost>;

    /// Up to which offset the replica has acknowledged what was sent, as far as is known here;
    /// 0 before the first acknowledgement.
    fn acknowledged(&mut self) -> Result<u64, Lost>;

    /// Says that there will be nothing more, behind everything that was sent.
    fn end(self);
}

/// The primary, as a replica sees it.
pub(crate) trait PrimaryLink {
    /// Hands a batch that has arrived to `take`, and what came with it as far as it is cheaper
    /// to acknowledge that together, or where it is made durable `together`; waits for the first
    /// for up to `limit`.
    fn receive(
        &mut self,
        limit: Duration,
        together: bool,
        take: &mut dyn FnMut(Batch<'_>) -> Result<(), Error>,
    ) -> Result<Received, Error>;

    /// Everything that [`receive`](Self::receive) handed out is durable.
    fn acknowledge(&mut self) -> Result<(), Lost>;
}

/// What [`PrimaryLink::receive`] found.
#[derive(Debug)]
pub(crate) enum Received {
    /// Batches, which were handed out.
    Batches,
    /// Nothing, in all the time.
    Nothing,
    /// The primary has said that there will be nothing more.
    End,
    /// It is gone, and perhaps not for ever.
    Lost(Lost),
}

/// The other one is gone, and why. A primary goes on without.
#[derive(Debug)]
pub(crate) struct Lost(pub(crate) String);

impl Lost {
    fn because(why: impl ToString) -> Lost {
        Lost(why.to_string())
    }
}

/// How both ends wait, over either transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Waiting {
    /// Sleep at once.
    Sleep,
    /// Look for 20 µs, then sleep.
    Spin,
    /// Never sleep: look again and again, and let others have the core in between.
    Poll,
}

impl Waiting {
    /// How long to look before sleeping.
    fn spin(self) -> Duration {
        match self {
            Waiting::Sleep => Duration::ZERO,
            Waiting::Spin => Duration::from_micros(20),
            Waiting::Poll => Duration::MAX,
        }
    }
}
