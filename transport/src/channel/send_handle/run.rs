//! Batches of messages, sent in runs: the records of a run become visible together, and a reader
//! that sleeps is woken once.

use std::{
    mem::MaybeUninit,
    sync::{Arc, atomic::Ordering},
};

use ibex_protocol::format::record::RecordKind;
use ibex_ring::parking::Patience;

use super::{Abort, Entered, SendHandle};
use crate::{
    endpoint::{send_end::SendEnd, send_producer::SendProducer},
    session::{ChannelError, FailureReason},
};

impl SendHandle {
    /// Sends `values` from index `sent` on, in order, and counts them there. Returns the sequence of
    /// the last, or the failure of the first that was not sent.
    ///
    /// `size` and `encode` are those of [`send`](Self::send), for each value.
    #[inline]
    pub fn send_all<V>(
        &mut self,
        (values, sent): (&[V], &mut usize),
        patience: Patience,
        size: impl Fn(&V) -> Option<usize>,
        encode: impl Fn(&V, &mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Result<u64, ChannelError> {
        let mut entered = self.enter(patience)?;
        loop {
            entered.send_runs((values, sent), &size, &encode)?;
            let Some(value) = values.get(*sent) else {
                // No other handle has the turn.
                return Ok(entered.end.sent.load(Ordering::Relaxed));
            };
            // There is no room, or more to do than to copy.
            entered.send_slow(size(value), patience, &mut |slot| encode(value, slot))?;
            *sent += 1;
        }
    }
}

impl Entered<'_> {
    /// Sends values as long as there is room for them and nothing else to do.
    #[inline(always)]
    fn send_runs<V>(
        &mut self,
        (values, sent): (&[V], &mut usize),
        size: &impl Fn(&V) -> Option<usize>,
        encode: &impl Fn(&V, &mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Result<(), ChannelError> {
        let end = self.end;
        let Some(producer) = self.producer() else {
            return Ok(());
        };
        if end.state.is_over_or_traced() {
            return Ok(());
        }
        let mut run = PendingRun {
            end,
            producer,
            messages: 0,
            bytes: 0,
        };
        for value in &values[*sent..] {
            let producer = &mut *run.producer;
            if !producer.takes(size(value).unwrap_or(producer.typical)) {
                break;
            }
            match encode(value, producer.slot()) {
                Ok(length) if length as u64 <= producer.max_message_bytes => {
                    run.add(length);
                    *sent += 1;
                }
                Ok(length) => return Err(end.too_long(Some(length as u64))),
                Err(Abort::Overflow) => break,
                Err(Abort::Failed(error)) => return Err(end.failed(FailureReason::Encode(error))),
            }
        }
        Ok(())
    }
}

/// Records that were written and are not visible yet. Dropping it, also by a panic of an encoder,
/// makes them visible.
struct PendingRun<'a> {
    end: &'a Arc<SendEnd>,
    producer: &'a mut SendProducer,
    messages: usize,
    bytes: usize,
}

impl PendingRun<'_> {
    #[inline(always)]
    fn add(&mut self, length: usize) {
        self.producer.ring.append(RecordKind::Data, length);
        self.producer.typical = length;
        self.messages += 1;
        self.bytes += length;
        if self.messages == MOST_MESSAGES || self.bytes >= MOST_BYTES {
            self.reveal();
        }
    }

    #[inline(always)]
    fn reveal(&mut self) {
        if self.messages > 0 {
            self.producer.ring.reveal();
            let last = self.producer.ring.sequence();
            self.end.was_made_visible(self.producer, last, self.bytes);
            (self.messages, self.bytes) = (0, 0);
        }
    }
}

impl Drop for PendingRun<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.reveal();
    }
}

/// The most messages, and the bytes, after which a run becomes visible: enough for the price of a
/// message alone to vanish, and little enough for the reader not to wait.
const MOST_MESSAGES: usize = 16;
const MOST_BYTES: usize = 4096;
