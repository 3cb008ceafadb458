//! The end of a link: in order, by a goodbye from either side, or broken.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::{Link, Parting, Phase};
use crate::{
    channel::{EndCause, state::End},
    driver::{Context, Tools, Undelivered, What},
    engine::{
        control::{Ask, CloseReason},
        timer::Timer,
    },
};

impl Link {
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
            self.timers.set(Timer::Linger, deadline);
        }
        for (id, sender) in self.senders.iter_mut() {
            sender.end.state.end(End::Cause(EndCause::NodeClosed));
            sender.end.waiters.take(&mut context.wakers);
            if !sender.is_closed {
                sender.is_closed = true;
                let last = sender.end.sent.load(Ordering::Acquire);
                let reason = sender.end.parting();
                if let Some(ours) = sender.end.ours.get()
                    && reason == CloseReason::Dropped
                {
                    ours.close(last);
                    self.shared.ring_peer();
                }
                let reason = self.shared.peer().hears_as(reason);
                self.session.close_sender(id, last, reason);
            }
            let sent = sender.end.sent.load(Ordering::Acquire);
            if self.local.is_none() && sent > sender.end.counts().received {
                self.session.ask(id, Ask::received(sent));
            }
        }
        for receiver in self.receivers.values() {
            receiver.end.state.end(End::Cause(EndCause::NodeClosed));
            receiver.end.waiters.take(&mut context.wakers);
        }
        self.session.say_goodbye();
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
                    && local.lacks_descriptor
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
                    self.session.close_sender(id, last, CloseReason::Dropped);
                }
                self.session.say_goodbye();
                self.timers
                    .set(Timer::Linger, Instant::now() + GOODBYE_TIMEOUT);
            }
            Phase::Closing => {
                // Ours may still wait for credit, and the peer waits for it.
                self.phase = Phase::PeerClosed;
                let latest = Instant::now() + GOODBYE_TIMEOUT;
                self.timers.set_sooner(Timer::Linger, latest);
                self.finish_if_said(context);
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
            tracing::warn!(peer = %self.shared.peer().address, why = %cause, "session ended");
        }
        // Descriptors that the peer passed before it went are still to be had.
        self.receive_local(context);
        self.finish_broken(cause, context);
    }

    pub(super) fn finish_broken(&mut self, cause: EndCause, context: &mut Context<'_>) {
        self.is_lost = true;
        let cause = match self.phase {
            Phase::Closing => EndCause::NodeClosed,
            _ => cause,
        };
        self.finish(&cause, context);
    }

    pub(super) fn finish(&mut self, cause: &EndCause, context: &mut Context<'_>) {
        self.phase = Phase::Gone;
        self.stop_waiting();
        // First: whoever is told may connect again at once.
        if self.place.take().is_some() {
            let cause = cause.clone();
            self.tell(What::Gone { cause }, context);
        }
        self.end_all(cause, context);
        self.say_last_word(cause);
        let _ = self.tcp.shutdown(std::net::Shutdown::Both);
        self.leave_pair();
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

    /// Our goodbye is out and so is the peer's: nothing is missing.
    pub(super) fn finish_if_said(&mut self, context: &mut Context<'_>) {
        let done = self.session.said_goodbye() && self.wires.in_flight().is_none();
        if self.phase == Phase::PeerClosed && done {
            self.finish(&EndCause::Goodbye, context);
        }
    }

    /// Does what was to be done by `now`, and lets out what follows.
    pub(crate) fn expire(&mut self, now: Instant, tools: &mut Tools, context: &mut Context<'_>) {
        let mut any = false;
        while let Some(timer) = self.timers.poll_expired(now) {
            any = true;
            match timer {
                Timer::Linger => self.finish(&EndCause::Goodbye, context),
                Timer::Drain => {
                    self.look_at_teardown(now, tools, context);
                }
                Timer::Stall => self.look_for_stalls(now, context),
                Timer::Open => self.look_for_openings(now, context),
                Timer::Pass => self.look_at_unix(context),
                Timer::Notice => self.tell_of_break(context),
                Timer::Redial => self.redial(context),
                Timer::Verdict => self.give_up(context),
            }
        }
        if any {
            self.settle(tools, context);
        }
    }

    /// Channels with messages that the peer's engine is not known to hold.
    pub(crate) fn undelivered(&self) -> Vec<Undelivered> {
        let parting = self.parting.iter().filter_map(Parting::sender);
        let all = self.senders.values().chain(parting);
        all.filter_map(|sender| {
            let counts = sender.end.counts();
            // shm: publishing is delivery while the peer lives and has what it lies in.
            let received = match &self.local {
                Some(local) if !self.is_lost && !local.holds_back(sender.end.id) => counts.sent,
                _ => counts.received,
            };
            (received < counts.sent).then(|| Undelivered {
                channel: sender.end.name.to_string(),
                peer: self.shared.peer_name(),
                sent: counts.sent,
                received,
            })
        })
        .collect()
    }
}

/// How long the answer to a goodbye may take.
const GOODBYE_TIMEOUT: Duration = Duration::from_secs(1);
