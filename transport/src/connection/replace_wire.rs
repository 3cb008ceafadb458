//! Replacing a connection's broken wire with another.

use std::{
    io, mem,
    sync::Arc,
    time::{Duration, Instant},
};

use ibex_protocol::session::is_newer_epoch;

use super::{
    Connection, Core, Reconnect, RedialError, context::Context, core::Phase, new_wire::NewWire,
    senders::SenderState,
};
use crate::{
    clock,
    session::{EndCause, Suspension},
    wire::{
        LastWord, Received, Shut, Tools, Unanswered, Wire, WireSocket, WireStart, stream::Parting,
    },
};

impl Connection {
    /// Suspends the session until it gets another wire, if it can continue; otherwise ends it. Data
    /// that had arrived is taken in first.
    pub(super) fn wire_broke(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        if !self.wire.is_gone() {
            // The session is neither suspended nor ended while data can still arrive.
            return self.drain_then_end(cause);
        }
        if self.core.common.may_go_on() && self.core.reconnect.is_some() {
            self.suspend(cause, tools, context);
        } else {
            self.core.end_broken(cause, context);
        }
    }

    /// Checks whether the peer's kernel answers; if it has not for `notice_timeout`, the peer
    /// counts as unreachable. Returns whether another check is due.
    ///
    /// Only the time between checks counts: under `Driver::Caller` there may be no check for long,
    /// and then an old answer means nothing.
    pub(super) fn check_for_answers(
        &mut self,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        if self.wire.is_down() {
            return false;
        }
        let unanswered = self.note_answers();
        let Some(reconnect) = &mut self.core.reconnect else {
            return false;
        };
        let Some(Unanswered::Owed { silent_for, .. }) = unanswered else {
            reconnect.unanswered_since = None;
            return unanswered.is_some();
        };
        let now = clock::now();
        let looked_for = match reconnect.unanswered_since {
            Some(since) if silent_for >= now.duration_since(since) => now.duration_since(since),
            _ => {
                reconnect.unanswered_since = Some(now);
                Duration::ZERO
            }
        };
        if looked_for >= context.node.notice_timeout() {
            let why = format!("its host has not answered for {silent_for:?}");
            self.wire_broke(EndCause::lost(why), tools, context);
        }
        true
    }

    /// Shows to all who report a wait whether the peer's kernel is overdue with an answer. Returns
    /// what the peer's kernel has to answer.
    pub(crate) fn note_answers(&self) -> Option<Unanswered> {
        let reconnect = self.core.reconnect.as_ref()?;
        let unanswered = match self.wire.is_down() {
            true => None,
            false => self.socket.unanswered(),
        };
        let shared = &self.core.common.shared;
        let silence = match unanswered {
            Some(Unanswered::Owed {
                silent_for,
                is_overdue: true,
            }) => Some(silent_for),
            _ => None,
        };
        shared.silence.set(silence.map(|silent_for| {
            Suspension::of_silence(shared.peer_name(), silent_for, reconnect.dials())
        }));
        unanswered
    }

    /// Gives up the wire and waits for another.
    fn suspend(&mut self, cause: EndCause, tools: &mut Tools, context: &mut Context<'_>) {
        self.socket.part(&tools.epoll);
        self.socket.close();
        self.socket.readable = false;
        let before = mem::take(&mut self.wire);
        debug_assert!(before.is_gone(), "a wire over a device is destroyed before");
        let had_device = before.belongs_to_port();
        if had_device {
            // Its memory is registered.
            context.leave(before);
        }
        self.has_left_device |= had_device;
        let outage = match self.core.begin_outage(cause, had_device, context) {
            true => self.core.outage(),
            false => None,
        };
        if let Some(process) = outage.and_then(|one| one.process.descriptor()) {
            // A process that epoll cannot watch is checked when something else happens.
            let _ = self.socket.watch_in_place(process, &tools.epoll);
        }
    }

    /// Tells the peer that the session is over, because it would otherwise wait for this end to
    /// come back, or not hear why this program has ended it. Does nothing if that cannot be sent at
    /// once, or if a goodbye has said it before. A goodbye that a device was given may be flushed.
    pub(super) fn say_last_word(&mut self) {
        let core = &self.core;
        let outgoing = &core.common.session.outgoing;
        let reason = outgoing.reason().filter(|_| core.is_cut_short).cloned();
        let is_said = outgoing.sent_goodbye() && (reason.is_none() || self.wire.is_gone());
        if !is_said && (reason.is_some() || core.reconnect.is_some()) {
            let word = LastWord::Abandoned(reason);
            self.wire.say_last_word(&self.socket, word);
        }
    }

