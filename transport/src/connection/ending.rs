//! The end of a session: in order, by a goodbye from either side, or broken.

use std::mem;
use std::sync::{Arc, atomic::Ordering};
use std::time::{Duration, Instant};

use ibex_base::sync::Asymmetry;
use ibex_protocol::{
    format::control::{CloseReason, received_reason},
    timer::Timer,
};

use super::{
    core::{Common, Core, Phase},
    outages::stop_waiting,
    senders::Senders,
    shared_memory::MOST_PASSED,
};
use crate::{
    clock,
    connection::Context,
    endpoint::{send_end::Claim, state::EndReason},
    node::{Undelivered, Warning, What, warn_of},
    session::EndCause,
    wire::PASSED_PER_TURN,
};

impl Senders {
    /// Breaks the senders off although handles may exist: the channels do not end in order.
    pub(crate) fn break_off(&self, reason: CloseReason) {
        let ends = self.ends.values().map(|sender| &sender.end);
        ends.for_each(|end| end.break_off(reason));
    }

    /// Ends each sender of a closing session after its last message. A handle that is already
    /// inside may still publish a message, so the engine waits for it, up to the time that building
    /// a message takes.
    pub(super) fn end(&mut self, common: &mut Common) {
        let senders = self.ends.iter().filter(|(_, sender)| sender.is_ending);
        let ending: Vec<_> = senders
            .map(|(id, sender)| (id, sender.end.clone()))
            .collect();
        if ending.is_empty() {
            return;
        }
        let claims: Vec<_> = ending.iter().map(|(_, end)| end.claim()).collect();
        // A single heavy barrier serves all claims: a handle that is not seen inside sees OVER.
        Asymmetry::of_process().heavy_here();
        let now = clock::now();
        let is_late = self.leaving_until.is_none_or(|until| until <= now);
        let mut is_busy = false;
        for ((id, _), claim) in ending.iter().zip(claims) {
            if is_late || claim.as_ref().is_some_and(Claim::is_alone) {
                self.end_one(*id, common);
            } else {
                is_busy = true;
            }
        }
        if is_busy {
            common.timers.set(Timer::Leave, now + CHECK_AGAIN);
        }
    }

    /// Ends the sender after the last message that is sent by now.
    fn end_one(&mut self, id: u32, common: &mut Common) {
        let Some(sender) = self.ends.get_mut(id) else {
            return;
        };
        sender.is_ending = false;
        // SENT, pairs with `SendEnd::publish`: the close goes out behind these records.
        let last = sender.end.sent.load(Ordering::Acquire);
        if !sender.is_closed {
            let reason = sender.end.parting();
            if reason == CloseReason::Dropped {
                sender.close_in_order(last);
            }
            sender.is_closed = true;
            common.session.ends.close_sender(id, last, reason);
        }
        if let Some(ask) = sender.end.path.question_of_arrival(&sender.end) {
            common.session.ask_last(id, ask);
        }
    }

    /// Ends all senders, even if a handle is inside, because no time is left.
    fn end_now(&mut self, common: &mut Common) {
        self.leaving_until = None;
        self.end(common);
    }
}

impl Core {
    /// Closes every end, in order unless it was broken off, and sends goodbye, with the `reason` for
    /// which the program ends this session alone. If there is a `deadline`, the session is over by
    /// then in any case. If this is called again, the earliest deadline counts.
    pub(crate) fn begin_close(
        &mut self,
        reason: Option<&str>,
        deadline: Option<Instant>,
        context: &mut Context<'_>,
    ) {
        if let (Phase::Up | Phase::Closing, Some(deadline)) = (self.common.phase, deadline) {
            self.common.timers.set_sooner(Timer::Linger, deadline);
        }
        if self.common.phase != Phase::Up {
            return;
        }
        self.common.phase = Phase::Closing;
        let reason = reason.map(received_reason);
        let cause = self.parting.insert(EndCause::of_close(reason)).clone();
        for sender in self.ends.senders.ends.values_mut() {
            // OVER: from here on no handle can enter.
            let why = EndReason::Cause(cause.clone());
            sender.end.end(why, &mut context.wakers);
            sender.is_ending = true;
        }
        for receiver in self.ends.receivers.ends.values() {
            let why = EndReason::Cause(cause.clone());
            receiver.end.end(why, &mut context.wakers);
        }
        self.ends.senders.leaving_until = Some(clock::now() + LEAVING_TIMEOUT);
        self.ends.senders.end(&mut self.common);
        // The goodbye is sent after the closes of all senders.
        let reason = reason.map(Arc::from);
        self.common.session.outgoing.say_goodbye(reason);
    }

    /// Handles the peer's goodbye, its last frame, which gives this `cause`. The peer will not read
    /// anything that this end could send.
    pub(super) fn peer_sent_goodbye(&mut self, cause: EndCause, context: &mut Context<'_>) {
        match self.common.phase {
            Phase::Up => {
                self.receive_passed(PASSED_PER_TURN, context);
                if self.common.phase != Phase::Up {
                    // An arrived message broke the protocol.
                    return;
                }
                if let Some(shared_memory) = &mut self.shared_memory
                    && shared_memory.is_behind()
                {
                    // The goodbye is handled later; the peer waits for this end's goodbye until
                    // then.
                    shared_memory.goodbye = Some(cause);
                    return;
                }
                self.common.phase = Phase::PeerClosed;
                if let EndCause::EndedByPeer { .. } = &cause {
                    self.log_end(&cause);
                }
                self.ends.end_all(&cause, &mut context.wakers);
                self.parting = Some(cause);
                for (id, sender) in self.ends.senders.ends.iter_mut() {
                    sender.is_closed = true;
                    // SENT, pairs with `SendEnd::publish`.
                    let last = sender.end.sent.load(Ordering::Acquire);
                    self.common
                        .session
                        .ends
                        .close_sender(id, last, CloseReason::Dropped);
                }
                self.common.session.outgoing.say_goodbye(None);
                self.common
                    .timers
                    .set(Timer::Linger, clock::now() + GOODBYE_TIMEOUT);
            }
            Phase::Closing => {
                // This end's goodbye may still wait for credit, and the peer waits for the goodbye.
                self.ends.senders.end_now(&mut self.common);
                self.common.phase = Phase::PeerClosed;
                let latest = clock::now() + GOODBYE_TIMEOUT;
                self.common.timers.set_sooner(Timer::Linger, latest);
            }
            Phase::PeerClosed | Phase::Gone => {}
        }
    }

