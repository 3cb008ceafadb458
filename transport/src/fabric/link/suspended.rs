//! A session without wires: until others come, or it is known that none will.
//!
//! Rules:
//!
//! 1. A connection that breaks proves nothing of the peer. The end that dialed dials again,
//!    with growing pauses; the other waits to be found.
//! 2. The session is over when the peer is known to be: its process has ended, it answers
//!    that it has no such session, or it runs anew; or when `session_timeout` is up, and then
//!    a peer that comes later is refused.
//! 3. Wires have numbers, *epochs*, which grow. What comes in an older one is not looked at.
//! 4. Whoever listens to events is not told of a break that is over within [`GRACE`], unless
//!    the session goes on: most are how a process ends.

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::{BuildHasher, Hasher},
    io::{self, Write},
    mem,
    net::TcpStream,
    os::fd::OwnedFd,
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, pidfd_open},
};

use super::{Link, Phase, in_epoll::Membership, ways::Ways, wires::Wires};
use crate::{
    channel::EndCause,
    driver::{Context, Tools, What},
    engine::{
        session::{Session, is_newer_epoch},
        timer::Timer,
    },
    fabric::{Fabric, tcp::unanswered_for, verbs::PreparedPair},
};

/// What a session needs to go on over other wires than those that it began with.
#[derive(Clone, Debug)]
pub struct ResumptionTerms {
    /// The session's name, which both ends know.
    pub session: [u8; 16],
    /// How to dial the peer, at the end that dialed.
    pub redial: Option<Arc<dyn Redial>>,
    /// What it asks for then.
    pub ways: Ways,
    /// The peer's process, where it is one of this host's.
    pub process: Option<u32>,
}

/// How the peer of a session is dialed again.
pub trait Redial: Send + Sync + fmt::Debug {
    /// Dials once and agrees on new wires. Blocks for a few seconds at the most, and hardly
    /// longer than until `is_cancelled`.
    ///
    /// # Errors
    /// Nobody is there, or somebody who has no such session, or not such wires.
    fn redial(
        &self,
        attempt: Attempt,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Reconnection, RedialError>;

    /// Has `job` done on a thread that may block.
    ///
    /// # Errors
    /// The system gives no thread for it.
    fn run(&self, job: Box<dyn FnOnce() + Send>) -> io::Result<()>;
}

/// What is asked for when a peer is dialed again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// The number of the wires.
    pub epoch: u64,
    /// What they are to carry the data over.
    pub fabric: Fabric,
}

/// New wires of a session.
#[derive(Debug)]
pub struct Reconnection {
    /// The session's name.
    pub session: [u8; 16],
    /// Their number.
    pub epoch: u64,
    /// The connection; the handshake's bytes are consumed.
    pub stream: TcpStream,
    /// Bytes that came behind the handshake.
    pub leftover: Vec<u8>,
    /// The queue pair, if it goes on over verbs; connected to the peer's.
    pub rdma: Option<PreparedPair>,
}

/// Why there are no new wires.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedialError {
    /// There may be, later.
    #[error("{0}")]
    NotYet(String),
    /// The peer has no such session: it runs anew, or has given the session up.
    #[error("{0}")]
    NoSession(String),
}

/// A session's way to other wires.
#[derive(Debug)]
pub(super) struct Resumption {
    terms: ResumptionTerms,
    /// The number of the wires that it has, or had last.
    epoch: u64,
    /// The number of those that were dialed for last.
    dialed: u64,
    /// When a look found first that the peer's kernel does not answer.
    unanswered_since: Option<Instant>,
    /// Wires that came while nobody knew that the old ones had broken: they wait until nothing
    /// of those can come any more.
    next: Option<Reconnection>,
    /// What carries the data, as far as was told.
    fabric: Fabric,
    /// Since the wires broke, until both ends go on.
    broken: Option<Break>,
}

#[derive(Debug)]
struct Break {
    since: Instant,
    cause: EndCause,
    is_told: bool,
    /// To dial the peer, which were made or are about to be.
    attempts: u32,
    /// What the last of them came to.
    failure: Option<String>,
    /// The peer's process; readable when it has ended.
    process: Option<OwnedFd>,
}

