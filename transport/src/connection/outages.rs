//! A session without a wire, until another comes or it is known that none will.
//!
//! Rules:
//!
//! 1. A broken connection proves nothing about the peer. The end that dialed dials again, with
//!    growing pauses; the other end waits to be dialed.
//! 2. The session is over when the peer is known to be gone: its process has ended, it answers that
//!    it has no such session, or it was restarted. The session is also over when the peer's host
//!    has refused every dial for `peer_gone_after`, because no process listens there. Otherwise it
//!    is over when `session_timeout` has passed. A peer that comes later is refused.
//! 3. A wire over which nothing gets through does not end an outage, even if the peer answers, for
//!    example if bytes are damaged every time. The pauses keep growing, and `session_timeout`
//!    counts from the first break since which nothing got through.
//! 4. Wires have growing numbers, *epochs*. Data of an older epoch is ignored.
//! 5. A session may be without a connection for as long, in all, as it had one. After that it still
//!    waits, but another session of its node may take its place ([`HeldPlace`]).
//! 6. Listeners to events are not notified of a break that is over within [`GRACE`], unless the session
//!    continues: most such breaks come from the end of a process.

use std::{
    mem,
    time::{Duration, Instant},
};

use ibex_base::Counted;
use ibex_protocol::{
    format::frame_check::DamagedFrame,
    timer::{Timer, TimerTable},
};

use super::{
    context::Context,
    core::{Common, Core, Phase},
    dialer::Attempt,
    newer_run::NewerRun,
    outage::Outage,
    peer_process::PeerProcess,
    reconnect::Reconnect,
};
use crate::{
    clock,
    node::{Warning, What, warn_of},
    session::{EndCause, HeldPlace},
    wire::FrameRefusal,
};

impl Core {
    /// Returns whether the wire broke and the session has not continued yet.
    pub(crate) fn is_broken_off(&self) -> bool {
        self.outage().is_some()
    }

    pub(super) fn outage(&self) -> Option<&Outage> {
        self.reconnect.as_ref()?.outage.as_ref()
    }