    /// Begins to tell the peer why this program has ended the session, if no time was left to send
    /// everything before that. Returns whether the wire stays for that.
    pub(super) fn begin_parting(&mut self, tools: &mut Tools, context: &Context<'_>) -> bool {
        let place = &context.node.partings;
        // Besides these, the node itself holds one.
        let has_place = Arc::strong_count(place) <= MOST_PARTINGS;
        if !self.core.is_cut_short || self.core.broken.is_some() || !has_place {
            return false;
        }
        let until = clock::now() + PARTING_TIMEOUT;
        let parting = Parting::new(until, Some(place.clone()));
        let outgoing = &mut self.core.common.session.outgoing;
        self.wire.begin_parting(Some(outgoing), parting, tools)
    }

    /// Ends a wire that works, because another is to take its place. The peer hears that behind the
    /// frames that were begun, and has to close its end first: a kernel that gets bytes for a closed
    /// connection resets it, and with it what the peer has not read.
    pub(super) fn renew_wire(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        let parting = Parting::new(clock::now() + PARTING_TIMEOUT, None);
        if self.wire.begin_parting(None, parting, tools) {
            self.drain_then_end(cause);
            self.go_on_with_renewal(tools, context);
        } else {
            self.wire.say_last_word(&self.socket, LastWord::Renewed);
            self.wire_broke(cause, tools, context);
        }
    }

    /// Goes on with a renewal. Returns whether the old wire is gone.
    pub(super) fn go_on_with_renewal(
        &mut self,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        if self.core.common.phase == Phase::Gone {
            return false;
        }
        self.wire.part(&mut self.socket, tools);
        let is_gone = !self.wire.is_parting();
        if is_gone {
            self.wire_is_drained(tools, context);
        }
        is_gone
    }

    /// Notes that a dial gave no wire: dials again later, or ends the session.
    pub(crate) fn redial_ended(
        &mut self,
        epoch: u64,
        error: RedialError,
        context: &mut Context<'_>,
    ) {
        match error {
            RedialError::NotYet(why) => drop(self.attempt_failed(epoch, why, false)),
            RedialError::NoSession(why) => self.core.is_certainly_gone(&why, context),
            RedialError::Refused(why) => {
                let refused = self.attempt_failed(epoch, why, true);
                if let Some(refused) = refused
                    && refused >= context.node.peer_gone_after()
                {
                    self.core.is_refused_for(refused, context);
                }
            }
        }
    }

    /// Notes that a dial failed, and dials again later.
    pub(crate) fn redial_failed(&mut self, epoch: u64, why: &str) {
        self.attempt_failed(epoch, why.to_owned(), false);
    }

    /// Notes that a dial failed, and dials again later. Returns for how long the peer's host has
    /// refused every attempt, if it refused this one.
    fn attempt_failed(&mut self, epoch: u64, why: String, is_refusal: bool) -> Option<Duration> {
        let is_down = self.wire.is_down();
        let Core {
            common, reconnect, ..
        } = &mut self.core;
        let reconnect = reconnect.as_mut()?;
        let is_current = is_down && reconnect.dialed == epoch;
        let outage = reconnect.outage.as_mut().filter(|_| is_current)?;
        let (peer, now) = (common.shared.peer_in_log(), clock::now());
        tracing::debug!(%peer, why, attempts = outage.attempts, "no new connection yet");
        let refused = outage.attempt_failed(why, is_refusal, now);
        reconnect.dialing = None;
        reconnect.dial_later(now, &mut common.timers);
        reconnect.show_outage(common);
        refused
    }

    // ---- Another wire ----------------------------------------------------------------

