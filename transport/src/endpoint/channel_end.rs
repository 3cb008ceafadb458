//! The part that both ends of a channel have in common: their name and state, and the wait for the
//! peer to open its end.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::sync::AtomicBool;

use ibex_base::fork;
use ibex_protocol::format::control::{ChannelSpec, Role};
use ibex_ring::parking::{self, AtSlot, Patience, Ticket, WaitSlot, Wakers};

use super::state::{EndReason, EndState};
use crate::{
    clock,
    node::{SessionShared, What},
    session::{
        ChannelError, ChannelFailure, Counts, EndCause, EndLabel, FailureReason, Suspension,
    },
};

/// The part of an end that does not depend on the direction.
pub struct ChannelEnd {
    // Identity.
    pub(crate) session: Arc<SessionShared>,
    pub(crate) id: u32,
    pub(crate) role: Role,
    pub(crate) name: Arc<str>,
    pub(crate) spec: Arc<ChannelSpec>,
    pub(crate) open_timeout: Duration,
    /// What the end is in errors.
    label: OnceLock<&'static EndLabel>,

    // State.
    /// The engine's account of this end.
    pub(crate) state: EndState,
    /// A call has waited for `open_timeout` and the peer did not open its end.
    has_waited_in_vain: AtomicBool,
    /// The watch over calls that wait for the peer's open and that `open_timeout` does not end.
    open_watch: OpenWatch,
    /// Threads and tasks that wait: for the peer's open, for messages, for room or changes.
    pub(crate) waiters: WaitSlot,
    /// Those that wait for nothing but the end of the channel, so that no other event wakes them.
    pub(crate) waiters_for_end: WaitSlot,
}

/// Shows a handle to users: its channel, and its peer.
impl fmt::Debug for ChannelEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.role {
            Role::Sender => "Sender",
            Role::Receiver => "Receiver",
        };
        f.debug_struct(name)
            .field("channel", &self.name)
            .field("peer", &self.session.peer().address)
            .finish_non_exhaustive()
    }
}

impl ChannelEnd {
    pub(crate) fn new(
        session: Arc<SessionShared>,
        id: u32,
        role: Role,
        name: Arc<str>,
        spec: Arc<ChannelSpec>,
        open_timeout: Duration,
    ) -> Self {
        Self {
            session,
            id,
            role,
            name,
            spec,
            open_timeout,
            label: OnceLock::new(),
            state: EndState::default(),
            has_waited_in_vain: AtomicBool::new(false),
            open_watch: OpenWatch::default(),
            waiters: WaitSlot::new(),
            waiters_for_end: WaitSlot::new(),
        }
    }

