//! Memory that outlives its owner, until no frame in flight refers to it.

use std::sync::{Arc, atomic::Ordering};

use super::{
    Context,
    senders::{LargeOut, SenderState},
};
use crate::endpoint::send_end::SendEnd;

/// Memory whose owner is done with it while frames of it are in flight.
#[derive(Default)]
pub(super) struct Retained(Vec<Item>);

struct Item {
    /// The last of these frames, as [`in_flight`](crate::wire::Wire::in_flight) counts; `None`
    /// until the wire is asked for it.
    until: Option<u64>,
    memory: Memory,
}

enum Memory {
    Sender(Box<SenderState>),
    Message {
        end: Arc<SendEnd>,
        message: LargeOut,
    },
}

impl Retained {
    /// Keeps the memory of a sending end, with the end, as long as any frame that is now in flight.
    pub(super) fn keep_sender(&mut self, sender: SenderState) {
        let memory = Memory::Sender(Box::new(sender));
        self.0.push(Item {
            until: None,
            memory,
        });
    }

    /// Keeps a large message until frame `until` is gone, or as long as any frame that is now in
    /// flight.
    pub(super) fn keep_message(
        &mut self,
        end: Arc<SendEnd>,
        message: LargeOut,
        until: Option<u64>,
    ) {
        let memory = Memory::Message { end, message };
        self.0.push(Item { until, memory });
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Notes the last frame in flight for the memory that was kept since the last call.
    pub(super) fn note_in_flight(&mut self, frame: u64) {
        for item in &mut self.0 {
            item.until.get_or_insert(frame);
        }
    }

    /// Frees the memory that no frame after `done` refers to, and wakes senders that wait for it.
    pub(super) fn free(&mut self, done: u64, context: &mut Context<'_>) {
        let is_gone = |item: &mut Item| item.until.is_some_and(|until| until <= done);
        for item in self.0.extract_if(.., is_gone) {
            match item.memory {
                Memory::Message { end, message } => {
                    let sequence = message.sequence;
                    // The memory returns to its pool before any sender learns of it.
                    if let Some(leftover) = message.memory.give_back() {
                        context.leave(leftover);
                    }
                    end.large_gone.fetch_max(sequence, Ordering::Relaxed);
                    end.waiters.take(&mut context.wakers);
                }
                Memory::Sender(mut sender) => {
                    sender.leave_passed(context);
                    context.leftovers.push(sender);
                }
            }
        }
    }

    /// Returns the sending ends among the retained memory.
    pub(super) fn senders(&self) -> impl Iterator<Item = &SenderState> {
        self.0.iter().filter_map(|item| match &item.memory {
            Memory::Sender(sender) => Some(&**sender),
            Memory::Message { .. } => None,
        })
    }

    /// Frees the spare capacity of the list.
    pub(super) fn rest(&mut self) {
        self.0.shrink_to_fit();
    }
}
