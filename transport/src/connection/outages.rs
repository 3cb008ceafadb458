//! A session without a wire: until another comes, or it is known that none will.
//!
//! Rules:
//!
//! 1. A connection that breaks proves nothing of the peer. The end that dialed dials again,
//!    with growing pauses; the other waits to be found.
//! 2. The session is over when the peer is known to be: its process has ended, it answers
//!    that it has no such session, or it runs anew. Else the session is over when
//!    `session_timeout` is up, and then a peer that comes later is refused.
//! 3. A wire over which nothing gets through is no end of an outage, though the peer answers, as
//!    where bytes are damaged every time. The pauses go on to grow, and `session_timeout` counts
//!    from the first break since which nothing got through.
//! 4. Wires have numbers, *epochs*, which grow. What comes in an older one is not looked at.
//! 5. Whoever listens to events is not told of a break that is over within [`GRACE`], unless
//!    the session goes on: most are how a process ends.

use std::{
    mem,
    time::{Duration, Instant},
};

use ibex_protocol::{format::frame_check::DamagedFrame, timer::Timer};

use super::{
    context::Context,
    core::{Core, Phase},
    outage::Outage,
    peer_process::PeerProcess,
};
use crate::{clock, node::What, session::EndCause, wire::Fault};

impl Core {
    /// Returns whether the wire broke and the session does not go on yet.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.outage().is_some()
    }

    pub(super) fn outage(&self) -> Option<&Outage> {
        self.reconnect.as_ref()?.outage.as_ref()
    }

    fn outage_mut(&mut self) -> Option<&mut Outage> {
        self.reconnect.as_mut()?.outage.as_mut()
    }

    /// Stops waiting for another wire.
    pub(super) fn stop_waiting(&mut self) {
        for timer in [Timer::Notice, Timer::Redial, Timer::Verdict] {
            self.common.timers.clear(timer);
        }
    }

    /// Returns whether this end dials when the wire breaks.
    pub(crate) fn dials(&self) -> bool {
        let reconnect = self.reconnect.as_ref();
        reconnect.is_some_and(|reconnect| reconnect.terms.redial.is_some())
    }

    /// Returns whether it is the session of that name.
    pub(crate) fn is_named(&self, session: &[u8; 16]) -> bool {
        self.reconnect
            .as_ref()
            .is_some_and(|reconnect| reconnect.terms.session == *session)
    }

    /// Notes that the session has no wire from now on, for this cause. Returns whether the session
    /// goes on all the same.
    pub(super) fn begin_outage(
        &mut self,
        cause: EndCause,
        had_device: bool,
        context: &mut Context<'_>,
    ) -> bool {
        self.broken = None;
        self.common.timers.clear(Timer::Age);
        self.common.shared.counters.credit_is_there();
        self.retained.free(u64::MAX, &mut context.wakers);
        let (progress, is_under_way) = (
            self.common.session.progress(),
            self.common.session.is_under_way(),
        );
        for sender in self.senders.values_mut() {
            sender.large_is_sent_again();
        }
        self.common.session.suspend();
        if had_device {
            self.leave_site(context);
        }
        let Some(reconnect) = &mut self.reconnect else {
            return false;
        };
        let now = clock::now();
        let found_damage = mem::take(&mut reconnect.found_damage);
        if let Some(outage) = &mut reconnect.outage {
            outage.is_stuck |= found_damage;
            outage.failure = Some(cause.to_string());
            self.dial_later(now);
            return true;
        }
        self.common.shared.counters.suspensions.add(1);
        tracing::info!(
            peer = %self.common.shared.peer_in_log(), why = %cause,
            "a session has lost its connection"
        );
        let process = PeerProcess::find(reconnect.terms.process);
        let has_ended = matches!(process, PeerProcess::Ended);
        let runs_anew = reconnect.peer_runs_anew;
        let timeout = context.node().session_timeout();
        let mut outage = Outage::new(now, cause, process, progress);
        let past = reconnect.past.take();
        if past.is_some_and(|past| outage.continue_from(&past, timeout)) {
            let breaks = outage.breaks;
            outage.add_to_cause(&format!(
                "; nothing got through over the last {breaks} connections"
            ));
        }
        outage.is_stuck |= found_damage | is_under_way;
        let verdict = outage.stuck_since.checked_add(timeout);
        reconnect.outage = Some(outage);
        if has_ended {
            self.process_has_ended(context);
            return false;
        }
        if runs_anew {
            self.is_certainly_gone(RUNS_ANEW, context);
            return false;
        }
        self.common.timers.set(Timer::Notice, now + GRACE);
        if let Some(verdict) = verdict {
            self.common.timers.set(Timer::Verdict, verdict);
        }
        self.dial_later(now);
        true
    }

    /// Has the peer dialed, if that is this end's part: at once, and then with pauses.
    pub(super) fn dial_later(&mut self, now: Instant) {
        if let Some(reconnect) = &mut self.reconnect
            && let Some(outage) = &mut reconnect.outage
            && reconnect.terms.redial.is_some()
        {
            let broken_for = now.duration_since(outage.stuck_since);
            let ways = reconnect.terms.ways;
            let pause = ways.shorten(outage.pause(), broken_for);
            outage.attempts += 1;
            self.common.timers.set(Timer::Redial, now + pause);
        }
    }

    /// The peer has come as another process. What works goes on all the same: two that run at
    /// once may have been given one identity.
    pub(crate) fn peer_runs_anew(&mut self, context: &mut Context<'_>) {
        if self.is_broken_off() {
            self.is_certainly_gone(RUNS_ANEW, context);
        } else if let Some(reconnect) = &mut self.reconnect {
            reconnect.peer_runs_anew = true;
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

    /// Counts a frame that was damaged on the way: nothing that comes over this wire can be
    /// believed any more, and what was handed on before was right. Over another, everything
    /// behind that comes again. Returns the cause for which the wire ends.
    #[cold]
    pub(super) fn note_damage(&mut self, damage: DamagedFrame) -> EndCause {
        let errors = &self.common.shared.counters.checksum_errors;
        errors.add(1);
        self.common.session.found_damage();
        if let Some(reconnect) = &mut self.reconnect {
            reconnect.found_damage = true;
        }
        let what_next = match self.reconnect {
            Some(_) => "the session goes on over a new connection, and nothing is lost",
            None => "the session cannot go on over a new connection",
        };
        if errors.get().is_power_of_two() {
            tracing::warn!(
                peer = %self.common.shared.peer().address, %damage, so_far = errors.get(),
                "bytes were damaged on the way from a peer; {what_next}"
            );
        }
        let why = format!("{}; {what_next}", Fault::Damage(damage));
        let cause = self.broken.take();
        cause.unwrap_or_else(|| EndCause::lost(why))
    }

    /// The peer's process has ended.
    pub(super) fn process_has_ended(&mut self, context: &mut Context<'_>) {
        let why = "its process has ended";
        self.is_certainly_gone(why, context);
    }

    // ---- Time ------------------------------------------------------------------------

    /// Tells, as it is time, that the session is suspended.
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

    /// Returns, as the end of a sentence, where to look for the cause of damaged or missing bytes.
    fn advice(&self) -> String {
        let Some(outage) = self.outage().filter(|outage| outage.breaks > 1) else {
            return String::new();
        };
        let counters = &self.common.shared.counters;
        let (here, there) = (
            counters.checksum_errors.get(),
            counters.checksum_errors_at_peer.get(),
        );
        let peer = self.common.shared.peer().address;
        let between = match self.address {
            Some(local) => format!("between {local} and {peer}"),
            None => format!("on the way to {peer}"),
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
        if !self
            .common
            .shared
            .counters
            .checksum_errors_at_peer
            .raise(times)
        {
            return;
        }
        if times.is_power_of_two() {
            tracing::warn!(
                peer = %self.common.shared.peer().address, so_far = times,
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

    /// Both ends know what the other has: the session goes on.
    pub(super) fn goes_on(&mut self, replayed: u64, context: &mut Context<'_>) {
        self.tell_of_break(context);
        let now = clock::now();
        let outage = self.reconnect.as_mut().and_then(|one| {
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
        self.common.shared.counters.resumes.add(1);
        self.common.shared.counters.replayed.add(replayed);
        tracing::info!(
            peer = %self.common.shared.peer_in_log(), ?suspended, replayed,
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
        let to = self.common.shared.fabric();
        let before = self.reconnect.as_mut().map(|one| &mut one.fabric);
        let from = before.map_or(to, |before| mem::replace(before, to));
        if from != to {
            let peer = self.common.shared.peer_in_log();
            tracing::info!(%peer, %from, %to, %reason, "a session has changed its fabric");
            self.tell(What::FabricChanged { from, to, reason }, context);
        }
    }
}

/// Why a peer cannot come back that has come as another process.
const RUNS_ANEW: &str = "it runs anew";
/// How long a break may be one that the end of a process is.
const GRACE: Duration = Duration::from_millis(50);
