//! Sends that are posted with one call.
#![forbid(unsafe_code)]

use std::marker::PhantomData;

use super::{
    QueuePair,
    receive_queue::PostError,
    request_table::RequestTable,
    work_request::{PushError, SendRequest},
};
use crate::abi::SendWr;

/// Sends that are about to be posted, with one call. Dropped, it posts nothing.
///
/// The batch borrows the memory to send until it is posted:
///
/// ```compile_fail,E0505
/// # use ibex_verbs::*;
/// fn late(pair: &mut QueuePair, region: MemoryRegion<AnonymousMemory>, id: WorkId) {
///     let entries = [region.entry(0..8)];
///     let mut batch = pair.send_batch();
///     batch.push(&SendRequest::send(id, &entries)).unwrap();
///     drop(region);
///     batch.post().unwrap();
/// }
/// ```
///
/// There is only one batch at a time:
///
/// ```compile_fail,E0499
/// # use ibex_verbs::*;
/// fn two(pair: &mut QueuePair) {
///     let one = pair.send_batch();
///     let other = pair.send_batch();
///     one.post().unwrap();
///     other.post().unwrap();
/// }
/// ```
#[derive(Debug)]
pub struct SendBatch<'pair, 'memory> {
    pub(super) pair: &'pair mut QueuePair,
    pub(super) memory: PhantomData<&'memory [u8]>,
}

impl<'memory> SendBatch<'_, 'memory> {
    /// Adds a request.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was.
    #[inline(always)]
    pub fn push(&mut self, request: &SendRequest<'_, 'memory>) -> Result<(), PushError> {
        if self.pair.send_room() <= self.pair.table.len() as u32 {
            return Err(PushError::QueueFull {
                capacity: self.pair.capacity,
            });
        }
        self.pair
            .table
            .push_send(request, self.pair.sizes.inline_bytes)
    }

    /// Returns the table for a read or an atomic, if the queue has room for one and the connection
    /// carries some.
    pub(super) fn table_of_reads(&mut self) -> Result<&mut RequestTable<SendWr>, PushError> {
        if self.pair.reads.depth == 0 {
            return Err(PushError::NoReads);
        }
        self.table_with_room()
    }

    pub(super) fn table_with_room(&mut self) -> Result<&mut RequestTable<SendWr>, PushError> {
        let capacity = self.pair.capacity;
        match self.pair.send_room() > self.pair.table.len() as u32 {
            true => Ok(&mut self.pair.table),
            false => Err(PushError::QueueFull { capacity }),
        }
    }

    #[cfg(feature = "all")]
    pub(super) fn atomics(&self) -> crate::AtomicSupport {
        self.pair.inner.domain.context.attributes().atomics
    }

    /// Returns the number of requests in the batch.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.pair.table.len()
    }

    /// Returns whether the batch is empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Posts the requests of the batch. Returns how many there were.
    ///
    /// # Errors
    /// [`PostError`], which says how many were posted nevertheless.
    #[inline]
    pub fn post(self) -> Result<u32, PostError> {
        let outcome = self.pair.post_table();
        self.pair.outstanding += match &outcome {
            Ok(posted) => *posted,
            Err(error) => error.accepted,
        };
        outcome
    }
}
