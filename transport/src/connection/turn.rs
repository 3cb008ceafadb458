//! The turn of a connection, which moves frames between its core and its wire.

#[cfg(any(test, feature = "verbs"))]
use std::sync::Arc;
use std::{mem, slice, time::Instant};

use ibex_protocol::{format::record, timer::Timer};

use super::{Connection, context::Context, core::Phase, frames::CoreInTurn, stalls};
use crate::{
    clock,
    session::EndCause,
    wire::{FrameRefusal, Received, Tools, Wire, stream::cause_of},
};
#[cfg(any(test, feature = "verbs"))]
use crate::{
    rdma::RdmaPort,
    wire::{EventOutcome, Stray, WireEvent},
};

impl Connection {
    /// Moves frames between core and wire as far as possible. Returns whether any moved.
    #[inline]
    pub(crate) fn turn(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        // Queued frames are sent before the socket is asked for more: the question costs a system
        // call, and the peer may be waiting. But a large message may wait for an answer that has
        // arrived; it then goes out in one write with the queued frames.
        let is_lone = self.send_lone_record(tools);
        let (mut progress, mut is_due_again) = (is_lone, false);
        if !is_lone {
            let seen = {
                let core = &mut self.core;
                let senders = &mut core.ends.senders;
                senders.poll_rings(&self.wire, &mut core.common.session)
            };
            progress = seen.is_sendable;
            is_due_again = seen.has_large;
        }
        // Behind a lone record the session has nothing more, but a connection is still to take it.
        if !is_due_again && (!is_lone || self.wire.has_backlog()) {
            progress |= self.transmit(tools, context);
        }
        if self.socket.readable
            || self.wire.reads_every_turn()
            || self.has_leftover()
            || !self.core.is_undisturbed()
        {
            let has_received = self.receive(tools, context);
            is_due_again |= has_received;
            progress |= has_received;
        }
        if self.core.common.session.has_events() {
            self.core.handle_events(context);
            is_due_again = true;
        }
        if is_due_again {
            progress |= self.transmit(tools, context);
        }
        self.follow(tools, context);
        progress
    }

    /// Handles the events and sends the frames that a handle's request led to.
    pub(crate) fn settle(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        self.core.handle_events(context);
        self.core.flush_passed(context);
        self.transmit(tools, context);
        self.core.handle_events(context);
        self.follow(tools, context);
    }

    /// Applies the new state of the core to the wire and the socket.
    #[inline(always)]
    pub(super) fn follow(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        if !self.core.retained.is_empty() || self.core.common.is_over() {
            self.follow_up(tools, context);
        }
        let is_over = self.core.common.phase == Phase::Gone && !self.wire.is_parting();
        let is_wanted = self.wire.has_backlog() && !is_over;
        self.socket.watch_writable(is_wanted, &tools.epoll);
    }

    #[inline(never)]
    fn follow_up(&mut self, tools: &mut Tools, context: &mut Context<'_>) {
        let senders = &self.core.ends.senders;
        let is_out = |end, sequence| senders.is_out(end, sequence);
        let counters = &self.core.common.shared.counters;
        let revoked = self.wire.revoke_offers(is_out, counters);
        let in_flight = self.wire.in_flight();
        let retained = &mut self.core.retained;
        // Memory that the peer may still read waits.
        if let Ok(true) = revoked {
            retained.note_in_flight(in_flight.unwrap_or(0));
        }
        retained.free(self.wire.done(), context);
        if let Err(cause) = revoked {
            self.drain_then_end(cause);
        }
        self.core.finish_if_sent(in_flight.is_none(), context);
        if self.core.common.phase != Phase::Gone {
            return;
        }
        if !self.has_let_go {
            self.has_let_go = true;
            if !self.begin_parting(tools, context) {
                self.say_last_word();
                self.socket.close();
            }
            self.shut_wire();
        }
        self.wire.part(&mut self.socket, tools);
    }

