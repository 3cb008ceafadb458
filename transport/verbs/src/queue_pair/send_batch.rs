//! Sends that are posted with one call.
#![forbid(unsafe_code)]

use std::marker::PhantomData;

use super::{AnyPair, kind::Reliable, request_table::RequestTable};
use crate::{PostError, PushError, SendRequest, abi::SendWr};

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
pub struct SendBatch<'pair, 'memory, K = Reliable> {
    pub(super) pair: &'pair mut AnyPair,
    pub(super) memory: PhantomData<&'memory [u8]>,
    pub(super) kind: PhantomData<K>,
}

impl<'memory> SendBatch<'_, 'memory> {
    /// Adds a request.
    ///
    /// # Errors
    /// [`PushError`]; the batch is as it was.
    #[inline(always)]
    pub fn push(&mut self, request: &SendRequest<'_, 'memory>) -> Result<(), PushError> {
        self.add(request)
    }
}

impl<'memory, K> SendBatch<'_, 'memory, K> {
    #[inline(always)]
    pub(super) fn add(&mut self, request: &SendRequest<'_, 'memory>) -> Result<(), PushError> {
        let inline_bytes = self.pair.sizes.inline_bytes;
        let table = self.pair.table_with_room()?;
        table.push_send(request, inline_bytes)
    }

    /// Returns the table for a read or an atomic, if the queue has room for one and the connection
    /// carries some.
    pub(super) fn table_of_reads(&mut self) -> Result<&mut RequestTable<SendWr>, PushError> {
        if self.pair.reads.depth == 0 {
            return Err(PushError::NoReads);
        }
        self.pair.table_with_room()
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
        self.pair.post_batch()
    }
}
