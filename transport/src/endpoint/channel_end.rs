//! The part that both ends of a channel have in common: their name and state, and the wait for the
//! peer to open its end.

use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::Ordering},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_base::sync::AtomicBool;

use ibex_base::fork::{self, UsedAfterFork};
use ibex_protocol::format::control::{ChannelSpec, Role};
use ibex_ring::parking::{self, AtSlot, Patience, Ticket, WaitSlot, Wakers};

use super::{
    error::{NotOpened, RecvError, RecvFailure, SchemaMismatch, SendError, SendFailure},
    state::{End, EndState},
};
use crate::{
    clock,
    node::{SessionShared, What},
    session::{Counts, Disconnected, EndCause, Interface, Suspension},
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
    /// The kind of handle that the program uses, unless the channel carries messages.
    interface: OnceLock<Interface>,

    // State.
    /// The engine's account of this end.
    pub(crate) state: EndState,
    /// A call has waited for `open_timeout` and the peer did not open its end.
    has_waited_in_vain: AtomicBool,
    /// The watch over calls that wait for the peer's open and that `open_timeout` does not end.
    open_watch: OpenWatch,
    /// Threads and tasks that wait: for the peer's open, for messages, for room or news.
    pub(crate) waiters: WaitSlot,
}

/// The reason why an end cannot be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    NotOpened(Box<NotOpened>),
    Mismatch(Box<SchemaMismatch>),
    Disconnected(Box<Disconnected>),
    Forked(UsedAfterFork),
}

/// The outcome of a wait for the peer's open that ended without it.
#[derive(Debug)]
pub(crate) enum Unopened {
    /// The caller did not ask to wait.
    NotYet,
    /// The caller's deadline passed before `open_timeout` did.
    TimedOut(Box<NotOpened>),
    /// The channel will not open.
    Failed(Unusable),
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
        let waiters = WaitSlot::of(session.own_asymmetry());
        Self {
            session,
            id,
            role,
            name,
            spec,
            open_timeout,
            interface: OnceLock::new(),
            state: EndState::default(),
            has_waited_in_vain: AtomicBool::new(false),
            open_watch: OpenWatch::default(),
            waiters,
        }
    }

    /// Returns the interface whose terms the errors of this end use.
    pub(crate) fn interface(&self) -> Interface {
        self.interface.get().copied().unwrap_or_default()
    }

    /// Sets the interface, once, before any other thread has the end.
    pub(crate) fn set_interface(&self, interface: Interface) {
        let _ = self.interface.set(interface);
    }

    /// Returns the fingerprint of the message type that both ends agreed on, once they have.
    pub(crate) fn settled(&self) -> Option<[u8; 16]> {
        self.state.agreed().map(|agreed| agreed.fingerprint)
    }

    /// Notes that the channel is over, and takes the wakers that wait here.
    pub(crate) fn end(&self, why: End, wakers: &mut Wakers) {
        self.state.end(why);
        self.waiters.take(wakers);
    }

    /// Returns the reason why the channel is over. `counts` gives its progress.
    pub(crate) fn unusable(&self, counts: impl FnOnce() -> Counts) -> Unusable {
        let (channel, peer) = (self.name.to_string(), self.session.peer_name());
        let cause = match self.state.reason() {
            Some(End::Mismatch(theirs)) => {
                return Unusable::Mismatch(Box::new(SchemaMismatch {
                    channel,
                    peer,
                    ours: ChannelSpec::clone(&self.spec),
                    theirs: ChannelSpec::clone(&theirs),
                    counts: counts(),
                    interface: self.interface(),
                }));
            }
            Some(End::Cause(cause)) => cause,
            None => EndCause::NodeClosed,
        };
        let has_lost_driver = cause == EndCause::NodeClosed && self.session.has_lost_driver();
        let cause = match has_lost_driver {
            true => EndCause::RuntimeEnded,
            false => cause,
        };
        Unusable::Disconnected(Box::new(Disconnected {
            channel,
            peer,
            end: self.role,
            cause,
            counts: counts(),
            interface: self.interface(),
        }))
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

    /// Returns the error of calls in a fork of the process.
    #[cold]
    pub(crate) fn used_after_fork(&self) -> UsedAfterFork {
        let peer = self.session.peer().address.to_string();
        UsedAfterFork::new(self.interface().subject(&self.name, &peer))
    }

    /// Waits until the peer has opened its end, as long as `patience` allows and at most
    /// `open_timeout`.
    pub(crate) fn wait_open(
        &self,
        patience: Patience,
        counts: impl Fn() -> Counts,
    ) -> Result<(), Unopened> {
        if fork::is_child() {
            return Err(Unopened::Failed(self.used_after_fork().into()));
        }
        let look = || {
            let opened = self.look_open(&counts)?;
            Some(opened.map_err(Unopened::Failed))
        };
        if let Some(answer) = look() {
            return answer;
        }
        let Patience::Until(deadline) = patience else {
            if patience == Patience::None {
                self.session.requests.poll();
            }
            return look().unwrap_or(Err(Unopened::NotYet));
        };
        let now = clock::now();
        // A deadline that the clock cannot represent means waiting without a limit.
        let give_up = now.checked_add(self.open_timeout);
        let until = [deadline, give_up].into_iter().flatten().min();
        let mut held = None;
        let opened = AtSlot::new(&self.waiters, &mut held, look);
        self.session.wait_for(until, opened).unwrap_or_else(|_| {
            Err(if until == give_up {
                self.has_waited_in_vain.store(true, Ordering::Relaxed);
                Unopened::Failed(Unusable::NotOpened(self.not_opened(self.open_timeout)))
            } else {
                let waited = until.map_or(Duration::ZERO, |until| until - now);
                Unopened::TimedOut(self.not_opened(waited))
            })
        })
    }

    /// Waits until the peer has opened its end, for a task and without a time limit. While it is
    /// pending, `waker` is left under `held`.
    pub(crate) fn poll_open(
        &self,
        held: &mut Option<Ticket>,
        waker: &Waker,
        counts: impl Fn() -> Counts,
    ) -> Poll<Result<(), Unusable>> {
        if fork::is_child() {
            return Poll::Ready(Err(self.used_after_fork().into()));
        }
        let opened = AtSlot::new(&self.waiters, held, || self.look_open(&counts));
        let polled = parking::poll(opened, waker, || self.session.requests.poll());
        if polled.is_pending() {
            self.watch_open();
        }
        polled
    }

    /// Returns whether the peer has opened its end, once that is decided.
    fn look_open(&self, counts: impl Fn() -> Counts) -> Option<Result<(), Unusable>> {
        if self.state.is_over() {
            return Some(Err(self.unusable(counts)));
        }
        (!self.state.is_pending()).then_some(Ok(()))
    }

    /// Returns the reason why the channel never opened, if it is certain that it did not: the
    /// channel ended before it was open, or a call has waited for all of `open_timeout`.
    pub(crate) fn open_failure(&self, counts: impl FnOnce() -> Counts) -> Option<Unusable> {
        if self.state.agreed().is_some() {
            None
        } else if self.state.is_over() {
            Some(self.unusable(counts))
        } else {
            let has_waited = self.has_waited_in_vain.load(Ordering::Relaxed);
            has_waited.then(|| Unusable::NotOpened(self.not_opened(self.open_timeout)))
        }
    }

    pub(crate) fn not_opened(&self, waited: Duration) -> Box<NotOpened> {
        self.not_opened_among(&self.session.requests.incoming(), waited)
    }

    /// Like [`not_opened`](Self::not_opened), for a caller that already has the list of ends that
    /// the peer opened and this node did not.
    fn not_opened_among(&self, incoming: &[(String, Role)], waited: Duration) -> Box<NotOpened> {
        let missing = self.role.opposite();
        let ours = (&*self.name, self.role);
        let is_same_there = incoming.iter().any(|(name, role)| (&**name, *role) == ours);
        let others = incoming.iter().filter(|(_, role)| *role == missing);
        let other_names = others.map(|(name, _)| name.clone());
        Box::new(NotOpened {
            channel: self.name.to_string(),
            peer: self.session.peer_name(),
            missing,
            is_same_there,
            other_names: other_names.take(MOST_NAMES).collect(),
            waited,
            open_timeout: self.open_timeout,
            suspended: self.cut_off(),
            interface: self.interface(),
        })
    }
}