    // ---- Sending ---------------------------------------------------------------------

    /// Sends a lone record: one short message in the only hot ring, with nothing to send before or
    /// with it. Returns whether there was one.
    ///
    /// Requests and answers are such records, and their latency matters most. All other records
    /// take the way over `Senders::poll_rings`, which would send a lone record as well.
    #[inline]
    pub(crate) fn send_lone_record(&mut self, tools: &mut Tools) -> bool {
        let core = &mut self.core;
        let &[end] = &core.ends.senders.hot[..] else {
            return false;
        };
        if !core.is_undisturbed() {
            return false;
        }
        let Some(sender) = core.ends.senders.ends.get_mut(end) else {
            return false;
        };
        let Some(ring) = sender.ring.as_mut() else {
            return false;
        };
        let Some((payload, _, size)) = ring.consumer.peek_data() else {
            return false;
        };
        if size > LONE_BYTES || !ring.consumer.is_empty_behind(size) {
            return false;
        }
        // SAFETY: a record begins with its header word, right before the payload. The record is
        // inside the two windows and was published, and no thread writes there until the peer has
        // released it.
        let record =
            unsafe { slice::from_raw_parts(payload.as_ptr().sub(record::HEADER_BYTES), size) };
        let (session, counters) = (&mut core.common.session, &core.common.shared.counters);
        match self.wire.send_lone(end, record, session, counters, tools) {
            Ok(false) => false,
            Ok(true) => {
                ring.pass(size, 1);
                if ring.is_timed {
                    sender.end.was_framed(ring.consumer.read().messages);
                }
                true
            }
            Err(cause) => {
                self.drain_then_end(cause);
                true
            }
        }
    }

    /// Returns whether frames are due or wait to be written, or whether the session is to end once
    /// they are written.
    #[inline]
    pub(crate) fn has_output(&self) -> bool {
        self.core.common.session.is_due()
            || self.wire.has_backlog()
            || self.wire.owes_requests()
            || !self.core.is_undisturbed()
    }

    /// Builds frames and sends them until nothing is due or the wire is full.
    #[inline(always)]
    fn transmit(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        self.has_output() && self.transmit_due(tools, context)
    }

    #[inline(never)]
    fn transmit_due(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        if self.core.common.phase == Phase::Gone || self.core.broken.is_some() {
            return false;
        }
        let core = &mut self.core;
        let mut frames = CoreInTurn { core, context };
        match self.wire.transmit(&self.socket, &mut frames, tools) {
            Ok(progress) => {
                let all_is_out = self.wire.in_flight().is_none();
                self.core.finish_if_sent(all_is_out, context);
                #[cfg(any(test, feature = "verbs"))]
                self.watch_rails();
                progress
            }
            Err(cause) => {
                // Data that arrived before the break is still to be read.
                self.drain_then_end(cause);
                true
            }
        }
    }

    /// Forgets rails that have failed, and watches the time for their last requests.
    #[cfg(any(test, feature = "verbs"))]
    #[inline]
    fn watch_rails(&mut self) {
        let (failed, deadline) = self.wire.failed_rails();
        for rdma_port in failed {
            self.core.common.shared.frame_path.forget_rail(&rdma_port);
        }
        if let Some(deadline) = deadline {
            self.core.common.timers.set_sooner(Timer::Drain, deadline);
        }
    }

    /// Uses the rail with this queue pair no more, because of its port.
    #[cfg(any(test, feature = "verbs"))]
    pub(crate) fn fail_rail(&mut self, rdma_port: &Arc<RdmaPort>, number: u32, why: &str) {
        self.wire.fail_rail(rdma_port, number, why);
        self.watch_rails();
    }

