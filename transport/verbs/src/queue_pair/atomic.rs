//! Atomics on 8 bytes of the peer's memory.
//!
//! Both operations replace the 8 bytes at an address of the peer, which is a multiple of 8, and bring
//! the value before it. Numbers are in the byte order of the machine that has the memory; two machines
//! of different order see each other's reversed.
//!
//! | operation | the memory becomes | if |
//! |---|---|---|
//! | [`compare_and_swap`](AtomicRequest::compare_and_swap) | the new value | it was the expected one |
//! | [`fetch_and_add`](AtomicRequest::fetch_and_add) | the sum, modulo 2^64 | always |
//!
//! Against which other accesses they are atomic depends on the device
//! ([`DeviceAttributes::atomics`](crate::provider::DeviceAttributes::atomics)): against those of the
//! same device at least, so not always against the processor's.
//!
//! The value before comes into an [`AtomicResult`], which is in use from the push of a request until
//! the request's completion is given to [`AtomicResult::take`]. A result that is dropped before leaves
//! its place in use.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use ibex_base::sync::lock;

use super::work_request::flag_methods;
use crate::abi::{send_flags, wr_opcode};
use crate::{
    AnonymousMemory, AtomicSupport, CompletionFailure, MemoryRegion, ProtectionDomain, PushError,
    RegionAccess, RemoteAddress, SendBatch, TargetEntry, VerbsError, WorkCompletion, WorkId,
};

/// A request that changes 8 bytes of the peer's memory
/// ([`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html),
/// `IBV_WR_ATOMIC_CMP_AND_SWP` and `IBV_WR_ATOMIC_FETCH_AND_ADD`).
///
/// ```
/// # use ibex_verbs::*;
/// fn next_number(
///     pair: &mut QueuePair,
///     completions: &mut CompletionWait,
///     counter: RemoteAddress,
///     result: &mut AtomicResult,
/// ) -> Result<u64, Box<dyn std::error::Error>> {
///     let id = WorkId::new(Operation::Atomic, 0, 0);
///     let mut batch = pair.send_batch();
///     batch.push_atomic(&AtomicRequest::fetch_and_add(id, counter, 1), result)?;
///     batch.post()?;
///     let mut room = [WorkCompletion::EMPTY; 1];
///     loop {
///         for completion in completions.wait(&mut room, None)? {
///             if let Some(before) = result.take(completion)? {
///                 pair.retire_sends(1);
///                 return Ok(before);
///             }
///         }
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct AtomicRequest {
    id: WorkId,
    opcode: u32,
    flags: u32,
    remote: RemoteAddress,
    operands: [u64; 2],
}

impl AtomicRequest {
    /// Stores `new` if the memory has the value `expected`.
    #[must_use]
    pub fn compare_and_swap(id: WorkId, remote: RemoteAddress, expected: u64, new: u64) -> Self {
        Self {
            id,
            opcode: wr_opcode::COMPARE_AND_SWAP,
            flags: send_flags::SIGNALED,
            remote,
            operands: [expected, new],
        }
    }

    /// Adds `number` to the value in the memory.
    #[must_use]
    pub fn fetch_and_add(id: WorkId, remote: RemoteAddress, number: u64) -> Self {
        Self {
            opcode: wr_opcode::FETCH_AND_ADD,
            operands: [number, 0],
            ..Self::compare_and_swap(id, remote, 0, 0)
        }
    }

    flag_methods! {
        /// Waits for earlier RDMA reads and atomics of this queue pair.
        pub fn fenced(self) |= FENCE;
    }
}

impl SendBatch<'_, '_> {
    /// Adds an atomic, which makes a completion.
    ///
    /// `result` waits for the value from now on, also if the batch is then dropped.
    ///
    /// # Errors
    /// [`PushError`]; batch and result are as they were. An address that is no multiple of 8, a device
    /// or a connection without atomics, and a result that still waits are refused here.
    pub fn push_atomic(
        &mut self,
        request: &AtomicRequest,
        result: &mut AtomicResult,
    ) -> Result<(), PushError> {
        if self.pair.inner.domain.context.attributes.atomics == AtomicSupport::None {
            return Err(PushError::NoAtomics);
        }
        let address = request.remote.address;
        if !address.is_multiple_of(8) {
            return Err(PushError::Unaligned { address });
        }
        if let Some((id, _)) = result.waits_for {
            return Err(PushError::ResultOutstanding { id });
        }
        let queue_pair = self.pair.state.number;
        let table = self.table_of_reads()?;
        let place = table.push_other(request.id, request.flags, &[result.entry()])?;
        place.opcode = request.opcode;
        place.remote_addr = address;
        place.set_atomic(request.operands, request.remote.rkey);
        result.waits_for = Some((request.id, queue_pair));
        Ok(())
    }
}

