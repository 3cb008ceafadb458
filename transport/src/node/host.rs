//! The seam between a session's ends and the runtime that turns their engine.

use std::{any::Any, os::fd::OwnedFd, sync::Arc, time::Instant};

use ibex_protocol::format::{
    control::{Ask, CloseReason, Role},
    record::Layout,
};
use ibex_ring::{
    Released,
    memory::RingLease,
    parking::{Condition, TimedOut, WaitSlot},
};

use super::What;

/// The runtime, as the ends of channels know it: they ask it for what the engine of their session
/// has to do, and wait in it.
///
/// Each call names a session; nothing happens for one that is over. The calls are made now and
/// then, never for each message.
pub(crate) trait Host: Send + Sync {
    /// Leaves word for the session's engine, and wakes it unless it may wait for another reason.
    fn mark(&self, mark: Mark, quiet: bool);

    /// Runs a turn, for a call that does not wait, where callers turn the engine.
    fn turn(&self, session: u64);

    /// Waits until `condition` holds, spinning first as the node is configured.
    ///
    /// # Errors
    /// The `deadline` came before.
    fn wait(
        &self,
        session: u64,
        slot: &WaitSlot,
        deadline: Option<Instant>,
        looks: Looks,
        condition: &mut dyn Condition<Output = ()>,
    ) -> Result<(), TimedOut>;

    /// Hands the ring of a sending end over; messages `before` were sent and are released.
    fn attach_ring(
        &self,
        session: u64,
        end: u32,
        ring: Arc<RingLease>,
        layout: Layout,
        before: Released,
    );

    /// Passes the ring of a sending end to the peer (shm).
    fn pass_ring(&self, session: u64, end: u32, capacity: usize, fd: OwnedFd);

    /// Asks the peer for an end's counts.
    fn ask(&self, session: u64, end: u32, ask: Ask);

    /// Asks for an acknowledgement that was perhaps asked for before.
    fn ask_once(&self, session: u64, end: u32, sequence: u64);

    /// Closes a sending end behind message `last`.
    fn close_sender(&self, session: u64, end: u32, last: u64, reason: CloseReason);

    /// Returns the names of channels that the peer opened and this node did not.
    fn incoming(&self, session: u64) -> Vec<(String, Role)>;

    /// Has the engine look at `due` whether an end that somebody waits for is open.
    fn watch_opening(&self, session: u64, due: Instant);

    /// Tells the program of something that a handle has noticed.
    fn tell(&self, session: u64, what: What);

    /// Returns itself, for the floors that know which type it is.
    fn as_any(&self) -> &dyn Any;
}

/// The thing that a call that waits looks at, and so the price of a look; of several the one that
/// is asked more often counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Looks {
    /// A word that the peer writes.
    Memory,
    /// News of a turn of the engine, which looks at a device's completion queue.
    Queue,
    /// News of a turn of the engine, which asks a socket.
    Socket,
}

/// Word that handles leave for an engine without its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mark {
    /// A cold ring has records.
    Ready {
        /// The session.
        session: u64,
        /// The sending end.
        end: u32,
    },
    /// A receiving end's prefix moved.
    Released {
        /// The session.
        session: u64,
        /// The receiving end.
        end: u32,
    },
}