    /// Ends a wire that is unusable: takes in the data that arrived before, then ends the session.
    /// The first cause stays.
    pub(crate) fn drain_then_end(&mut self, cause: EndCause) {
        if self.wire.is_down() {
            // The wire is gone already, for a cause of its own.
            return;
        }
        // The end that this makes is reported as any other, once what has arrived is read. A network
        // that still works would report nothing to a session that nothing else moves.
        if self.wire.is_gone() {
            self.socket.readable = true;
            self.socket.end_reading();
        }
        self.shut_wire();
        self.core.broken.get_or_insert(cause);
    }

    /// Begins to end the wire, which may take time.
    fn shut_wire(&mut self) {
        if let Some(deadline) = self.wire.shut(clock::now(), self.core.common.shared.id) {
            self.core.common.timers.set(Timer::Drain, deadline);
        }
    }

    // ---- Receiving -------------------------------------------------------------------

    /// Takes in frames that have arrived over the wire and hands them on.
    fn receive(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        if self.wire.is_down() {
            let is_notified = mem::take(&mut self.socket.readable);
            return is_notified && self.core.check_process(context);
        }
        if !self.core.is_undisturbed() {
            if self.check_teardown(clock::now(), tools, context) {
                return true;
            }
            if self.wire.is_parting() {
                return self.go_on_with_renewal(tools, context);
            }
        }
        let is_beside = !self.wire.is_gone();
        let core = &mut self.core;
        let mut frames = CoreInTurn { core, context };
        let received = self.wire.receive(&mut self.socket, &mut frames, tools);
        let is_broken = !is_beside && self.core.broken.is_some();
        let cause = match received {
            Received::Nothing => return false,
            Received::Something => return true,
            Received::Drained { any } if !is_broken => return any,
            Received::Drained { .. } | Received::Ended => {
                EndCause::lost("it closed the connection without saying goodbye")
            }
            Received::Renewed => EndCause::lost(
                "it ended the connection as planned, at the age of its max_session_age, to \
                 authenticate this session again",
            ),
            Received::Failed(error) => cause_of("reading from", &error),
            Received::Abandoned(reason) => self.core.peer_has_given_up(reason.as_deref()),
            Received::Strayed => {
                self.core.ends_with_wire |= self.core.broken.is_none();
                EndCause::lost(
                    "it broke the protocol: bytes came over a connection that carries none",
                )
            }
            Received::Refused(fault) => {
                self.frame_is_refused(*fault, tools, context);
                return true;
            }
        };
        // The first cause stays.
        let cause = self.core.broken.take_if(|_| is_broken).unwrap_or(cause);
        if is_beside {
            // The socket would stay readable as long as draining takes.
            self.socket.part(&tools.epoll);
            if self.core.common.phase == Phase::Gone {
                return true;
            }
            self.peer_has_left = true;
        }
        self.wire_broke(cause, tools, context);
        true
    }

    /// Lets the wire take in events that did not come over its socket, and handles the consequences.
    /// Returns whether more may follow: output, or a credit report.
    #[cfg(any(test, feature = "verbs"))]
    #[inline(always)]
    pub(crate) fn hear(
        &mut self,
        changes: WireEvent<'_>,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> Result<bool, Stray> {
        let core = &mut self.core;
        let mut frames = CoreInTurn { core, context };
        match self.wire.hear(changes, &mut frames, tools) {
            EventOutcome::Nothing => return Ok(false),
            EventOutcome::Something => {
                self.watch_rails();
                self.follow(tools, context);
            }
            EventOutcome::Stray => return Err(Stray),
            EventOutcome::Refused(fault) => {
                self.frame_is_refused(*fault, tools, context);
                self.follow(tools, context);
            }
            EventOutcome::Broke(cause) => self.drain_then_end(*cause),
        }
        Ok(true)
    }

    /// Ends the session, or its wire, because of a frame that could not be handed on.
    #[cold]
    #[inline(never)]
    fn frame_is_refused(
        &mut self,
        fault: FrameRefusal,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        match fault {
            FrameRefusal::Damage(damage) => {
                let cause = self.core.note_damage(damage);
                self.wire_broke(cause, tools, context);
            }
            fault => self.core.fail(&fault.to_string(), context),
        }
    }

