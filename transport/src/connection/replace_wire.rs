//! A session without wires: until others come, or it is known that none will.
//!
//! Rules:
//!
//! 1. A connection that breaks proves nothing of the peer. The end that dialed dials again,
//!    with growing pauses; the other waits to be found.
//! 2. The session is over when the peer is known to be: its process has ended, it answers
//!    that it has no such session, or it runs anew; or when `session_timeout` is up, and then
//!    a peer that comes later is refused.
//! 3. Wires over which nothing gets through are no end of an outage, though the peer answers, as
//!    where bytes are damaged every time: the pauses go on to grow, and `session_timeout` counts
//!    from the first break since which nothing got through.
//! 4. Wires have numbers, *epochs*, which grow. What comes in an older one is not looked at.
//! 5. Whoever listens to events is not told of a break that is over within [`GRACE`], unless
//!    the session goes on: most are how a process ends.

use std::{
    io::{self, Write},
    mem,
    net::{Shutdown, TcpStream},
    time::{Duration, Instant},
};

use ibex_protocol::{
    format::frame_check::{CHECK_BYTES, Coverage, write_checks},
    session::{Session, is_newer_epoch},
    timer::Timer,
};

use super::{
    Link, Phase,
    dialer::{Attempt, Redialing},
    in_epoll::{self, Membership},
    new_wire::NewWire,
    outage::Outage,
    peer_process::PeerProcess,
    wires::Wires,
};
use crate::{
    clock,
    connection::{Context, Tools},
    node::What,
    rdma::PreparedPair,
    session::EndCause,
    stream::unanswered_for,
};

impl Link {
    /// Whether it has no wires now.
    pub(crate) fn is_suspended(&self) -> bool {
        matches!(self.wires, Wires::None)
    }