    /// Notes that the session has no wire from now on, and the cause. Returns whether the session
    /// can continue.
    pub(super) fn begin_outage(
        &mut self,
        cause: EndCause,
        had_device: bool,
        context: &mut Context<'_>,
    ) -> bool {
        self.broken = None;
        self.common.timers.clear(Timer::Age);
        self.common.shared.counters.credit_is_there();
        self.retained.free(u64::MAX, context);
        let (progress, is_under_way) = (
            self.common.session.progress(),
            self.common.session.ends.is_under_way(),
        );
        for sender in self.ends.senders.ends.values_mut() {
            sender.large_is_sent_again();
        }
        self.common.session.suspend();
        if had_device {
            self.ends.receivers.lose_device(&mut self.common, context);
        }
        let Some(reconnect) = &mut self.reconnect else {
            return false;
        };
        let now = clock::now();
        let found_damage = mem::take(&mut reconnect.found_damage);
        if let Some(outage) = &mut reconnect.outage {
            outage.is_stuck |= found_damage;
            outage.attempt_failed(cause.why().to_string(), false, now);
            reconnect.dial_later(now, &mut self.common.timers);
            reconnect.show_outage(&self.common);
            return true;
        }
        self.common.shared.counters.suspensions.add(1);
        let process = PeerProcess::find(reconnect.terms.process);
        let has_ended = matches!(process, PeerProcess::Ended);
        let runs_anew = reconnect.newer_run.is_some();
        let timeout = context.node.session_timeout();
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
        reconnect.lead += now.duration_since(reconnect.connected_since);
        let keeps_until = now.checked_add(reconnect.lead);
        if let (Some(place), Some(keeps_until)) = (&self.place, keeps_until) {
            place.suspended(keeps_until);
        }
        if has_ended {
            self.is_certainly_gone(PROCESS_HAS_ENDED, context);
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
        if let Some(reconnect) = &mut self.reconnect {
            reconnect.dial_later(now, &mut self.common.timers);
            reconnect.show_outage(&self.common);
        }
        true
    }

    /// Notes that the peer has come as another process. A working session continues all the same,
    /// because two running processes may have been given the same identity. `newest` is the peer in
    /// its newest run.
    pub(crate) fn peer_runs_anew(&mut self, newest: &str, context: &mut Context<'_>) {
        if self.is_broken_off() {
            self.is_certainly_gone(RUNS_ANEW, context);
        } else if let Some(reconnect) = &mut self.reconnect {
            let newest = || NewerRun::new(newest.to_owned());
            reconnect.newer_run.get_or_insert_with(newest);
        }
    }

    /// Notes that the peer has given the session up, for the `reason` for which its program ended
    /// it, if it did. The peer says so beside the wire, which may still hold frames. Returns the cause
    /// with which the session ends once these frames are taken in.
    pub(super) fn peer_has_given_up(&mut self, reason: Option<&str>) -> EndCause {
        self.ends_with_wire = true;
        let before = self.broken.take();
        if reason.is_some() {
            return EndCause::of_goodbye(reason);
        }
        let why = match before {
            Some(EndCause::PeerGone { why: before, .. }) => format!("{before}, and {GIVEN_UP}"),
            _ => GIVEN_UP.to_owned(),
        };
        EndCause::PeerGone { why, certain: true }
    }

    /// Ends the session, because another session of this node has its place now. Does nothing if the
    /// peer has come back meanwhile.
    pub(crate) fn lost_place(&mut self, context: &mut Context<'_>) {
        if let Some(outage) = self.outage() {
            let why = format!("{}, and {LOST_PLACE}", outage.cause.why());
            self.end_broken(EndCause::lost(why), context);
        }
    }

    /// Ends the session, because its peer cannot come back.
    pub(crate) fn is_certainly_gone(&mut self, why: &str, context: &mut Context<'_>) {
        if self.common.phase == Phase::Gone {
            return;
        }
        let outage = self.outage();
        let advice = outage.map_or_else(String::new, |outage| advice(outage, &self.common));
        let why = match outage.map(|outage| &outage.cause) {
            Some(EndCause::PeerGone { why: before, .. }) if advice.is_empty() => {
                format!("{before}, and {why}")
            }
            _ => format!("{why}{advice}"),
        };
        self.end_broken(EndCause::PeerGone { why, certain: true }, context);
    }

    /// Ends the session, because the peer's host has refused every dial for this long.
    pub(super) fn is_refused_for(&mut self, refused: Duration, context: &mut Context<'_>) {
        let Some(outage) = self.outage() else {
            return;
        };
        let before = outage.cause.why();
        let failure = outage.last_failure();
        let limit = context.node.peer_gone_after();
        let why = format!(
            "{before}, and its host has refused connections for {refused:.1?}, longer than \
             peer_gone_after ({limit:?}): no process listens there{failure}"
        );
        self.end_broken(EndCause::lost(why), context);
    }

    /// Counts a frame that was damaged on the way. No later data of this wire can be trusted; the
    /// data that was handed on before was intact. The peer sends everything after that again over
    /// another wire. Returns the cause with which the wire ends.
    #[cold]
    pub(super) fn note_damage(&mut self, damage: DamagedFrame) -> EndCause {
        let errors = &self.common.shared.counters.checksum_errors;
        errors.add(1);
        self.common.session.outgoing.found_damage();
        if let Some(reconnect) = &mut self.reconnect {
            reconnect.found_damage = true;
        }
        let what_next = match self.reconnect {
            Some(_) => "the session goes on over a new connection, and nothing is lost",
            None => "the session cannot go on over a new connection",
        };
        if errors.get().is_power_of_two() {
            ibex_base::warn_limited!(
                damage,
                peer = %self.common.shared.peer().address, %damage, so_far = errors.get(),
                "bytes were damaged on the way from a peer; {what_next}"
            );
        }
        let why = format!("{}; {what_next}", FrameRefusal::Damage(damage));
        let cause = self.broken.take();
        cause.unwrap_or_else(|| EndCause::lost(why))
    }

    /// Checks in a turn of a session without a wire whether the peer's process has ended.
    pub(super) fn check_process(&mut self, context: &mut Context<'_>) -> bool {
        let has_ended = self.outage().is_some_and(|one| one.process.has_ended());
        if has_ended {
            self.is_certainly_gone(PROCESS_HAS_ENDED, context);
        }
        has_ended
    }

    /// Returns the cause with which a wire ends that has reached the greatest age that the node
    /// allows, if the wire is in use.
    pub(super) fn age_of_wire_is_over(&self) -> Option<EndCause> {
        let age = self.reconnect.as_ref()?.terms.max_age?;
        let why = || {
            format!(
                "it was authenticated {age:?} ago, which is max_session_age, and has to be again"
            )
        };
        self.is_undisturbed().then(|| EndCause::lost(why()))
    }

    // ---- Time ------------------------------------------------------------------------

    /// Ends the session, because the peer did not come back in time.
    pub(super) fn give_up(&mut self, context: &mut Context<'_>) {
        let timeout = context.node.session_timeout();
        let Some(outage) = self.outage() else {
            return;
        };
        let before = outage.cause.why();
        let failure = outage.last_failure();
        let why = match outage.breaks {
            1 => format!("{before}, and it did not come back within {timeout:?}{failure}"),
            _ => format!(
                "nothing got through for {timeout:?}{}",
                advice(outage, &self.common)
            ),
        };
        self.end_broken(EndCause::lost(why), context);
    }
}

impl Reconnect {
    /// Sets the time at which the wire is replaced by another, over which both ends authenticate
    /// each other again.
    pub(super) fn limit_age_of_wire(&self, timers: &mut TimerTable) {
        let due = self.terms.max_age;
        if let Some(due) = due.and_then(|age| clock::now().checked_add(age)) {
            timers.set(Timer::Age, due);
        }
    }

