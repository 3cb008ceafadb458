//! The end of a link: in order, by a goodbye from either side, or broken.

use std::mem;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use ibex_base::sync::Asymmetry;
use ibex_protocol::{
    format::control::{Ask, CloseReason},
    timer::Timer,
};

use super::core::{Core, Phase};
use crate::{
    clock,
    connection::Context,
    endpoint::{send_end::Claim, state::End},
    node::{Undelivered, Warning, What, warn_of},
    session::EndCause,
};

impl Core {
    /// Its sending ends, whoever has their handles, do not end in order.
    pub(crate) fn break_off(&self, reason: CloseReason) {
        let ends = self.senders.values().map(|sender| &sender.end);
        ends.for_each(|end| end.break_off(reason));
    }

    /// Closes every end, in order unless it was broken off, and says goodbye; over at
    /// `deadline`, if there is one, in any case.
    pub(crate) fn begin_close(&mut self, deadline: Option<Instant>, context: &mut Context<'_>) {
        if self.phase != Phase::Up {
            return;
        }
        self.phase = Phase::Closing;
        if let Some(deadline) = deadline {
            self.common.timers.set(Timer::Linger, deadline);
        }
        for sender in self.senders.values_mut() {
            // OVER: from here on no handle gets in.
            sender.end.state.end(End::Cause(EndCause::NodeClosed));
            sender.end.waiters.take(&mut context.wakers);
            sender.is_ending = true;
        }
        for receiver in self.receivers.values() {
            receiver.end.state.end(End::Cause(EndCause::NodeClosed));
            receiver.end.waiters.take(&mut context.wakers);
        }
        self.leaving_until = Some(clock::now() + LEAVING_TIMEOUT);
        self.end_senders();
        // It goes out behind the closes of all senders.
        self.common.session.say_goodbye();
    }

    /// Ends the senders of a link that closes behind their last message. A handle that has got
    /// in before may yet publish one: it is waited for, for as long as nothing but a message
    /// that is being built takes.
    pub(super) fn end_senders(&mut self) {
        let senders = self.senders.iter().filter(|(_, sender)| sender.is_ending);
        let ending: Vec<_> = senders
            .map(|(id, sender)| (id, sender.end.clone()))
            .collect();
        if ending.is_empty() {
            return;
        }
        let claims: Vec<_> = ending.iter().map(|(_, end)| end.claim()).collect();
        // Of all claims at once: who is not seen inside sees OVER.
        Asymmetry::of_process().heavy_here();
        let now = clock::now();
        let is_late = self.leaving_until.is_none_or(|until| until <= now);
        let mut is_busy = false;
        for ((id, _), claim) in ending.iter().zip(claims) {
            if is_late || claim.as_ref().is_some_and(Claim::is_alone) {
                self.end_sender(*id);
            } else {
                is_busy = true;
            }
        }
        if is_busy {
            self.common.timers.set(Timer::Leave, now + LOOK_AGAIN);
        }
    }

    /// Ends the sender behind what is sent by now.
    fn end_sender(&mut self, id: u32) {
        let Some(sender) = self.senders.get_mut(id) else {
            return;
        };
        sender.is_ending = false;
        let last = sender.end.sent.load(Ordering::Acquire);
        if !sender.is_closed {
            let reason = sender.end.parting();
            if reason == CloseReason::Dropped {
                sender.close_in_order(last, &self.common.shared);
            }
            sender.is_closed = true;
            self.common.session.close_sender(id, last, reason);
        }
        if self.local.is_none() && last > sender.end.counts().received {
            self.common.session.ask_last(id, Ask::received(last));
        }
    }

    /// The same for all, whoever is inside: there is no time left.
    fn end_senders_now(&mut self) {
        self.leaving_until = None;
        self.end_senders();
    }