    /// Returns what the end is in errors; `None` for a channel of messages.
    pub(crate) fn label(&self) -> Option<&'static EndLabel> {
        self.label.get().copied()
    }

    /// Sets the label, once, before any other thread has the end.
    pub(crate) fn set_label(&self, label: Option<&'static EndLabel>) {
        if let Some(label) = label {
            let _ = self.label.set(label);
        }
    }

    /// Returns the fingerprint of the message type that both ends agreed on, once they have.
    pub(crate) fn settled(&self) -> Option<[u8; 16]> {
        self.state.agreed().map(|agreed| agreed.fingerprint)
    }

    /// Notes that the channel is over, and takes the wakers that wait here.
    pub(crate) fn end(&self, why: EndReason, wakers: &mut Wakers) {
        self.state.end(why);
        self.waiters.take(wakers);
        self.waiters_for_end.take(wakers);
    }

    /// Returns a failure of a call at this end.
    #[cold]
    pub(crate) fn failure(&self, counts: Counts, reason: FailureReason) -> Box<ChannelFailure> {
        Box::new(ChannelFailure {
            channel: self.name.clone(),
            peer: self.session.peer_name(),
            end: self.role,
            label: self.label(),
            counts,
            suspended: None,
            reason,
        })
    }

    /// Returns the failure of a call that waited in vain, with what cut it off.
    #[cold]
    pub(crate) fn waited(&self, counts: Counts, reason: FailureReason) -> Box<ChannelFailure> {
        let mut failure = self.failure(counts, reason);
        failure.suspended = self.cut_off();
        failure
    }

    /// Returns the error of a channel that is over. `counts` gives its progress.
    #[cold]
    pub(crate) fn over(&self, counts: Counts) -> ChannelError {
        let reason = match self.state.reason() {
            Some(EndReason::Closed) => return ChannelError::Ended,
            Some(EndReason::Mismatch(theirs)) => FailureReason::Mismatch {
                ours: ChannelSpec::clone(&self.spec),
                theirs: ChannelSpec::clone(&theirs),
            },
            Some(EndReason::Cause(cause)) if cause != EndCause::NodeClosed => {
                FailureReason::Broken(cause)
            }
            _ => FailureReason::Broken(match self.session.node.has_lost_driver() {
                true => EndCause::RuntimeEnded,
                false => EndCause::NodeClosed,
            }),
        };
        self.failure(counts, reason).into()
    }

    /// Returns the account of the session's suspension or of the peer's silence, if that is what
    /// this end's calls wait for.
    /// Every error and warning about a wait asks here.
    #[cold]
    pub(crate) fn cut_off(&self) -> Option<Arc<Suspension>> {
        match self.state.is_pending() {
            // The peer opens its end by a frame, over shared memory as well.
            true => self.session.no_answer(),
            false => self.session.cut_off(),
        }
    }

    /// Returns the error of calls in a fork of the process. The counters are not read: a thread that
    /// does not exist there may hold a lock of theirs.
    #[cold]
    pub(crate) fn used_after_fork(&self) -> ChannelError {
        let mut failure = self.failure(Counts::default(), FailureReason::UsedAfterFork);
        failure.peer = self.session.peer().address.to_string();
        failure.into()
    }

    /// Waits until the peer has opened its end, as long as `patience` allows and at most
    /// `open_timeout`.
    pub(crate) fn wait_open(
        &self,
        patience: Patience,
        counts: impl Fn() -> Counts,
    ) -> Result<(), ChannelError> {
        if fork::is_child() {
            return Err(self.used_after_fork());
        }
        let check = || self.check_open(&counts);
        if let Some(answer) = check() {
            return answer;
        }
        let Patience::Until(deadline) = patience else {
            if patience == Patience::None {
                self.session.requests.poll();
            }
            return check().unwrap_or(Err(ChannelError::NotOpenYet));
        };
        let now = clock::now();
        // A deadline that the clock cannot represent means waiting without a limit.
        let give_up = now.checked_add(self.open_timeout);
        let until = [deadline, give_up].into_iter().flatten().min();
        let mut held = None;
        let opened = AtSlot::new(&self.waiters, &mut held, check);
        self.session.wait_for(until, opened).unwrap_or_else(|_| {
            let waited = if until == give_up {
                self.has_waited_in_vain.store(true, Ordering::Relaxed);
                self.open_timeout
            } else {
                until.map_or(Duration::ZERO, |until| until - now)
            };
            Err(self.not_opened(waited).into())
        })
    }

    /// Waits until the peer has opened its end, for a task and without a time limit. While it is
    /// pending, `waker` is left under `held`.
    pub(crate) fn poll_open(
        &self,
        held: &mut Option<Ticket>,
        waker: &Waker,
        counts: impl Fn() -> Counts,
    ) -> Poll<Result<(), ChannelError>> {
        let turn = || self.session.requests.poll();
        let polled = self.poll_open_unwatched(held, waker, counts, turn);
        if polled.is_pending() {
            self.watch_open();
        }
        polled
    }

    /// Polls as [`poll_open`](Self::poll_open) does, but never reports a peer that does not open its
    /// end. `turn` runs a turn where callers turn the engine.
    pub(crate) fn poll_open_unwatched(
        &self,
        held: &mut Option<Ticket>,
        waker: &Waker,
        counts: impl Fn() -> Counts,
        turn: impl FnOnce(),
    ) -> Poll<Result<(), ChannelError>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.used_after_fork()));
        }
        let opened = AtSlot::new(&self.waiters, held, || self.check_open(&counts));
        parking::poll(opened, waker, turn)
    }

    /// Waits until the channel is over, for a task. While it is pending, `waker` is left under
    /// `held`. `turn` runs a turn where callers turn the engine.
    pub(crate) fn poll_over(
        &self,
        held: &mut Option<Ticket>,
        waker: &Waker,
        turn: impl FnOnce(),
    ) -> Poll<()> {
        if fork::is_child() {
            return Poll::Ready(());
        }
        let check = || self.state.is_over().then_some(());
        let over = AtSlot::new(&self.waiters_for_end, held, check);
        parking::poll(over, waker, turn)
    }

    /// Returns whether the peer has opened its end, once that is decided.
    fn check_open(&self, counts: impl Fn() -> Counts) -> Option<Result<(), ChannelError>> {
        if self.state.is_over() {
            return Some(Err(self.over(counts())));
        }
        (!self.state.is_pending()).then_some(Ok(()))
    }

    /// Returns the reason why the channel never opened, if it is certain that it did not: the
    /// channel ended before it was open, or a call has waited for all of `open_timeout`.
    pub(crate) fn open_failure(&self, counts: impl FnOnce() -> Counts) -> Option<ChannelError> {
        if self.state.agreed().is_some() {
            None
        } else if self.state.is_over() {
            Some(self.over(counts()))
        } else {
            let has_waited = self.has_waited_in_vain.load(Ordering::Relaxed);
            has_waited.then(|| self.not_opened(self.open_timeout).into())
        }
    }

    pub(crate) fn not_opened(&self, waited: Duration) -> Box<ChannelFailure> {
        self.not_opened_among(&self.session.requests.incoming(), waited)
    }

    /// Like [`not_opened`](Self::not_opened), for a caller that already has the list of ends that
    /// the peer opened and this node did not.
    fn not_opened_among(
        &self,
        incoming: &[(String, Role)],
        waited: Duration,
    ) -> Box<ChannelFailure> {
        let missing = self.role.opposite();
        let ours = (&*self.name, self.role);
        let others = incoming.iter().filter(|(_, role)| *role == missing);
        let other_names = others.map(|(name, _)| name.clone());
        let reason = FailureReason::NotOpened {
            is_same_there: incoming.iter().any(|(name, role)| (&**name, *role) == ours),
            other_names: other_names.take(MOST_NAMES).collect(),
            waited,
            open_timeout: self.open_timeout,
        };
        self.waited(Counts::default(), reason)
    }
}

