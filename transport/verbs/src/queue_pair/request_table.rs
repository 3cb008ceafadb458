//! The tables in which a batch of work requests waits for its doorbell.
//!
//! A batch is a linked list of C structures, so that one call, and one doorbell, posts all of it.
//! The list's memory belongs to the queue and is allocated once; pushing copies a request in,
//! posting links the list and hands it over. Rules:
//! 1. Pointers inside a table are set by `link`, right before the call that follows them,
//!    and mean nothing before and after; so a table may move.
//! 2. A pushed request's memory is borrowed until the batch is posted or dropped, so the call never
//!    reads an address that is not mapped. Rule 1 of the memory region covers what the device does
//!    afterwards.

use std::ffi::{c_int, c_void};
use std::ptr;

use super::work_request::check_entries;
use crate::abi::{RecvWr, SendWr, Sge};
use crate::{PostError, PushError, ReceiveRequest, ScatterEntry, SendRequest, TargetEntry, WorkId};

/// A C structure of which a batch is a list.
pub(crate) trait Linked: Copy {
    /// An empty request.
    const EMPTY: Self;
    /// Sets the pointers; the number of entries is already in it.
    fn link(&mut self, next: *mut Self, entries: *mut Sge);
}

impl Linked for SendWr {
    const EMPTY: Self = SendWr::EMPTY;

    #[inline]
    fn link(&mut self, next: *mut Self, entries: *mut Sge) {
        self.next = next;
        self.sg_list = entries;
    }
}

impl Linked for RecvWr {
    const EMPTY: Self = RecvWr::EMPTY;

    #[inline]
    fn link(&mut self, next: *mut Self, entries: *mut Sge) {
        self.next = next;
        self.sg_list = entries;
    }
}

/// The memory of a queue's batches, allocated once.
#[derive(Debug)]
pub(crate) struct RequestTable<W> {
    requests: Box<[W]>,
    /// Request `i` has `entries[i * stride..]`.
    entries: Box<[Sge]>,
    stride: usize,
    used: usize,
}

// SAFETY: the pointers inside mean nothing outside of `link` and the call that follows it
// (rule 1), which the owner of the table makes on one thread.
unsafe impl<W: Linked> Send for RequestTable<W> {}
// SAFETY: `&self` reads no pointer.
unsafe impl<W: Linked> Sync for RequestTable<W> {}

impl<W: Linked> RequestTable<W> {
    pub(crate) fn new(requests: usize, stride: usize) -> Self {
        Self {
            requests: vec![W::EMPTY; requests].into_boxed_slice(),
            entries: vec![Sge::default(); requests * stride].into_boxed_slice(),
            stride,
            used: 0,
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.used
    }
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.used = 0;
    }

    /// Returns the next free request and its entries, filled from `entries`, of which there are at
    /// most `stride`.
    #[inline(always)]
    fn next(&mut self, entries: &[ScatterEntry<'_>]) -> Result<&mut W, PushError> {
        let capacity = self.requests.len();
        let index = self.used;
        let request = self
            .requests
            .get_mut(index)
            .ok_or(PushError::BatchFull { capacity })?;
        let place = &mut self.entries[index * self.stride..][..entries.len()];
        for (place, entry) in place.iter_mut().zip(entries) {
            *place = entry.sge;
        }
        self.used += 1;
        Ok(request)
    }

    /// Returns the request that was pushed last.
    #[cfg(feature = "all")]
    pub(crate) fn last_mut(&mut self) -> Option<&mut W> {
        self.requests[..self.used].last_mut()
    }

    /// Posts the batch to a queue. Returns how many requests there were.
    ///
    /// # Safety
    /// The queue is alive and `post` posts to it. The memory of the requests, which is mapped now
    /// (rule 2), is registered unless they are inline; it is deregistered before it is unmapped
    /// (`memory::region`).
    #[inline(always)]
    pub(crate) unsafe fn post(
        &mut self,
        post: unsafe extern "C" fn(*mut c_void, *mut W, *mut *mut W) -> c_int,
        queue: *mut c_void,
        call: impl FnOnce() -> &'static str,
    ) -> Result<u32, PostError> {
        let requests = self.len();
        if requests == 0 {
            return Ok(0);
        }
        let head = self.link();
        let mut refused = ptr::null_mut();
        // SAFETY: the caller's contract; `head` is a list of `requests` requests with their entries.
        let status = unsafe { post(queue, head, &mut refused) };
        let accepted = match status {
            0 => requests,
            _ => self.accepted(refused),
        };
        PostError::check(call, status, requests, accepted)
    }

    /// Links the batch into a list and returns its head. There must be at least one request.
    #[inline]
    fn link(&mut self) -> *mut W {
        debug_assert!(self.used > 0);
        let head = self.requests.as_mut_ptr();
        let (mut last, mut entries) = (head, self.entries.as_mut_ptr());
        // SAFETY: `last` goes from the first request to the one before `used`, which is at
        // most the number of requests; `entries` has `stride` for each of them.
        unsafe {
            for _ in 1..self.used {
                let next = last.add(1);
                (*last).link(next, entries);
                (last, entries) = (next, entries.add(self.stride));
            }
            (*last).link(ptr::null_mut(), entries);
        }
        head
    }

    /// Returns how many requests were taken before the one that `refused` points to.
    fn accepted(&self, refused: *mut W) -> usize {
        let offset = refused.addr().wrapping_sub(self.requests.as_ptr().addr());
        // If a provider does not say which request it refused, none is known to be accepted.
        match offset / size_of::<W>() {
            index if !refused.is_null() && index < self.used => index,
            _ => 0,
        }
    }
}

impl RequestTable<SendWr> {
    /// Adds a request. Inlined, so that one whose number of entries is known is checked and
    /// copied without a loop.
    #[inline(always)]
    pub(crate) fn push_send(
        &mut self,
        request: &SendRequest<'_, '_>,
        max_inline: u32,
    ) -> Result<(), PushError> {
        request.check(self.stride, max_inline)?;
        let place = self.next(request.entries)?;
        place.wr_id = request.id.to_raw();
        place.num_sge = request.entries.len() as c_int;
        place.opcode = request.opcode;
        place.send_flags = request.flags;
        place.imm_data = request.immediate;
        place.remote_addr = request.remote.address;
        place.rkey = request.remote.rkey;
        Ok(())
    }
}

impl RequestTable<SendWr> {
    /// Adds a request of a kind that does not send bytes of this end, and returns it to be
    /// completed. Its entries are checked by their type.
    pub(crate) fn push_other(
        &mut self,
        id: WorkId,
        flags: u32,
        entries: &[TargetEntry<'_>],
    ) -> Result<&mut SendWr, PushError> {
        let entries = TargetEntry::as_entries(entries);
        check_entries(entries, self.stride)?;
        let place = self.next(entries)?;
        place.wr_id = id.to_raw();
        place.num_sge = entries.len() as c_int;
        place.send_flags = flags;
        place.imm_data = 0;
        Ok(place)
    }
}

impl RequestTable<RecvWr> {
    #[inline]
    pub(crate) fn push_receive(
        &mut self,
        request: &ReceiveRequest<'_, '_>,
    ) -> Result<(), PushError> {
        request.check(self.stride)?;
        let place = self.next(request.entries)?;
        place.wr_id = request.id.to_raw();
        place.num_sge = request.entries.len() as c_int;
        Ok(())
    }
}
