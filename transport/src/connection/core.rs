//! The core of a connection: the session, the ends of its channels and its life, apart from the
//! wire that carries its frames.

use std::{any::Any, net::SocketAddr, sync::Arc, time::Instant};

use ibex_protocol::{
    credit::{broker::CreditAction, session::CreditReport},
    session::Session,
    timer::TimerTable,
};
use ibex_ring::memory::LargeLease;

use super::{
    alarms::Alarms, context::Context, ends::Ends, grants::Grants, new_wire::NewWire,
    receivers::ReceiveLink, reconnect::Reconnect, retained::Retained, shared_memory::SharedMemory,
};
use crate::{
    node::SessionShared,
    session::{EndCause, PeerDescription},
};

/// The parts of a session that all its objects work with.
pub(crate) struct Common {
    /// The part that handles have.
    pub(super) shared: Arc<SessionShared>,
    /// The state of the protocol.
    pub(super) session: Session,
    pub(super) timers: TimerTable,
    pub(super) phase: Phase,
    /// Messages lie in memory that both processes map; the wire carries control alone.
    pub(super) shares_memory: bool,
    /// The address of its connection here.
    pub(super) address: Option<SocketAddr>,
}

/// A session but for its wire: its objects, and the work that needs several of them.
///
/// None of the objects knows the core. Each is handed [`Common`], and the others that a task
/// takes.
pub(crate) struct Core {
    pub(crate) common: Common,
    pub(crate) ends: Ends,
    /// The parts of a session through shared memory beside its wire.
    pub(crate) shared_memory: Option<SharedMemory>,
    /// Memory of ends that are gone, until no frame of theirs is on its way.
    pub(super) retained: Retained,
    /// Memory that the peer may be writing to.
    pub(crate) grants: Grants,
    /// The way to another wire, where both ends can go on over it.
    pub(crate) reconnect: Option<Box<Reconnect>>,
    pub(crate) alarms: Alarms,

    // The end of the session.
    /// The session did not end in order: messages that the peer did not take are lost.
    pub(super) is_lost: bool,
    /// The session does not go on over another wire: the peer broke the protocol, or has given the
    /// session up.
    pub(super) ends_with_wire: bool,
    /// The wire is of no more use: the session ends, or is suspended, when what had arrived
    /// is read.
    pub(super) broken: Option<EndCause>,
    /// The session's place in its node; given up when the session is over.
    pub(super) place: Option<Box<dyn Any + Send>>,
}

/// The phases of a session's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Up,
    /// We say goodbye, and wait for the peer's.
    Closing,
    /// The peer said goodbye; ours goes out.
    PeerClosed,
    /// Over: nothing is sent or read any more.
    Gone,
}

impl Core {
    /// Returns whether the session lives and is not about to end: then nothing but what its
    /// turns move brings it on.
    #[inline]
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.common.phase == Phase::Up && self.broken.is_none()
    }

    /// Takes back what the peer was granted: nothing of it comes any more.
    pub(super) fn withdraw_grants(&mut self, context: &mut Context<'_>) {
        let receivers = self.ends.receivers.ends.values_mut();
        let granted = receivers.flat_map(ReceiveLink::withdraw_large);
        let withdrawn = granted.map(LargeLease::withdraw);
        let withdrawn: Vec<_> = withdrawn.chain(self.grants.withdraw()).collect();
        if !withdrawn.is_empty() {
            context.leftovers.push(Box::new(withdrawn));
        }
    }

    /// Returns the wire that came before the old one was gone, which it is now.
    pub(crate) fn take_next_wire(&mut self) -> Option<NewWire> {
        self.reconnect.as_mut()?.next.take().map(|next| *next)
    }
}

impl Common {
    /// Returns whether handles have nothing more to hope for.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Gone | Phase::PeerClosed)
    }

    /// Returns whether the session may go on over another wire, as far as it is not over.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(self.phase, Phase::Up | Phase::Closing)
    }

    /// Returns the part of the session that its handles have.
    pub(crate) fn shared(&self) -> Arc<SessionShared> {
        self.shared.clone()
    }

    /// Returns who the peer is.
    pub(crate) fn peer(&self) -> &PeerDescription {
        self.shared.peer()
    }

    /// Returns when [`expire`](super::Connection::expire) has something to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    // ---- Credit ----------------------------------------------------------------------

    /// Returns the news that the broker has to hear of the session since the last time.
    pub(crate) fn take_credit_report(&mut self) -> CreditReport {
        self.session.take_credit_report()
    }

    /// Returns how much credit the peer has used in all.
    pub(crate) fn credit_used(&self) -> u64 {
        self.session.credit_used()
    }

    /// Does what the broker decided; [`settle`](super::Connection::settle) tells the peer.
    pub(crate) fn handle_credit(&mut self, action: CreditAction) {
        let session = &mut self.session;
        match action {
            CreditAction::Give { credit, term, .. } => session.give(credit, term),
            CreditAction::Recall { credit, .. } => session.recall(credit),
        }
    }
}
