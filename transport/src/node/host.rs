//! The seam between a session's ends and the runtime that turns their engine.

use std::{any::Any, os::fd::OwnedFd, sync::Arc, time::Instant};

use ibex_protocol::format::{
    control::{Ask, CloseReason, Role},
    record::Layout,
};
use ibex_ring::{
    Released,
    memory::RingLease,
    parking::{Condition, TimedOut},
};

use super::What;

/// The runtime, as an interface for the ends of channels. Ends use it for requests to the engine of
/// their session, and for waiting.
///
/// Each call names a session, and does nothing if that session is over. The calls are made now and
/// then, never for each message.
pub(crate) trait Host: Send + Sync {
    /// Leaves a mark for the session's engine. Wakes the engine's sleeper, unless `quiet`: then the
    /// mark may wait for the next turn.
    fn mark(&self, mark: Mark, quiet: bool);

    /// Runs a turn where callers turn the engine, for a call that does not wait.
    fn turn(&self, session: u64);

    /// Waits until `condition` holds, spinning first as the node is configured.
    ///
    /// # Errors
    /// The `deadline` came first.
    fn wait(
        &self,
        session: u64,
        deadline: Option<Instant>,
        looks: Looks,
        condition: &mut dyn Condition<Output = ()>,
    ) -> Result<(), TimedOut>;

    /// Hands the ring of a sending end over to the engine. Messages up to `before` were sent and
    /// released.
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

    /// Asks for an acknowledgement, which may have been asked for before.
    fn ask_once(&self, session: u64, end: u32, sequence: u64);

    /// Closes a sending end after message `last`.
    fn close_sender(&self, session: u64, end: u32, last: u64, reason: CloseReason);

    /// Returns the names of channels that the peer opened and this node did not.
    fn incoming(&self, session: u64) -> Vec<(String, Role)>;

    /// Updates the session's account of a peer whose host is silent, unless the engine is busy.
    fn note_answers(&self, session: u64);

    /// Has the engine check at `due` whether an end that is waited for is open.
    fn watch_opening(&self, session: u64, due: Instant);

    /// Reports to the program something that a handle has noticed.
    fn tell(&self, session: u64, what: What);

    /// Returns the host itself, for modules that know its type.
    fn as_any(&self) -> &dyn Any;
}

/// The source that a waiting call looks at, which decides the cost of a look. If a call waits for
/// several, the greatest counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Looks {
    /// A word that the peer writes.
    Memory,
    /// The results of a turn of the engine, which looks at a device's completion queue.
    Queue,
    /// The results of a turn of the engine, which asks a socket.
    Socket,
}

/// News that handles leave for an engine without its lock.
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
