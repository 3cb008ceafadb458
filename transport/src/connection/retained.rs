//! Memory that outlives its owner: until no frame of it is on its way.

use std::sync::{Arc, atomic::Ordering};

use super::{
    Link, Wires,
    senders::{LargeOut, SendLink},
};
use crate::{connection::Context, endpoint::send_end::SendEnd};

/// Memory whose owner is done with it while frames of it are on their way.
pub(super) struct Parting {
    /// The last of these frames, as [`in_flight`](super::Wires::in_flight) counts.
    pub(super) until: u64,
    memory: PartingMemory,
}

/// What parts.
enum PartingMemory {
    Sender(Box<SendLink>),
    Large { end: Arc<SendEnd>, large: LargeOut },
}

impl Link {
    /// What parts and is in no frame any more goes.
    pub(super) fn part_with_what_is_gone(&mut self, context: &mut Context<'_>) {
        let done = match &self.wires {
            Wires::Pair(pair) if pair.in_flight().is_some() => pair.sending.slots.done(),
            Wires::Stream(stream) if stream.in_flight().is_some() => return,
            _ => u64::MAX,
        };
        self.frames_are_gone(done, context);
    }

    /// The wires need nothing any more of the frames up to `done`.
    pub(super) fn frames_are_gone(&mut self, done: u64, context: &mut Context<'_>) {
        let is_gone = |parting: &mut Parting| parting.until <= done;
        for parting in self.parting.extract_if(.., is_gone) {
            if let PartingMemory::Large { end, large } = parting.memory {
                let sequence = large.sequence;
                // Who hears of it finds the memory in its pool.
                drop(large);
                end.large_gone.fetch_max(sequence, Ordering::Relaxed);
                end.waiters.take(&mut context.wakers);
            }
        }
    }
}

impl Parting {
    /// What a sending end has, with the end.
    pub(super) fn of_sender(sender: SendLink, until: u64) -> Self {
        let memory = PartingMemory::Sender(Box::new(sender));
        Self { until, memory }
    }

    /// A large message of an end that goes on.
    pub(super) fn of_message(end: Arc<SendEnd>, large: LargeOut, until: u64) -> Self {
        let memory = PartingMemory::Large { end, large };
        Self { until, memory }
    }

    /// The sending end, if it is one.
    pub(super) fn sender(&self) -> Option<&SendLink> {
        match &self.memory {
            PartingMemory::Sender(sender) => Some(sender),
            PartingMemory::Large { .. } => None,
        }
    }
}