/// Record of a wait for the peer's open that no time-out will end.
#[derive(Debug, Default)]
struct OpenWatch {
    /// Time at which the wait began.
    since: OnceLock<Instant>,
    is_told: AtomicBool,
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
        let OpenWatch { since, is_told } = &self.open_watch;
        let is_silent = self.state.is_pending() && !is_told.load(Ordering::Relaxed);
        // A time that the clock cannot represent never comes.
        let due = since.get()?.checked_add(self.open_timeout)?;
        is_silent.then_some(due)
    }

    /// Returns the notice that the peer has not opened its end. `incoming` lists the ends that the
    /// peer opened and this node did not.
    pub(crate) fn take_open_notice(&self, incoming: &[(String, Role)]) -> What {
        self.open_watch.is_told.store(true, Ordering::Relaxed);
        What::NotOpened(self.not_opened_among(incoming, self.open_timeout))
    }
}

/// Most names of other ends that an error lists: a peer may have opened a thousand.
const MOST_NAMES: usize = 8;

impl From<UsedAfterFork> for Unusable {
    fn from(error: UsedAfterFork) -> Self {
        Unusable::Forked(error)
    }
}

impl From<Unusable> for SendError {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::NotOpened(error) => SendError::NotOpened(error),
            Unusable::Mismatch(error) => SendError::Mismatch(error),
            Unusable::Disconnected(error) => SendError::Disconnected(error),
            Unusable::Forked(error) => SendError::UsedAfterFork(error),
        }
    }
}

impl From<Unusable> for RecvError {
    fn from(unusable: Unusable) -> Self {
        match unusable {
            Unusable::NotOpened(error) => RecvError::NotOpened(error),
            Unusable::Mismatch(error) => RecvError::Mismatch(error),
            Unusable::Disconnected(error) => RecvError::Disconnected(error),
            Unusable::Forked(error) => RecvError::UsedAfterFork(error),
        }
    }
}

impl From<Unopened> for SendFailure {
    fn from(unopened: Unopened) -> Self {
        match unopened {
            Unopened::NotYet => SendFailure::NotOpen,
            Unopened::TimedOut(error) => SendFailure::NotOpenInTime(error),
            Unopened::Failed(unusable) => SendFailure::Failed(unusable.into()),
        }
    }
}

impl From<Unopened> for RecvFailure {
    fn from(unopened: Unopened) -> Self {
        match unopened {
            Unopened::NotYet => RecvFailure::NotOpen,
            Unopened::TimedOut(error) => RecvFailure::NotOpenInTime(error),
            Unopened::Failed(unusable) => RecvFailure::Failed(unusable.into()),
        }
    }
}