impl Resumption {
    pub(super) fn new(terms: ResumptionTerms, fabric: Fabric) -> Self {
        Self {
            terms,
            fabric,
            epoch: 0,
            dialed: 0,
            unanswered_since: None,
            next: None,
            broken: None,
        }
    }
}

impl Break {
    /// What the last attempt came to, as the end of a sentence.
    fn last_failure(&self) -> String {
        let failure = self.failure.as_ref();
        failure.map_or_else(String::new, |failure| {
            format!("; the last attempt: {failure}")
        })
    }

    /// Whether the peer's process has ended; `false` if nobody knows.
    fn has_ended(&self) -> bool {
        let Some(process) = &self.process else {
            return false;
        };
        let mut fds = [PollFd::new(process, PollFlags::IN)];
        let now = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        poll(&mut fds, Some(&now)) == Ok(1)
    }
}

/// What is to be dialed, after the engine's lock.
pub(crate) struct Redialing {
    pub(crate) session: u64,
    pub(crate) attempt: Attempt,
    pub(crate) redial: Arc<dyn Redial>,
}

impl Link {
    /// Whether it has no wires now.
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self.wires, Wires::None)
    }

    /// Whether its wires broke and it does not go on yet.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.present_break().is_some()
    }

    fn present_break(&self) -> Option<&Break> {
        self.resumption.as_ref()?.broken.as_ref()
    }

    fn present_break_mut(&mut self) -> Option<&mut Break> {
        self.resumption.as_mut()?.broken.as_mut()
    }

    /// Whether it may go on over other wires, as far as it is not over.
    fn may_go_on(&self) -> bool {
        matches!(self.phase, Phase::Up | Phase::Closing)
    }

    /// It waits for other wires no more.
    pub(super) fn stop_waiting(&mut self) {
        for timer in [Timer::Notice, Timer::Redial, Timer::Verdict] {
            self.timers.clear(timer);
        }
    }

    /// Whether it is the session of that name.
    pub(crate) fn is_named(&self, session: &[u8; 16]) -> bool {
        self.resumption
            .as_ref()
            .is_some_and(|resumption| resumption.terms.session == *session)
    }

    /// What had arrived is taken in: the session goes on over other wires, if it can.
    pub(super) fn wires_broke(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        if !self.wires.are_gone() {
            // Nothing is said before nothing can come any more.
            return self.drain_then_end(cause);
        }
        if self.may_go_on() && self.resumption.is_some() {
            self.suspend(cause, tools, context);
        } else {
            self.end_broken(cause, context);
        }
    }

    /// Looks whether the peer's kernel answers; one that has not for `notice_timeout` cannot be
    /// reached. Returns whether another look is due.
    ///
    /// What counts is the time between looks alone: under `Driver::Caller` there may be none for
    /// long, and then an old answer means nothing.
    pub(super) fn look_for_answers(
        &mut self,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        let Some(resumption) = self.resumption.as_mut().filter(|one| one.broken.is_none()) else {
            return false;
        };
        let Some(unanswered) = unanswered_for(&self.tcp) else {
            resumption.unanswered_since = None;
            return false;
        };
        let now = Instant::now();
        let looked_for = match resumption.unanswered_since {
            Some(since) if unanswered >= now.duration_since(since) => now.duration_since(since),
            _ => {
                resumption.unanswered_since = Some(now);
                Duration::ZERO
            }
        };
        if looked_for >= context.runtime.notice_timeout() {
            let why = format!("its host has not answered for {unanswered:?}");
            self.wires_broke(EndCause::lost(why), tools, context);
        }
        true
    }

    fn suspend(&mut self, cause: EndCause, tools: &mut Tools, context: &mut Context<'_>) {
        self.part_from_epoll(&tools.epoll);
        let _ = self.tcp.shutdown(std::net::Shutdown::Both);
        let before = mem::replace(&mut self.wires, Wires::None);
        debug_assert!(before.are_gone(), "a queue pair is destroyed before");
        self.broken = None;
        self.readable = false;
        self.shared.counters.credit_is_there();
        self.frames_are_gone(u64::MAX, context);
        for sender in self.senders.values_mut() {
            sender.large_is_sent_again();
        }
        self.session.suspend();
        if matches!(before, Wires::Pair(_)) {
            self.leave_site(context);
        }

        let Some(resumption) = &mut self.resumption else {
            return;
        };
        let now = Instant::now();
        if let Some(broken) = &mut resumption.broken {
            broken.failure = Some(cause.to_string());
        } else {
            self.shared.counters.suspensions.add(1);
            tracing::info!(
                peer = %self.shared.peer().address, why = %cause,
                "a session has lost its connection"
            );
            let process = resumption.terms.process.and_then(open_process);
            let (is_alive, process) = match process {
                Some(Process::Ended) => (false, None),
                Some(Process::Lives(fd)) => (true, Some(fd)),
                None => (true, None),
            };
            resumption.broken = Some(Break {
                since: now,
                cause,
                is_told: false,
                attempts: 0,
                failure: None,
                process,
            });
            if !is_alive {
                return self.process_has_ended(context);
            }
            self.timers.set(Timer::Notice, now + GRACE);
            let timeout = context.runtime.session_timeout();
            if let Some(verdict) = now.checked_add(timeout) {
                self.timers.set(Timer::Verdict, verdict);
            }
        }
        self.dial_later(now);
        self.watch_process(tools);
    }

    /// Has the peer dialed, if that is this end's part: at once, and then with pauses.
    fn dial_later(&mut self, now: Instant) {
        if let Some(resumption) = &mut self.resumption
            && let Some(broken) = &mut resumption.broken
            && resumption.terms.redial.is_some()
        {
            let pause = match broken.attempts.checked_sub(1) {
                None => Duration::ZERO,
                Some(before) => back_off(before),
            };
            let broken_for = now.duration_since(broken.since);
            let pause = resumption.terms.ways.shorten(pause, broken_for);
            broken.attempts += 1;
            self.timers.set(Timer::Redial, now + pause);
        }
    }

    /// Has epoll tell of the end of the peer's process.
    fn watch_process(&mut self, tools: &Tools) {
        if let Some(Break {
            process: Some(process),
            ..
        }) = self.present_break()
        {
            // What cannot be watched is looked at when something else happens.
            let _ = self.watch_in_place(process, &tools.epoll);
        }
    }

    /// Looks whether the peer's process has ended, for a turn of a session without wires.
    pub(super) fn look_at_process(&mut self, context: &mut Context<'_>) -> bool {
        self.readable = false;
        let has_ended = self.present_break().is_some_and(Break::has_ended);
        if has_ended {
            self.process_has_ended(context);
        }
        has_ended
    }

    fn process_has_ended(&mut self, context: &mut Context<'_>) {
        let why = "its process has ended";
        self.is_certainly_gone(why, context);
    }

    /// The peer cannot come back.
    pub(crate) fn is_certainly_gone(&mut self, why: &str, context: &mut Context<'_>) {
        if self.phase == Phase::Gone {
            return;
        }
        let why = match self.cause_of_break() {
            Some(EndCause::PeerGone { why: before, .. }) => format!("{before}, and {why}"),
            _ => why.to_owned(),
        };
        self.end_broken(EndCause::PeerGone { why, certain: true }, context);
    }

    fn cause_of_break(&self) -> Option<&EndCause> {
        Some(&self.present_break()?.cause)
    }

    /// The session is over, and the peer would wait for this end to come back: tells it, if
    /// that can be said at once.
    pub(super) fn say_last_word(&mut self, cause: &EndCause) {
        let is_in_order = *cause == EndCause::Goodbye && self.session.said_goodbye();
        if let Wires::Stream(stream) = &self.wires
            && self.resumption.is_some()
            && !is_in_order
            && stream.outbound.is_empty()
        {
            // What does not arrive is found out later, by a time-out.
            let _ = (&self.tcp).write(&Session::last_word());
        }
    }

    // ---- Time ------------------------------------------------------------------------

    /// It is time to say that the session is suspended.
    pub(super) fn tell_of_break(&mut self, context: &mut Context<'_>) {
        let Some(broken) = self.present_break_mut() else {
            return;
        };
        if !mem::replace(&mut broken.is_told, true) {
            let what = What::Suspended {
                cause: broken.cause.clone(),
                since: broken.since,
            };
            self.tell(what, context);
        }
    }

    /// The peer did not come back in time.
    pub(super) fn give_up(&mut self, context: &mut Context<'_>) {
        let timeout = context.runtime.session_timeout();
        let Some(broken) = self.present_break() else {
            return;
        };
        let before = match &broken.cause {
            EndCause::PeerGone { why, .. } => why.clone(),
            cause => cause.to_string(),
        };
        let failure = broken.last_failure();
        let why = format!("{before}, and it did not come back within {timeout:?}{failure}");
        self.end_broken(EndCause::lost(why), context);
    }

    /// It is time to dial.
    pub(super) fn redial(&mut self, context: &mut Context<'_>) {
        let (session, is_suspended) = (self.id(), self.is_suspended());
        if let Some(resumption) = &mut self.resumption
            && let Some(broken) = &resumption.broken
            && let Some(redial) = resumption.terms.redial.clone()
            && is_suspended
        {
            resumption.dialed = resumption.dialed.max(resumption.epoch) + 1;
            let (ways, broken_for) = (resumption.terms.ways, broken.since.elapsed());
            context.redialings.push(Redialing {
                session,
                attempt: Attempt {
                    epoch: resumption.dialed,
                    fabric: ways.wanted(broken_for, broken.attempts == 1, resumption.fabric),
                },
                redial,
            });
        }
    }

    /// Nobody was there, or not with such wires.
    pub(crate) fn redial_failed(&mut self, epoch: u64, why: &str) {
        let peer = self.shared.peer().address;
        let is_suspended = self.is_suspended();
        if let Some(resumption) = &mut self.resumption
            && let Some(broken) = &mut resumption.broken
            && is_suspended
            && resumption.dialed == epoch
        {
            tracing::debug!(%peer, why, attempts = broken.attempts, "no new connection yet");
            broken.failure = Some(why.to_owned());
            self.dial_later(Instant::now());
        }
    }

    // ---- New wires -------------------------------------------------------------------

    /// Goes on over new wires. Whether these are taken: they are not when they are late.
    pub(crate) fn take_wires(
        &mut self,
        wires: Reconnection,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        let goes_on = self.may_go_on();
        let is_suspended = self.is_suspended();
        let Some(resumption) = self.resumption.as_mut().filter(|_| goes_on) else {
            return Ok(false);
        };
        let goes_back = resumption.terms.ways.goes_back();
        let next = resumption.next.as_ref().map_or(0, |next| next.epoch);
        if !is_newer_epoch(wires.epoch, resumption.epoch.max(next)) {
            return Ok(false);
        }
        if !is_suspended {
            // The peer has noticed first; what was on its way to us comes again.
            let cause = EndCause::lost("it has lost the connection, and made another");
            if matches!(self.wires, Wires::Pair(_)) {
                resumption.next = Some(wires);
                self.drain_then_end(cause);
                return Ok(false);
            }
            self.suspend(cause, tools, context);
        }
        if self.phase == Phase::Gone {
            return Ok(false);
        }
        if let Some(pair) = &wires.rdma
            && let Err(why) = self.can_take_pair(pair)
        {
            self.redial_failed(wires.epoch, &why);
            return Ok(false);
        }
        let Reconnection {
            epoch,
            stream,
            leftover,
            rdma,
            ..
        } = wires;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        match &rdma {
            Some(pair) => self.shared.carrier.take_pair(pair),
            None => self.shared.carrier.take_stream(goes_back),
        }
        let writes = self.shared.peer().knows_writes;
        let (wires, terms) = Wires::new(&leftover, rdma, writes, &mut tools.blocks)?;
        if let Some(resumption) = &mut self.resumption {
            resumption.epoch = epoch;
            resumption.unanswered_since = None;
            if let Some(process) = resumption
                .broken
                .as_ref()
                .and_then(|one| one.process.as_ref())
            {
                super::in_epoll::leave(process, &tools.epoll);
            }
        }
        self.tcp = stream;
        self.wires = wires;
        self.membership = Membership::Out;
        self.readable = true;
        self.join_epoll(&tools.epoll)?;
        self.session.resume(terms);
        Ok(true)
    }

    /// Whether what is to be sent again, and all that will be, can go over a queue pair. It is
    /// registered where it has to be: in a turn, as only a device that was opened anew has not
    /// got it.
    fn can_take_pair(&mut self, pair: &PreparedPair) -> Result<(), String> {
        if !self.shared.carrier.fits(pair) {
            return Err(
                "messages of the session are longer than the frames of a queue pair".into(),
            );
        }
        let mut senders = self.senders.values_mut();
        let registered = senders.try_for_each(|sender| sender.register_with(pair.site()));
        registered.map_err(|error| error.to_string())
    }

    /// The wires that came before the old ones were gone, which they are now.
    pub(crate) fn take_next_wires(&mut self) -> Option<Reconnection> {
        self.resumption.as_mut()?.next.take()
    }

    /// Both ends know what the other has: the session goes on.
    pub(super) fn goes_on(&mut self, replayed: u64, context: &mut Context<'_>) {
        self.tell_of_break(context);
        let broken = self.resumption.as_mut().and_then(|one| one.broken.take());
        self.stop_waiting();
        let (suspended, cause) = match broken {
            Some(broken) => {
                let failure = broken.last_failure();
                (broken.since.elapsed(), format!("{}{failure}", broken.cause))
            }
            None => (Duration::ZERO, String::new()),
        };
        self.shared.counters.resumes.add(1);
        self.shared.counters.replayed.add(replayed);
        tracing::info!(
            peer = %self.shared.peer().address, ?suspended, replayed,
            "a session goes on over a new connection"
        );
        let what = What::Resumed {
            suspended,
            replayed,
        };
        self.tell(what, context);
        self.tell_of_fabric(cause, context);
    }

    /// Says so if it goes on over another fabric.
    fn tell_of_fabric(&mut self, reason: String, context: &mut Context<'_>) {
        let to = self.shared.fabric();
        let before = self.resumption.as_mut().map(|one| &mut one.fabric);
        let from = before.map_or(to, |before| mem::replace(before, to));
        if from != to {
            let peer = self.shared.peer().address;
            tracing::info!(%peer, %from, %to, %reason, "a session has changed its fabric");
            self.tell(What::FabricChanged { from, to, reason }, context);
        }
    }
}