    /// Ends the session, which cannot go on.
    pub(crate) fn fail(&mut self, why: &str, context: &mut Context<'_>) {
        self.end_broken(EndCause::lost(why), context);
    }

    /// Ends the session, which cannot go on, with `cause`.
    pub(crate) fn end_broken(&mut self, cause: EndCause, context: &mut Context<'_>) {
        if let EndCause::EndedByPeer { .. } = &cause {
            self.log_end(&cause);
        } else if self.common.phase == Phase::Up {
            let peer = self.common.shared.peer_in_log();
            warn_of!(
                context.node.warnings,
                Warning::SessionEnded(mem::discriminant(&cause)),
                format_args!("{peer}: {cause}"),
                %peer, why = %cause, "session ended"
            );
        }
        self.receive_passed(MOST_PASSED, context);
        self.finish_broken(cause, context);
    }

    pub(super) fn finish_broken(&mut self, cause: EndCause, context: &mut Context<'_>) {
        // A peer that has sent its goodbye has taken over the messages in shared memory. The last frame
        // to it may still be unwritten when it closes the connection.
        self.is_lost = self.common.phase != Phase::PeerClosed;
        // After a goodbye, the break of the wire is not what ends the session.
        let cause = self.parting.clone().unwrap_or(cause);
        self.finish(&cause, context);
    }

    /// Ends a session that closes, because no time is left. Data that has arrived is taken in.
    pub(super) fn close_now(&mut self, context: &mut Context<'_>) {
        self.receive_passed(MOST_PASSED, context);
        // A whole node that closes does not stay for its peers.
        let is_alone = matches!(self.parting, Some(EndCause::EndedHere { .. }));
        self.is_cut_short |= is_alone && self.common.phase == Phase::Closing;
        self.finish_in_order(context);
    }

    /// Ends the session after a goodbye of either end.
    pub(super) fn finish_in_order(&mut self, context: &mut Context<'_>) {
        let cause = self.parting.clone().unwrap_or(EndCause::Goodbye);
        self.finish(&cause, context);
    }

    /// Ends the session once both goodbyes are exchanged, so that nothing is missing.
    pub(super) fn finish_if_sent(&mut self, all_is_out: bool, context: &mut Context<'_>) {
        let is_sent = self.common.session.outgoing.sent_goodbye() && all_is_out;
        // If the wire broke, it is unknown whether this end's goodbye has arrived.
        let is_whole = self.broken.is_none();
        if self.common.phase == Phase::PeerClosed && is_sent && is_whole {
            self.finish_in_order(context);
        }
    }

    pub(super) fn finish(&mut self, cause: &EndCause, context: &mut Context<'_>) {
        self.ends.senders.end_now(&mut self.common);
        self.common.phase = Phase::Gone;
        self.common.shared.suspension.set(None);
        self.common.shared.silence.set(None);
        stop_waiting(&mut self.common.timers);
        if let Some(reconnect) = &mut self.reconnect {
            reconnect.dialing = None;
        }
        // The place is given up first, because a listener may connect again at once.
        if self.place.take().is_some() {
            if let EndCause::EndedHere { .. } = cause {
                self.log_end(cause);
            }
            let undelivered = self.undelivered();
            self.common.shared.ending.report(undelivered);
            let cause = cause.clone();
            self.common.tell(What::Gone { cause }, context);
        }
        self.ends.end_all(cause, &mut context.wakers);
        self.alarms.end(&mut context.wakers);
    }

    /// Logs the end of a session that a program has ended, while its node goes on.
    fn log_end(&self, cause: &EndCause) {
        let peer = self.common.shared.peer_in_log();
        tracing::info!(%peer, why = %cause, "session over");
    }

    /// Returns the channels with messages that the peer's engine is not known to hold.
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let all = self
            .ends
            .senders
            .ends
            .values()
            .chain(self.retained.senders());
        all.filter_map(|sender| {
            let counts = sender.end.counts();
            // In shared memory, publishing is delivery while the peer lives and has the memory
            // segments.
            let received = match &self.shared_memory {
                Some(local) if !self.is_lost && !local.holds_back(sender.end.id) => {
                    // The peer ignores messages after the announced end of the channel.
                    sender.ended_at.unwrap_or(counts.sent).max(counts.received)
                }
                _ => counts.received,
            };
            (received < counts.sent).then(|| Undelivered {
                channel: sender.end.name.to_string(),
                peer: self.common.shared.peer_name(),
                sent: counts.sent,
                received,
            })
        })
        .collect()
    }
}

/// Time for which a closing session waits for a thread in the middle of a send.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(1);
/// Interval at which the closing session looks whether that thread has left.
const CHECK_AGAIN: Duration = Duration::from_millis(1);
/// Time that the answer to a goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