/// Registered memory for the results of atomics.
#[derive(Debug)]
pub struct AtomicResults {
    shared: Arc<ResultSlots>,
}

#[derive(Debug)]
struct ResultSlots {
    region: MemoryRegion<AnonymousMemory>,
    free: Mutex<Vec<usize>>,
}

/// The place for the result of one atomic at a time. Dropped, it goes back to its
/// [`AtomicResults`], unless it still waits.
#[derive(Debug)]
pub struct AtomicResult {
    shared: Arc<ResultSlots>,
    index: usize,
    /// The request and the queue pair that write here.
    waits_for: Option<(WorkId, u32)>,
}

impl AtomicResults {
    /// Registers memory for `places` results, and at least for those that fit into a page.
    ///
    /// # Errors
    /// [`VerbsError`] if there is no memory, or the device refuses it.
    pub fn new(domain: &ProtectionDomain, places: usize) -> Result<Self, VerbsError> {
        let bytes = places.max(1).saturating_mul(RESULT_BYTES);
        let bytes = bytes.next_multiple_of(rustix::param::page_size());
        let memory =
            AnonymousMemory::new(bytes).map_err(|error| VerbsError::Other(Box::new(error)))?;
        let region = MemoryRegion::register(domain, memory, RegionAccess::RECEIVE)?;
        let free = Mutex::new((0..bytes / RESULT_BYTES).rev().collect());
        Ok(Self {
            shared: Arc::new(ResultSlots { region, free }),
        })
    }

    /// Takes a place; `None` if all are taken.
    #[must_use]
    pub fn place(&self) -> Option<AtomicResult> {
        let index = lock(&self.shared.free).pop()?;
        Some(AtomicResult {
            shared: Arc::clone(&self.shared),
            index,
            waits_for: None,
        })
    }
}

impl AtomicResult {
    /// Returns the value that the peer's memory had before the atomic, if `completion` is that of the
    /// request that was pushed with this place, and `None` if it is of another request. With its
    /// completion the place is free for the next one.
    ///
    /// # Errors
    /// [`CompletionFailure`] if the request failed. Of a request that failed in another place than the
    /// peer, nobody knows whether the peer's memory was changed.
    pub fn take(&mut self, completion: &WorkCompletion) -> Result<Option<u64>, CompletionFailure> {
        if self.waits_for != Some((completion.id(), completion.queue_pair())) {
            return Ok(None);
        }
        self.waits_for = None;
        completion.outcome()?;
        // RESULT, pairs with the device's write, which came before the completion: later reads see
        // what the value announces.
        Ok(Some(self.cell().load(Ordering::Acquire)))
    }

    /// Returns whether a request has been pushed whose completion has not been taken.
    #[must_use]
    pub fn is_outstanding(&self) -> bool {
        self.waits_for.is_some()
    }

    fn entry(&self) -> TargetEntry<'_> {
        let start = self.index * RESULT_BYTES;
        self.shared.region.target(start..start + RESULT_BYTES)
    }

    fn cell(&self) -> &AtomicU64 {
        let base: NonNull<u64> = self.shared.region.base().cast();
        // SAFETY:
        // 1. In bounds: `index` is below the region's length over 8. Mapped while `shared` lives.
        // 2. Aligned: the region begins at a page.
        // 3. The processor reads it by this function alone, and the device writes 8 bytes at once.
        unsafe { AtomicU64::from_ptr(base.add(self.index).as_ptr()) }
    }
}

impl Drop for AtomicResult {
    fn drop(&mut self) {
        if self.waits_for.is_none() {
            lock(&self.shared.free).push(self.index);
        }
    }
}

const RESULT_BYTES: usize = size_of::<u64>();