    /// Returns whether this end dials when the wire breaks.
    pub(crate) fn dials(&self) -> bool {
        self.terms.redial.is_some()
    }

    /// Returns whether the session has that name.
    pub(crate) fn is_named(&self, session: &[u8; 16]) -> bool {
        self.terms.session == *session
    }

    /// Begins a dial of the peer.
    pub(super) fn redial(&mut self, session: u64) {
        if let Some(outage) = &self.outage
            && let Some(redial) = &self.terms.redial
        {
            self.dialed = self.dialed.max(self.epoch) + 1;
            let broken_for = clock::now().duration_since(outage.stuck_since);
            let attempt = Attempt {
                epoch: self.dialed,
                fabric: self.terms.ways.wanted(broken_for, self.fabric),
            };
            self.dialing = Some(redial.begin(session, attempt));
        }
    }

    /// Schedules a dial of the peer if this end is the one that dials: at once at first, then with
    /// pauses.
    pub(super) fn dial_later(&mut self, now: Instant, timers: &mut TimerTable) {
        if let Some(outage) = &mut self.outage
            && self.terms.redial.is_some()
        {
            let broken_for = now.duration_since(outage.stuck_since);
            let pause = self.terms.ways.shorten(outage.pause(), broken_for);
            outage.attempts += 1;
            timers.set(Timer::Redial, now + pause);
        }
    }

    /// Shows to all who report what the outage holds up since when it lasts, why, and what this
    /// end does about it.
    pub(super) fn show_outage(&self, common: &Common) {
        let shared = &common.shared;
        let timeout = shared.node.session_timeout();
        let account = |outage: &Outage| outage.account(shared.peer_name(), self.dials(), timeout);
        shared.suspension.set(self.outage.as_ref().map(account));
    }

    /// Reports that the session is suspended, because [`GRACE`] has passed or the session goes on.
    /// Only a break that lasts is a warning.
    pub(super) fn tell_of_break(
        &mut self,
        lasts: bool,
        common: &Common,
        context: &mut Context<'_>,
    ) {
        let Some(outage) = &mut self.outage else {
            return;
        };
        if !mem::replace(&mut outage.is_notified, true) {
            let shared = &common.shared;
            let peer = shared.peer_in_log();
            match shared.suspension() {
                Some(account) if lasts => warn_of!(
                    shared.node.warnings,
                    Warning::Suspended,
                    account,
                    %peer, %account, "a session is suspended"
                ),
                _ => tracing::info!(
                    %peer, why = %outage.cause.why(), "a session has lost its connection"
                ),
            }
            let what = What::Suspended {
                cause: outage.cause.clone(),
                since: outage.since,
            };
            common.tell(what, context);
        }
    }