    /// Continues over another wire. Returns whether the session took the wire; it refuses a late
    /// one.
    pub(crate) fn take_wire(
        &mut self,
        new: NewWire,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> io::Result<bool> {
        // A peer that has sent its goodbye and comes again waits for this end's goodbye.
        let goes_on = self.core.common.phase != Phase::Gone;
        let reconnect = self.core.reconnect.as_mut().filter(|_| goes_on);
        let is_newer = |one: &&mut Box<Reconnect>| {
            let next = one.next.as_ref().map_or(0, |next| next.epoch);
            is_newer_epoch(new.epoch, one.epoch.max(next))
        };
        let Some(reconnect) = reconnect.filter(is_newer) else {
            context.leave(new);
            return Ok(false);
        };
        // The peer knows the session's secret, so it is the process that has the session.
        reconnect.newer_run = None;
        if !self.wire.is_down() {
            // The peer has noticed the break first. It sends again what was in flight to this end.
            let mut cause = EndCause::lost("it has lost the connection, and made another");
            if self.wire.is_parting() {
                // The peer has left the old wire.
                self.wire.destroy();
                cause = self.core.broken.take().unwrap_or(cause);
            }
            if !self.wire.is_gone() {
                if let Some(before) = reconnect.next.replace(Box::new(new)) {
                    context.leave(before);
                }
                self.drain_then_end(cause);
                return Ok(false);
            }
            self.suspend(cause, tools, context);
        }
        if self.core.common.phase == Phase::Gone {
            context.leave(new);
            return Ok(false);
        }
        let path = &self.core.common.shared.frame_path;
        let senders = self.core.ends.senders.ends.values_mut();
        let memory = senders.map(SenderState::memory);
        let taken = new.parts.take_memory(path, memory, &mut context.leftovers);
        if let Err(why) = taken {
            self.redial_failed(new.epoch, &why);
            context.leave(new);
            return Ok(false);
        }
        self.begin_again(new, tools, context)?;
        Ok(true)
    }

    fn begin_again(
        &mut self,
        new: NewWire,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let NewWire { epoch, parts, .. } = new;
        let core = &mut self.core;
        let shared = &core.common.shared;
        parts.take_path(&shared.frame_path);
        let start = WireStart {
            parts,
            session: shared.id,
            data_path: shared.data_path(),
            payload_checksums: shared.payload_checksums(),
            resumes: true,
        };
        let (wire, socket, terms) = match start.begin(tools) {
            Ok(begun) => begun,
            Err(refused) => {
                context.leave(refused.pair);
                return Err(refused.error);
            }
        };
        if let Some(reconnect) = &mut core.reconnect {
            reconnect.epoch = epoch;
            reconnect.unanswered_since = None;
            let outage = reconnect.outage.as_ref();
            if let Some(process) = outage.and_then(|one| one.process.descriptor()) {
                WireSocket::stop_watching(process, &tools.epoll);
            }
        }
        core.common.address = socket.stream().local_addr().ok().map(Into::into);
        core.ends_with_wire = false;
        self.peer_has_left = false;
        self.socket = socket;
        self.wire = wire;
        self.socket.join(tools)?;
        self.core.common.session.resume(terms);
        if let Some(reconnect) = &self.core.reconnect {
            reconnect.limit_age_of_wire(&mut self.core.common.timers);
        }
        Ok(())
    }

    // ---- A wire that takes a while to end --------------------------------------------

    /// Ends a wire that is drained, and then ends or suspends the session that waited for that.
    /// Returns whether it did.
    pub(super) fn check_teardown(
        &mut self,
        now: Instant,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        match self.wire.poll_shut(now) {
            Shut::No | Shut::Draining => return false,
            Shut::Done { gave_up: None } => {}
            Shut::Done {
                gave_up: Some(reason),
            } => tracing::debug!(
                peer = %self.core.common.shared.peer_in_log(),
                reason,
                "a wire is destroyed before it was drained"
            ),
        }
        self.wire_is_drained(tools, context);
        true
    }

    /// Gives up a wire over which no more data will arrive.
    pub(crate) fn lose_wire(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        if self.core.common.phase == Phase::Gone || self.core.reconnect.is_none() {
            return self.core.end_broken(cause, context);
        }
        self.drain_then_end(cause);
        if !self.wire.is_down() {
            self.wire_is_drained(tools, context);
        }
    }

    /// Destroys the wire, over which no more data can arrive.
    fn wire_is_drained(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        self.wire.destroy();
        let core = &mut self.core;
        core.retained.note_in_flight(0);
        core.retained.free(u64::MAX, context);
        core.withdraw_grants(context);
        if core.common.phase == Phase::Gone {
            return;
        }
        // The device may have reported the loss of the other end before the peer's last word was
        // read.
        if let Received::Abandoned(reason) = self.wire.hear_last_word(&self.socket) {
            core.broken = Some(core.peer_has_given_up(reason.as_deref()));
        }
        let ends_here = core.ends_with_wire;
        let is_awaited = !self.peer_has_left && !ends_here && core.reconnect.is_some();
        match core.broken.take() {
            // The peer's goodbye arrived, and the peer still waits for this end's goodbye.
            Some(cause) if core.common.phase == Phase::PeerClosed && is_awaited => {
                self.suspend(cause, tools, context);
            }
            // This end's goodbye cannot be delivered any more.
            _ if core.common.phase == Phase::PeerClosed => core.finish_in_order(context),
            Some(cause) if ends_here => core.end_broken(cause, context),
            Some(cause) => self.wire_broke(cause, tools, context),
            None => core.finish_in_order(context),
        }
    }
}

/// Most connections of a node that stay behind their sessions. A program may end sessions faster than
/// their peers read.
const MOST_PARTINGS: usize = 64;
/// Time that a peer has to take in the end of a connection that this end has ended.
const PARTING_TIMEOUT: Duration = Duration::from_secs(10);