/// The process of a peer.
enum Process {
    Ended,
    Lives(OwnedFd),
}

/// `None` if it cannot be known.
fn open_process(pid: u32) -> Option<Process> {
    let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
    match pidfd_open(pid, PidfdFlags::empty()) {
        Ok(process) => Some(Process::Lives(process)),
        Err(rustix::io::Errno::SRCH) => Some(Process::Ended),
        Err(_) => None,
    }
}

/// The pause behind an attempt: twice the one before, by half more or less at random, so that
/// sessions that broke together do not all come back in one moment.
fn back_off(attempts: u32) -> Duration {
    let pause = FIRST_PAUSE
        .saturating_mul(1 << attempts.min(16))
        .min(LONGEST_PAUSE);
    let random = RandomState::new().build_hasher().finish();
    pause / 2 + pause.mul_f64((random % 1024) as f64 / 1024.0)
}

/// How long a break may be one that the end of a process is.
const GRACE: Duration = Duration::from_millis(50);
/// Pauses between attempts to dial.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_bound() {
        for attempt in 0..40 {
            let whole = FIRST_PAUSE
                .saturating_mul(1 << attempt.min(16))
                .min(LONGEST_PAUSE);
            let pause = back_off(attempt);
            assert!(
                whole / 2 <= pause && pause <= whole * 3 / 2,
                "{attempt}: {pause:?}"
            );
        }
    }

    #[test]
    fn a_process_is_known_to_live_until_it_ends() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let Some(Process::Lives(process)) = open_process(child.id()) else {
            panic!("it lives");
        };
        let broken = Break {
            since: Instant::now(),
            cause: EndCause::Goodbye,
            is_told: false,
            attempts: 0,
            failure: None,
            process: Some(process),
        };
        assert!(!broken.has_ended());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(broken.has_ended());
    }
}