    /// Whether its wires broke and it does not go on yet.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.outage().is_some()
    }

    fn outage(&self) -> Option<&Outage> {
        self.rewiring.as_ref()?.outage.as_ref()
    }

    fn outage_mut(&mut self) -> Option<&mut Outage> {
        self.rewiring.as_mut()?.outage.as_mut()
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

    /// Whether this end dials when the wires break.
    pub(crate) fn dials(&self) -> bool {
        let rewiring = self.rewiring.as_ref();
        rewiring.is_some_and(|rewiring| rewiring.terms.redial.is_some())
    }

    /// Whether it is the session of that name.
    pub(crate) fn is_named(&self, session: &[u8; 16]) -> bool {
        self.rewiring
            .as_ref()
            .is_some_and(|rewiring| rewiring.terms.session == *session)
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
        if self.may_go_on() && self.rewiring.is_some() {
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
        if self.is_suspended() {
            return false;
        }
        let Some(rewiring) = &mut self.rewiring else {
            return false;
        };
        let Some(unanswered) = unanswered_for(&self.tcp) else {
            rewiring.unanswered_since = None;
            return false;
        };
        let now = clock::now();
        let looked_for = match rewiring.unanswered_since {
            Some(since) if unanswered >= now.duration_since(since) => now.duration_since(since),
            _ => {
                rewiring.unanswered_since = Some(now);
                Duration::ZERO
            }
        };
        if looked_for >= context.node().notice_timeout() {
            let why = format!("its host has not answered for {unanswered:?}");
            self.wires_broke(EndCause::lost(why), tools, context);
        }
        true
    }

    /// Waits for other wires. What it had is gone.
    pub(super) fn suspend(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        self.part_from_epoll(&tools.epoll);
        let _ = self.tcp.shutdown(Shutdown::Both);
        let before = mem::replace(&mut self.wires, Wires::None);
        debug_assert!(before.are_gone(), "a queue pair is destroyed before");
        self.broken = None;
        self.readable = false;
        self.shared.counters.credit_is_there();
        self.frames_are_gone(u64::MAX, context);
        let (progress, is_under_way) = (self.session.progress(), self.session.is_under_way());
        for sender in self.senders.values_mut() {
            sender.large_is_sent_again();
        }
        self.session.suspend();
        if matches!(before, Wires::Pair(_)) {
            self.leave_site(context);
        }

        let Some(rewiring) = &mut self.rewiring else {
            return;
        };
        let now = clock::now();
        let found_damage = mem::take(&mut rewiring.found_damage);
        if let Some(outage) = &mut rewiring.outage {
            outage.is_stuck |= found_damage;
            outage.failure = Some(cause.to_string());
        } else {
            self.shared.counters.suspensions.add(1);
            tracing::info!(
                peer = %self.shared.peer_in_log(), why = %cause,
                "a session has lost its connection"
            );
            let process = PeerProcess::find(rewiring.terms.process);
            let has_ended = matches!(process, PeerProcess::Ended);
            let runs_anew = rewiring.peer_runs_anew;
            let timeout = context.node().session_timeout();
            let mut outage = Outage::new(now, cause, process, progress);
            let past = rewiring.past.take();
            if past.is_some_and(|past| outage.continue_from(&past, timeout)) {
                let breaks = outage.breaks;
                outage.add_to_cause(&format!(
                    "; nothing got through over the last {breaks} connections"
                ));
            }
            outage.is_stuck |= found_damage | is_under_way;
            let verdict = outage.stuck_since.checked_add(timeout);
            rewiring.outage = Some(outage);
            if has_ended {
                return self.process_has_ended(context);
            }
            if runs_anew {
                return self.is_certainly_gone(RUNS_ANEW, context);
            }
            self.timers.set(Timer::Notice, now + GRACE);
            if let Some(verdict) = verdict {
                self.timers.set(Timer::Verdict, verdict);
            }
        }
        self.dial_later(now);
        self.watch_process(tools);
    }

    /// Has the peer dialed, if that is this end's part: at once, and then with pauses.
    fn dial_later(&mut self, now: Instant) {
        if let Some(rewiring) = &mut self.rewiring
            && let Some(outage) = &mut rewiring.outage
            && rewiring.terms.redial.is_some()
        {
            let broken_for = now.duration_since(outage.stuck_since);
            let ways = rewiring.terms.ways;
            let pause = ways.shorten(outage.pause(), broken_for);
            outage.attempts += 1;
            self.timers.set(Timer::Redial, now + pause);
        }
    }

    /// Has epoll tell of the end of the peer's process.
    fn watch_process(&mut self, tools: &Tools) {
        if let Some(process) = self.outage().and_then(|one| one.process.descriptor()) {
            // What cannot be watched is looked at when something else happens.
            let _ = self.watch_in_place(process, &tools.epoll);
        }
    }

    /// Looks whether the peer's process has ended, for a turn of a session without wires.
    pub(super) fn look_at_process(&mut self, context: &mut Context<'_>) -> bool {
        self.readable = false;
        let has_ended = self.outage().is_some_and(|one| one.process.has_ended());
        if has_ended {
            self.process_has_ended(context);
        }
        has_ended
    }

    fn process_has_ended(&mut self, context: &mut Context<'_>) {
        let why = "its process has ended";
        self.is_certainly_gone(why, context);
    }

    /// The peer has come as another process. What works goes on all the same: two that run at
    /// once may have been given one identity.
    pub(crate) fn peer_runs_anew(&mut self, context: &mut Context<'_>) {
        if self.is_broken_off() {
            self.is_certainly_gone(RUNS_ANEW, context);
        } else if let Some(rewiring) = &mut self.rewiring {
            rewiring.peer_runs_anew = true;
        }
    }

    /// The peer cannot come back.
    pub(crate) fn is_certainly_gone(&mut self, why: &str, context: &mut Context<'_>) {
        if self.phase == Phase::Gone {
            return;
        }
        let advice = self.advice();
        let why = match self.cause_of_break() {
            Some(EndCause::PeerGone { why: before, .. }) if advice.is_empty() => {
                format!("{before}, and {why}")
            }
            _ => format!("{why}{advice}"),
        };
        self.end_broken(EndCause::PeerGone { why, certain: true }, context);
    }

    fn cause_of_break(&self) -> Option<&EndCause> {
        Some(&self.outage()?.cause)
    }

    /// The session is over, and the peer would wait for this end to come back: tells it, if
    /// that can be said at once and no goodbye has told it before.
    pub(super) fn say_last_word(&mut self) {
        if let Wires::Stream(stream) = &self.wires
            && self.rewiring.is_some()
            && !self.session.said_goodbye()
            && stream.outbound.is_empty()
        {
            say_last_word(&self.tcp, stream.outbound.frames());
        }
    }

    // ---- Time ------------------------------------------------------------------------

    /// It is time to say that the session is suspended.
    pub(super) fn tell_of_break(&mut self, context: &mut Context<'_>) {
        let Some(outage) = self.outage_mut() else {
            return;
        };
        if !mem::replace(&mut outage.is_told, true) {
            let what = What::Suspended {
                cause: outage.cause.clone(),
                since: outage.since,
            };
            self.tell(what, context);
        }
    }

    /// The peer did not come back in time.
    pub(super) fn give_up(&mut self, context: &mut Context<'_>) {
        let timeout = context.node().session_timeout();
        let Some(outage) = self.outage() else {
            return;
        };
        let before = match &outage.cause {
            EndCause::PeerGone { why, .. } => why.clone(),
            cause => cause.to_string(),
        };
        let failure = outage.last_failure();
        let why = match outage.breaks {
            1 => format!("{before}, and it did not come back within {timeout:?}{failure}"),
            _ => format!("nothing got through for {timeout:?}{}", self.advice()),
        };
        self.end_broken(EndCause::lost(why), context);
    }

    /// Where to look for what damages bytes, or keeps them back, as the end of a sentence.
    fn advice(&self) -> String {
        let Some(outage) = self.outage().filter(|outage| outage.breaks > 1) else {
            return String::new();
        };
        let counters = &self.shared.counters;
        let (here, there) = (
            counters.checksum_errors.get(),
            counters.checksum_errors_at_peer.get(),
        );
        let peer = self.shared.peer().address;
        let between = match self.tcp.local_addr() {
            Ok(local) => format!("between {local} and {peer}"),
            Err(_) => format!("on the way to {peer}"),
        };
        let damage = match (here, there) {
            (0, 0) => format!(" (the last: {})", outage.cause),
            _ => format!(
                ", and bytes were damaged, {here} times on their way here and {there} times on \
                 their way to the peer"
            ),
        };
        format!(
            "; {} connections {between} broke in a row{damage}: check the network path, its network \
             cards, and whatever passes connections on or changes them",
            outage.breaks
        )
    }

    /// The peer has told how often it found bytes damaged that this end had sent.
    pub(super) fn peer_found_damage(&mut self, times: u64) {
        if !self.shared.counters.checksum_errors_at_peer.raise(times) {
            return;
        }
        if times.is_power_of_two() {
            tracing::warn!(
                peer = %self.shared.peer().address, so_far = times,
                "the peer found bytes damaged that this end had sent; the session goes on over a \
                 new connection, and nothing is lost"
            );
        }
        if let Some(outage) = self.outage_mut() {
            outage.is_stuck = true;
            if mem::replace(&mut outage.heard_of_damage, true) {
                return;
            }
            outage.add_to_cause(&format!(
                "; it found bytes damaged that this end had sent (times so far: {times})"
            ));
        }
    }

    /// It is time to dial.
    pub(super) fn redial(&mut self, context: &mut Context<'_>) {
        let (session, is_suspended) = (self.id(), self.is_suspended());
        if let Some(rewiring) = &mut self.rewiring
            && let Some(outage) = &rewiring.outage
            && let Some(redial) = rewiring.terms.redial.clone()
            && is_suspended
        {
            rewiring.dialed = rewiring.dialed.max(rewiring.epoch) + 1;
            let (ways, broken_for) = (
                rewiring.terms.ways,
                clock::now().duration_since(outage.stuck_since),
            );
            context.redialings.push(Redialing {
                session,
                attempt: Attempt {
                    epoch: rewiring.dialed,
                    fabric: ways.wanted(broken_for, outage.attempts == 1, rewiring.fabric),
                },
                redial,
            });
        }
    }

    /// Nobody was there, or not with such wires.
    pub(crate) fn redial_failed(&mut self, epoch: u64, why: &str) {
        let shared = self.shared.clone();
        let is_suspended = self.is_suspended();
        if let Some(rewiring) = &mut self.rewiring
            && let Some(outage) = &mut rewiring.outage
            && is_suspended
            && rewiring.dialed == epoch
        {
            let peer = shared.peer_in_log();
            tracing::debug!(%peer, why, attempts = outage.attempts, "no new connection yet");
            outage.failure = Some(why.to_owned());
            self.dial_later(clock::now());
        }
    }

    // ---- New wires -------------------------------------------------------------------

    /// Goes on over new wires. Whether these are taken: they are not when they are late.
    pub(crate) fn take_wires(
        &mut self,
        wires: NewWire,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        // Who has said goodbye, and comes once more, waits for ours.
        let goes_on = self.phase != Phase::Gone;
        let is_suspended = self.is_suspended();
        let Some(rewiring) = self.rewiring.as_mut().filter(|_| goes_on) else {
            return Ok(false);
        };
        let goes_back = rewiring.terms.ways.goes_back();
        let next = rewiring.next.as_ref().map_or(0, |next| next.epoch);
        if !is_newer_epoch(wires.epoch, rewiring.epoch.max(next)) {
            return Ok(false);
        }
        // It knows the session's secret, so it is the process that has it.
        rewiring.peer_runs_anew = false;
        if !is_suspended {
            // The peer has noticed first; what was on its way to us comes again.
            let cause = EndCause::lost("it has lost the connection, and made another");
            if matches!(self.wires, Wires::Pair(_)) {
                rewiring.next = Some(wires);
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
        let NewWire {
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
        let checksums = self.shared.payload_checksums();
        let (wires, terms) = Wires::new(&leftover, rdma, checksums, &mut tools.blocks)?;
        if let Some(rewiring) = &mut self.rewiring {
            rewiring.epoch = epoch;
            rewiring.unanswered_since = None;
            let outage = rewiring.outage.as_ref();
            if let Some(process) = outage.and_then(|one| one.process.descriptor()) {
                in_epoll::leave(process, &tools.epoll);
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
    pub(crate) fn take_next_wires(&mut self) -> Option<NewWire> {
        self.rewiring.as_mut()?.next.take()
    }

    /// Both ends know what the other has: the session goes on.
    pub(super) fn goes_on(&mut self, replayed: u64, context: &mut Context<'_>) {
        self.tell_of_break(context);
        let now = clock::now();
        let outage = self.rewiring.as_mut().and_then(|one| {
            let outage = one.outage.take();
            one.past = outage.as_ref().and_then(|outage| outage.past(now));
            outage
        });
        self.stop_waiting();
        let (suspended, cause) = match outage {
            Some(outage) => {
                let failure = outage.last_failure();
                (
                    now.duration_since(outage.since),
                    format!("{}{failure}", outage.cause),
                )
            }
            None => (Duration::ZERO, String::new()),
        };
        self.shared.counters.resumes.add(1);
        self.shared.counters.replayed.add(replayed);
        tracing::info!(
            peer = %self.shared.peer_in_log(), ?suspended, replayed,
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
        let before = self.rewiring.as_mut().map(|one| &mut one.fabric);
        let from = before.map_or(to, |before| mem::replace(before, to));
        if from != to {
            let peer = self.shared.peer_in_log();
            tracing::info!(%peer, %from, %to, %reason, "a session has changed its fabric");
            self.tell(What::FabricChanged { from, to, reason }, context);
        }
    }
}

/// Tells the peer of a session, behind so many frames, that this end does not come back.
pub(crate) fn say_last_word(mut stream: &TcpStream, frames: u64) {
    let mut frame = vec![0; CHECK_BYTES];
    frame.append(&mut Session::last_word());
    write_checks(frames, &mut frame, None, Coverage::Whole);
    // What does not arrive is found out later, by a time-out.
    let _ = stream.write(&frame);
}

/// Why a peer cannot come back that has come as another process.
const RUNS_ANEW: &str = "it runs anew";
/// How long a break may be one that the end of a process is.
const GRACE: Duration = Duration::from_millis(50);