    /// The peer has sent its last frame: what we could send nobody would read.
    pub(super) fn peer_said_goodbye(&mut self, context: &mut Context<'_>) {
        match self.phase {
            Phase::Up => {
                self.receive_local(context);
                if self.phase != Phase::Up {
                    // What came broke the protocol.
                    return;
                }
                if let Some(local) = &mut self.local
                    && local.is_behind()
                {
                    // As long as the peer waits for ours.
                    local.has_goodbye = true;
                    return;
                }
                self.phase = Phase::PeerClosed;
                self.end_all(&EndCause::Goodbye, context);
                for (id, sender) in self.senders.iter_mut() {
                    sender.is_closed = true;
                    let last = sender.end.sent.load(Ordering::Acquire);
                    self.common
                        .session
                        .close_sender(id, last, CloseReason::Dropped);
                }
                self.common.session.say_goodbye();
                self.common
                    .timers
                    .set(Timer::Linger, clock::now() + GOODBYE_TIMEOUT);
            }
            Phase::Closing => {
                // Ours may still wait for credit, and the peer waits for it.
                self.end_senders_now();
                self.phase = Phase::PeerClosed;
                let latest = clock::now() + GOODBYE_TIMEOUT;
                self.common.timers.set_sooner(Timer::Linger, latest);
            }
            Phase::PeerClosed | Phase::Gone => {}
        }
    }

    /// The session cannot go on.
    pub(crate) fn fail(&mut self, why: &str, context: &mut Context<'_>) {
        self.end_broken(EndCause::lost(why), context);
    }

    /// The same, for any cause.
    pub(crate) fn end_broken(&mut self, cause: EndCause, context: &mut Context<'_>) {
        if self.phase == Phase::Up {
            let peer = self.common.shared.peer_in_log();
            warn_of!(
                context.node().warnings,
                Warning::SessionEnded(mem::discriminant(&cause)),
                format_args!("{peer}: {cause}"),
                %peer, why = %cause, "session ended"
            );
        }
        self.receive_rest_of_local(context);
        self.finish_broken(cause, context);
    }

    pub(super) fn finish_broken(&mut self, cause: EndCause, context: &mut Context<'_>) {
        // A peer that has said goodbye had taken over what lies in memory (shm); the last frame to it
        // may be unwritten when it closes the connection.
        self.is_lost = self.phase != Phase::PeerClosed;
        let cause = match self.phase {
            Phase::Closing => EndCause::NodeClosed,
            // It said so before.
            Phase::PeerClosed => EndCause::Goodbye,
            Phase::Up | Phase::Gone => cause,
        };
        self.finish(&cause, context);
    }

    pub(super) fn finish(&mut self, cause: &EndCause, context: &mut Context<'_>) {
        self.end_senders_now();
        self.phase = Phase::Gone;
        self.stop_waiting();
        // First: whoever is told may connect again at once.
        if self.place.take().is_some() {
            let cause = cause.clone();
            self.tell(What::Gone { cause }, context);
        }
        self.end_all(cause, context);
    }

    fn end_all(&mut self, cause: &EndCause, context: &mut Context<'_>) {
        for sender in self.senders.values() {
            sender.end.state.end(End::Cause(cause.clone()));
            sender.end.waiters.take(&mut context.wakers);
        }
        for receiver in self.receivers.values() {
            receiver.end.state.end(End::Cause(cause.clone()));
            receiver.end.waiters.take(&mut context.wakers);
        }
    }

    /// Channels with messages that the peer's engine is not known to hold.
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let all = self.senders.values().chain(self.retained.senders());
        all.filter_map(|sender| {
            let counts = sender.end.counts();
            // shm: publishing is delivery while the peer lives and has what it lies in.
            let received = match &self.local {
                Some(local) if !self.is_lost && !local.holds_back(sender.end.id) => {
                    // What came behind the end that the peer was told nobody takes.
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

/// How long a closing node waits for a thread in the middle of a send.
const LEAVING_TIMEOUT: Duration = Duration::from_secs(1);
/// Until it looks again whether that has left.
const LOOK_AGAIN: Duration = Duration::from_millis(1);
/// How long the answer to a goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