    /// Returns whether bytes are present that need no read.
    #[inline]
    pub(crate) fn has_leftover(&self) -> bool {
        self.wire.has_leftover() && self.core.common.phase != Phase::Gone
    }

    // ---- Time ------------------------------------------------------------------------

    /// Does the work that was due by `now`, and sends the resulting frames.
    pub(crate) fn expire(&mut self, now: Instant, tools: &mut Tools, context: &mut Context<'_>) {
        let mut any = false;
        while let Some(timer) = self.core.common.timers.poll_expired(now) {
            any = true;
            let core = &mut self.core;
            match timer {
                Timer::Linger => core.close_now(context),
                Timer::Leave => core.ends.senders.end(&mut core.common),
                Timer::Drain => {
                    #[cfg(any(test, feature = "verbs"))]
                    let _ = self.hear(WireEvent::RailsOverdue(now), tools, context);
                    self.check_teardown(now, tools, context);
                }
                Timer::Stall => stalls::check(&mut core.ends, now, &mut core.common, context),
                Timer::Open => core.ends.check_for_openings(now, &mut core.common, context),
                Timer::Pass => core.check_unix(context),
                Timer::Memory => {
                    let receivers = &mut core.ends.receivers;
                    receivers.memory_may_be_there(now, &mut core.common, context);
                }
                Timer::Notice => {
                    if let Some(reconnect) = &mut core.reconnect {
                        reconnect.tell_of_break(true, &core.common, context);
                    }
                }
                Timer::Redial => {
                    if let Some(reconnect) = &mut core.reconnect
                        && self.wire.is_down()
                    {
                        reconnect.redial(core.common.shared.id);
                    }
                }
                Timer::Verdict => core.give_up(context),
                Timer::Alarm => {
                    let timers = &mut core.common.timers;
                    core.alarms.sound(now, timers, &mut context.wakers);
                }
                Timer::Changes => core.ask_for_waiters(now),
                Timer::Age => {
                    if let Some(cause) = core.age_of_wire_is_over()
                        && !self.wire.is_down()
                    {
                        self.renew_wire(cause, tools, context);
                    }
                }
            }
        }
        if any {
            self.settle(tools, context);
        }
    }

    /// Gives back memory that was not used since the last check. Returns whether another check is
    /// worthwhile even if nothing moves.
    pub(crate) fn check_idle(&mut self, tools: &mut Tools, context: &mut Context<'_>) -> bool {
        if self.core.broken.is_some() {
            return false;
        }
        let mut is_awaited = false;
        let mut goes_on = match self.core.common.phase {
            Phase::Up => {
                let core = &mut self.core;
                let shared_memory = core.shared_memory.as_mut();
                let senders = &mut core.ends.senders;
                let common = &mut core.common;
                let goes_on = senders.check_idle(&self.wire, common, shared_memory, context);
                is_awaited = senders.miss_changes();
                if !is_awaited {
                    core.watch_waiters();
                }
                let goes_on = goes_on | core.ends.receivers.check_idle();
                self.core.check_newer_run(context);
                goes_on | self.wire.rest(&self.core.common.shared.counters)
            }
            // A closing session ends as a whole; it is only looked at in case the peer's host stops
            // answering.
            Phase::Closing => false,
            Phase::PeerClosed | Phase::Gone => return false,
        };
        let counters = &self.core.common.shared.counters;
        if let Some(questions) = self.wire.check_for_lost_bytes(counters, is_awaited) {
            goes_on = true;
            if questions > 0 {
                self.core.common.session.outgoing.query(questions);
            }
        }
        goes_on |= self.check_for_answers(tools, context);
        self.settle(tools, context);
        if !goes_on && self.core.common.phase == Phase::Up {
            self.core.rest();
        }
        goes_on
    }
}

/// The longest record that is sent alone.
const LONE_BYTES: usize = 192;
