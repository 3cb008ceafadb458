//! The core of a connection: the session, the ends of its channels and its life cycle, apart from
//! the wire that carries its frames.

use std::{sync::Arc, time::Instant};

use ibex_base::Address;
use ibex_protocol::{
    credit::{broker::CreditAction, session::CreditReport},
    session::Session,
    timer::TimerTable,
};
use ibex_ring::memory::LargeLease;

use super::{
    alarms::Alarms, context::Context, ends::Ends, grants::Grants, new_wire::NewWire,
    receivers::ReceiverState, reconnect::Reconnect, retained::Retained,
    shared_memory::SharedMemory,
};
use crate::{
    node::{SessionShared, Undelivered, Unopened},
    session::{EndCause, HeldPlace, PeerDescription},
};

/// The parts of a session that all of its objects use.
pub(crate) struct Common {
    /// The part that handles share.
    pub(super) shared: Arc<SessionShared>,
    /// The state of the protocol.
    pub(super) session: Session,
    pub(super) timers: TimerTable,
    pub(super) phase: Phase,
    /// The local address of the session's connection, if that is one of TCP.
    pub(super) address: Option<Address>,
}

/// A session without its wire: its objects, and the work that needs several of them.
///
/// The objects do not know the core. Their methods take [`Common`] and the other objects that they
/// need.
pub(crate) struct Core {
    pub(crate) common: Common,
    pub(crate) ends: Ends,
    /// The parts of a shared memory session beside its wire.
    pub(crate) shared_memory: Option<SharedMemory>,
    /// Memory of ends that are gone, kept until no frame of theirs is in flight.
    pub(super) retained: Retained,
    /// Memory that the peer may be writing to.
    pub(crate) grants: Grants,
    /// The state of reconnecting, if both ends can continue over another wire.
    pub(crate) reconnect: Option<Box<Reconnect>>,
    pub(crate) alarms: Alarms,
    /// Memory of ends that the peer has opened and this node has not.
    pub(super) unopened: Unopened,

    // The end of the session.
    /// The cause of an end in order, once either end has sent its goodbye. The first one counts.
    pub(super) parting: Option<EndCause>,
    /// This program ended the session, and no time was left to send everything.
    pub(super) is_cut_short: bool,
    /// The session did not end in order, so messages that the peer did not take are lost.
    pub(super) is_lost: bool,
    /// The session does not continue over another wire, because the peer broke the protocol or has
    /// given the session up.
    pub(super) ends_with_wire: bool,
    /// Set once the wire is unusable: the session ends, or is suspended, when all data that had
    /// arrived is read.
    pub(super) broken: Option<EndCause>,
    /// The session's place in its node, dropped when the session is over.
    pub(super) place: Option<Box<dyn HeldPlace>>,
}

/// The phases of a session's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Up,
    /// The session closes: this end sends goodbye, and waits for the peer's goodbye.
    Closing,
    /// The peer sent its goodbye; this end's goodbye is being sent.
    PeerClosed,
    /// The session is over: nothing is sent or read any more.
    Gone,
}

impl Core {
    /// Returns whether the session lives and is not about to end. Then only the data that its turns
    /// move advances it.
    #[inline]
    pub(crate) fn is_undisturbed(&self) -> bool {
        self.common.phase == Phase::Up && self.broken.is_none()
    }

    /// Withdraws the memory that the peer was granted, because no more data of the peer can arrive.
    /// Regions stay with their messages, which may arrive there again.
    pub(super) fn withdraw_grants(&mut self, context: &mut Context<'_>) {
        let receivers = self.ends.receivers.ends.values_mut();
        let granted = receivers.flat_map(ReceiverState::withdraw_large);
        let granted = granted.map(LargeLease::withdraw);
        let withdrawn: Vec<_> = granted.chain(self.grants.withdraw(context)).collect();
        if !withdrawn.is_empty() {
            context.leave(withdrawn);
        }
    }

    /// Leaves the slices of the program that the peer reads to be dropped behind the turn, because the
    /// session is over.
    pub(crate) fn leave_passed(&mut self, context: &mut Context<'_>) {
        let senders = self.ends.senders.ends.values_mut();
        senders.for_each(|sender| sender.leave_passed(context));
    }

    /// Returns the new wire that came while the old one still existed. The old one is gone now.
    pub(crate) fn take_next_wire(&mut self) -> Option<NewWire> {
        self.reconnect.as_mut()?.next.take().map(|next| *next)
    }
}

impl Common {
    /// Returns whether the session is over for its handles.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Gone | Phase::PeerClosed)
    }

    /// Returns whether the session may continue over another wire, unless it is over.
    pub(super) fn may_go_on(&self) -> bool {
        matches!(self.phase, Phase::Up | Phase::Closing)
    }

    /// Returns the part of the session that its handles share.
    pub(crate) fn shared(&self) -> Arc<SessionShared> {
        self.shared.clone()
    }

    /// Returns the channels with messages that were not delivered by the end of the session.
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let report = self.shared.ending.close_report();
        report.map_or_else(Vec::new, |report| report.undelivered)
    }

    /// Returns the description of the peer.
    pub(crate) fn peer(&self) -> &PeerDescription {
        self.shared.peer()
    }

    /// Returns the time at which [`expire`](super::Connection::expire) next has work to do.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.timers.next()
    }

    // ---- Credit ----------------------------------------------------------------------

    /// Returns the session's changes for the broker since the last call.
    pub(crate) fn take_credit_report(&mut self) -> CreditReport {
        self.session.credit.take_report()
    }

    /// Returns how much credit the peer has used in all.
    pub(crate) fn credit_used(&self) -> u64 {
        self.session.credit.used()
    }

    /// Applies the broker's decision; [`settle`](super::Connection::settle) tells the peer.
    pub(crate) fn handle_credit(&mut self, action: CreditAction) {
        let session = &mut self.session;
        match action {
            CreditAction::Give { credit, term, .. } => session.give(credit, term),
            CreditAction::Recall { credit, .. } => session.recall(credit),
        }
    }
}
