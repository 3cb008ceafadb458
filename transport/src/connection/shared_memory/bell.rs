//! Rings of a peer over shared memory, for ends that have armed and for questions of the peer's
//! senders.

use ibex_protocol::timer::Timer;
use ibex_ring::parking::Wakers;

use crate::{
    clock,
    connection::{
        Context,
        core::{Common, Core},
        receivers::Receivers,
    },
    endpoint::stall::NOTICE,
    session::EndCause,
    shared_memory::BellRead,
    wire::Tools,
};

impl Receivers {
    /// Answers the senders that have asked since they were last answered.
    pub(in crate::connection) fn answer_asks(&mut self, common: &mut Common, wakers: &mut Wakers) {
        let mut wanted = None;
        for receiver in self.ends.values_mut() {
            let Some(theirs) = receiver.end.theirs.get() else {
                continue;
            };
            let asked = theirs.asked.generation();
            if asked != receiver.answered {
                receiver.answered = asked;
                if asked != 0 {
                    receiver.end.answer_ask();
                    // The receiver may wait for a guard that was just counted.
                    receiver.end.waiters.take(wakers);
                    let end = &receiver.end;
                    if end.path.is_room_wanted(end, &common.session) {
                        receiver.room_is_wanted(*wanted.get_or_insert_with(clock::now));
                    }
                }
            }
        }
        if let Some(now) = wanted {
            common.timers.set_sooner(Timer::Stall, now + NOTICE);
        }
    }
}

impl Core {
    /// Arms the receivers that no thread waits in, for a program that sleeps on the epoll set and
    /// takes messages without waiting. Returns whether any was armed: then the program must look
    /// again before it sleeps.
    pub(crate) fn arm_receivers(&mut self) -> bool {
        if self.shared_memory.is_none() {
            return false;
        }
        let mut any = false;
        for receiver in self.ends.receivers.ends.values_mut() {
            let end = &receiver.end;
            any |= end.path.arm_for_caller(end, &mut receiver.armed_for_caller);
        }
        if any {
            // DOORBELL, the heavy half for all words set above; pairs with the light half
            // in `ArmedWord::generation_behind`.
            self.common.shared.asymmetry().heavy();
        }
        any
    }

    /// Handles the peer's ring: wakes the tasks and threads whose events have come, and answers
    /// senders that ask.
    pub(crate) fn bell_rang(&mut self, tools: &Tools, context: &mut Context<'_>) {
        let Some(shared_memory) = &self.shared_memory else {
            return;
        };
        // Empty the bell first and look afterwards; otherwise a ring in between is lost.
        match shared_memory.bells.hear() {
            BellRead::Rings => {}
            // The connection gives the reason, after the frames that the peer has still sent.
            BellRead::End => shared_memory.stop_hearing(&tools.epoll),
            BellRead::Noise => {
                let what = "it broke the protocol: it passed a descriptor where it is to ring";
                return self.finish_broken(EndCause::lost(what), context);
            }
        }
        let (receivers, senders) = (&mut self.ends.receivers, &mut self.ends.senders);
        receivers.answer_asks(&mut self.common, &mut context.wakers);
        for receiver in receivers.ends.values_mut() {
            let end = &receiver.end;
            if end.path.was_rung(end) && end.waiters.is_waiting() {
                end.waiters.take(&mut context.wakers);
            }
        }
        for sender in senders.ends.values_mut() {
            let Some(theirs) = sender.end.theirs.get() else {
                continue;
            };
            let (released, _) = theirs.released();
            let (acknowledged, ended) = theirs.acknowledged();
            let now = Some((released, acknowledged, ended));
            if now != sender.seen {
                sender.seen = now;
                sender.retire_passed(&mut self.common.session, context);
                sender.end.waiters.take(&mut context.wakers);
            }
        }
    }
}