    /// Notes how often the peer found damage in bytes that this end had sent.
    pub(super) fn peer_found_damage(&mut self, times: u64, common: &Common) {
        let errors = &common.shared.counters.checksum_errors_at_peer;
        if !errors.raise(times) {
            return;
        }
        if times.is_power_of_two() {
            ibex_base::warn_limited!(
                common.shared.peer().address,
                peer = %common.shared.peer().address, so_far = times,
                "the peer found bytes damaged that this end had sent; the session goes on over a \
                 new connection, and nothing is lost"
            );
        }
        if let Some(outage) = &mut self.outage {
            outage.is_stuck = true;
            if mem::replace(&mut outage.received_damage, true) {
                return;
            }
            outage.add_to_cause(&format!(
                "; it found bytes damaged that this end had sent (times so far: {times})"
            ));
            self.show_outage(common);
        }
    }

    /// Ends the outage: both ends know what the other has received, and the session continues.
    pub(super) fn goes_on(
        &mut self,
        replayed: u64,
        place: Option<&dyn HeldPlace>,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        self.tell_of_break(false, common, context);
        let now = clock::now();
        let outage = self.outage.take();
        self.dialing = None;
        self.show_outage(common);
        self.past = outage.as_ref().and_then(|outage| outage.past(now));
        self.connected_since = now;
        if let Some(place) = place {
            place.resumed();
        }
        stop_waiting(&mut common.timers);
        let (suspended, cause) = match outage {
            Some(outage) => {
                let failure = outage.last_failure();
                (
                    now.duration_since(outage.since),
                    format!("{}{failure}", outage.cause.why()),
                )
            }
            None => (Duration::ZERO, String::new()),
        };
        self.lead = self.lead.saturating_sub(suspended);
        common.shared.counters.resumes.add(1);
        common.shared.counters.replayed.add(replayed);
        tracing::info!(
            peer = %common.shared.peer_in_log(), ?suspended, replayed,
            "a session goes on over a new connection"
        );
        let what = What::Resumed {
            suspended,
            replayed,
        };
        common.tell(what, context);
        self.tell_of_fabric(cause, common, context);
    }

    /// Reports that the session continues over another fabric, if it does.
    fn tell_of_fabric(&mut self, reason: String, common: &Common, context: &mut Context<'_>) {
        let to = common.shared.fabric();
        let from = mem::replace(&mut self.fabric, to);
        if from != to {
            let peer = common.shared.peer_in_log();
            tracing::info!(%peer, %from, %to, %reason, "a session has changed its fabric");
            common.tell(What::FabricChanged { from, to, reason }, context);
        }
    }
}

/// Returns, as the end of a sentence, where to look for the cause of damaged or missing bytes.
fn advice(outage: &Outage, common: &Common) -> String {
    if outage.breaks <= 1 {
        return String::new();
    }
    if let EndCause::Refused { why } | EndCause::DeviceLost { why } = &outage.cause {
        // The network is not the reason.
        let breaks = outage.breaks;
        return format!("; {breaks} connections broke in a row (the last: {why})");
    }
    let counters = &common.shared.counters;
    let (here, there) = (
        counters.checksum_errors.get(),
        counters.checksum_errors_at_peer.get(),
    );
    let peer = common.shared.peer().address;
    let between = match common.address {
        Some(local) => format!("between {local} and {peer}"),
        None => format!("on the way to {peer}"),
    };
    let damage = match (here, there) {
        (0, 0) => format!(" (the last: {})", outage.cause.why()),
        _ => format!(
            ", and bytes were damaged, {} on their way here and {} on their way to the peer",
            Counted(here, "time"),
            Counted(there, "time")
        ),
    };
    format!(
        "; {} connections {between} broke in a row{damage}: check the network path, its network \
         cards, and whatever passes connections on or changes them",
        outage.breaks
    )
}

/// Stops waiting for another wire.
pub(super) fn stop_waiting(timers: &mut TimerTable) {
    for timer in [Timer::Notice, Timer::Redial, Timer::Verdict] {
        timers.clear(timer);
    }
}

/// Reason why a peer cannot come back if its process is known.
const PROCESS_HAS_ENDED: &str = "its process has ended";
/// Reason why a peer cannot come back if it has come as another process.
const RUNS_ANEW: &str = "it runs anew";
/// Reason why a session does not wait for its peer any more.
const LOST_PLACE: &str = "a session of another peer has taken its place: the node has as many \
                          sessions as its max_node_sessions allows, and this one was without a \
                          connection for longer than it had one";
/// Reason why a peer does not come back if it has sent that.
pub(super) const GIVEN_UP: &str = "it has given the session up";
/// Time within which a break is likely to come from the end of a process.
const GRACE: Duration = Duration::from_millis(50);