/// Record of a wait for the peer's open that no time-out will end.
#[derive(Debug, Default)]
struct OpenWatch {
    /// Time at which the wait began.
    since: OnceLock<Instant>,
    is_notified: AtomicBool,
}

impl ChannelEnd {
    /// Notes a wait in a call that `open_timeout` does not end. The engine reports it once, when
    /// that time is over.
    pub(crate) fn watch_open(&self) {
        if self.state.is_pending()
            && self.open_watch.since.set(clock::now()).is_ok()
            && let Some(due) = self.open_notice_at()
        {
            self.session.requests.watch_opening(due);
        }
    }

    /// Returns the time at which the engine reports that the peer has not opened its end, if it has
    /// not.
    pub(crate) fn open_notice_at(&self) -> Option<Instant> {
        let OpenWatch { since, is_notified } = &self.open_watch;
        let is_silent = self.state.is_pending() && !is_notified.load(Ordering::Relaxed);
        // A time that the clock cannot represent never comes.
        let due = since.get()?.checked_add(self.open_timeout)?;
        is_silent.then_some(due)
    }

    /// Returns the notice that the peer has not opened its end. `incoming` lists the ends that the
    /// peer opened and this node did not.
    pub(crate) fn take_open_notice(&self, incoming: &[(String, Role)]) -> What {
        self.open_watch.is_notified.store(true, Ordering::Relaxed);
        What::NotOpened(self.not_opened_among(incoming, self.open_timeout))
    }
}

/// Most names of other ends that an error lists: a peer may have opened a thousand.
const MOST_NAMES: usize = 8;
