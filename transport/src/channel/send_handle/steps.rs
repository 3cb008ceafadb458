//! Steps of sending that need the right to the producer: publishing a record, and waiting for room.

use std::{cmp, sync::atomic::Ordering};

use ibex_protocol::format::{control::Ask, record::RecordKind};
use ibex_ring::parking::{Condition, Patience, TimedOut};

use crate::session::{ChannelError, FailureReason, Full};
use crate::{
    clock,
    endpoint::{
        send_end::SendEnd,
        send_producer::SendProducer,
        send_wait::{Registration, Room},
    },
};

/// Steps that need the right to the producer.
impl SendEnd {
    /// Publishes a payload that was encoded in the ring's slot.
    #[inline(always)]
    pub(in crate::channel) fn publish(
        &self,
        producer: &mut SendProducer,
        kind: RecordKind,
        length: usize,
    ) -> u64 {
        let sequence = producer.ring.publish(kind, length);
        if !kind.is_large() {
            producer.typical = length;
        }
        self.was_made_visible(producer, sequence, length);
        sequence
    }

    /// Follows the records up to `sequence`, whose payloads have this length together: notes that
    /// they are sent, and wakes a reader that sleeps.
    #[inline(always)]
    pub(super) fn was_made_visible(
        &self,
        producer: &mut SendProducer,
        sequence: u64,
        length: usize,
    ) {
        // SENT, pairs with the loads of `sent`: a thread that sees the count finds the records.
        self.sent.store(sequence, Ordering::Release);
        if producer
            .doorbell
            .is_due(&producer.theirs.armed, producer.asymmetry)
        {
            let generation = producer.doorbell.generation();
            self.path.ring_reader(self, generation);
        }
        producer.untransmitted += length;
        if producer.untransmitted >= producer.claim_at {
            self.run_claimed(producer, sequence);
        }
    }

    /// Runs a turn if many bytes are queued, and notes the time of a message where times are kept.
    #[cold]
    fn run_claimed(&self, producer: &mut SendProducer, sequence: u64) {
        if let Some(times) = &self.times {
            self.was_published(times, sequence);
        }
        if producer.untransmitted >= producer.transmit_at {
            producer.untransmitted = 0;
            self.session.requests.poll();
        }
    }

    // ---- Waiting ---------------------------------------------------------------------

    pub(in crate::channel) fn wait_room(
        &self,
        producer: &mut SendProducer,
        length: usize,
        patience: Patience,
    ) -> Result<(), ChannelError> {
        producer
            .back(length)
            .map_err(|error| self.failed(FailureReason::Memory(error)))?;
        let full = SendProducer::full_window;
        self.wait_until(producer, patience, (FOR_RELEASE, full), |producer| {
            producer.takes(length)
        })
    }

    /// Waits until `enough` holds for the producer, and checks after each release. `ask` is the
    /// question to the peer's engine, where one is needed; [`u64::MAX`] in it means any release.
    /// `full` names the limit that was reached.
    pub(in crate::channel) fn wait_until(
        &self,
        producer: &mut SendProducer,
        patience: Patience,
        (ask, full): (Ask, impl Fn(&SendProducer) -> Full),
        mut enough: impl FnMut(&mut SendProducer) -> bool,
    ) -> Result<(), ChannelError> {
        let (end, session) = (self, &self.session);
        // What was released when the first check failed. Only the first round looks before it waits;
        // each wait begins with a new question.
        let mut released = None;
        let mut waits_since = None;
        // A sender that asks the peer nothing waits for its own engine.
        let is_for_engine = ask == Ask::default();
        let answer = loop {
            let mut room = Room {
                end,
                producer: &mut *producer,
                ask,
                registration: Registration::default(),
                enough: &mut enough,
            };
            if released.is_none()
                && let Some(answer) = room.check()
            {
                break answer;
            }
            let released = *released.get_or_insert_with(|| end.counts().released);
            end.no_room(is_for_engine);
            let Patience::Until(deadline) = patience else {
                // The peer may have released messages that the local engine has not noticed yet.
                if patience == Patience::None {
                    session.requests.poll();
                }
                break room.check().ok_or(ChannelError::WouldBlock)?;
            };
            if self.times.is_some() {
                waits_since.get_or_insert_with(clock::now);
            }
            // A sender that waits for long wakes up once to report the stall.
            let until = [deadline, end.stall.notice_at()]
                .into_iter()
                .flatten()
                .min();
            match session.wait_for(until, room) {
                Ok(answer) => break answer,
                Err(TimedOut) if until == deadline => {
                    return Err(end.stayed_full(Some(full(producer)), released));
                }
                Err(TimedOut) => {}
            }
        };
        if let Some(since) = waits_since
            && answer.is_ok()
        {
            end.waited_for_room(since);
        }
        match answer {
            Ok(()) => end.room_came(is_for_engine, released.is_some()),
            // The channel is over. The caller gets that error, so the end of the stall is not
            // reported.
            Err(_) => {
                let _ = end.stall.end();
            }
        }
        answer
    }

    pub(in crate::channel) fn too_long(&self, length: Option<u64>) -> ChannelError {
        let agreed = self.state.agreed();
        let (limit, here_to_there) = agreed.map_or((0, cmp::Ordering::Equal), |agreed| {
            (agreed.max_message_bytes, agreed.limit_here_to_there)
        });
        self.failed(FailureReason::TooLong {
            length,
            limit,
            here_to_there,
        })
    }
}

/// The question of a call that waits for the release of any message.
pub(super) const FOR_RELEASE: Ask = Ask {
    received: 0,
    released: u64::MAX,
    acknowledged: 0,
};
