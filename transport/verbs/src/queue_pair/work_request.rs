//! Work requests, and the tables in which a batch of them waits for its doorbell.
//!
//! A batch is a linked list of C structures, so that one call, and one doorbell, posts all of it.
//! The list's memory belongs to the queue and is allocated once; pushing copies a request in,
//! posting links the list and hands it over. Rules:
//! 1. Pointers inside a table are set by `link`, right before the call that follows them,
//!    and mean nothing before and after; so a table may move.
//! 2. A pushed request's memory is borrowed until the batch is posted or dropped, so the call never
//!    reads an address that is not mapped. Rule 1 of the memory region covers what the device does
//!    afterwards.

use std::ffi::c_int;

use crate::{
    abi::{
        RecvWr, SendWr, Sge, queue_pair_kind::QueuePairKind, send_flags, work_id::WorkId, wr_opcode,
    },
    memory::region::{RemoteAddress, RemoteKey, ScatterEntry, TargetEntry},
};

/// A request to a send queue.
///
/// See [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'entries, 'memory> {
    id: WorkId,
    opcode: u32,
    flags: u32,
    immediate: u32,
    remote: RemoteAddress,
    entries: &'entries [ScatterEntry<'memory>],
}

impl<'entries, 'memory> SendRequest<'entries, 'memory> {
    /// Sends the bytes of `entries`, one after the other, into the peer's next receive.
    #[inline]
    #[must_use]
    pub fn send(id: WorkId, entries: &'entries [ScatterEntry<'memory>]) -> Self {
        Self {
            id,
            opcode: wr_opcode::SEND,
            flags: 0,
            immediate: 0,
            remote: RemoteAddress {
                address: 0,
                rkey: 0,
            },
            entries,
        }
    }

    /// Writes the bytes of `entries` into memory that the peer has granted. The peer is not told of
    /// the write, unless there is immediate data.
    #[inline]
    #[must_use]
    pub fn write(
        id: WorkId,
        entries: &'entries [ScatterEntry<'memory>],
        remote: RemoteAddress,
    ) -> Self {
        Self {
            opcode: wr_opcode::RDMA_WRITE,
            remote,
            ..Self::send(id, entries)
        }
    }

    /// Sends the bytes of `entries` like [`send`](Self::send), and invalidates a key that the peer
    /// has told: that of a memory window of its own, bound to this connection. The peer's completion
    /// names the key.
    ///
    /// A key that is not valid at the peer breaks the connection.
    #[inline]
    #[must_use]
    pub fn send_with_invalidate(
        id: WorkId,
        entries: &'entries [ScatterEntry<'memory>],
        key: RemoteKey,
    ) -> Self {
        Self {
            opcode: wr_opcode::SEND_WITH_INVALIDATE,
            immediate: key.to_raw(),
            ..Self::send(id, entries)
        }
    }

    /// Adds 32 bits for the peer's completion; a write then takes one of its receives.
    ///
    /// # Panics
    /// If the request invalidates a key: the message has one place for both.
    #[inline]
    #[must_use]
    pub fn with_immediate(mut self, immediate: u32) -> Self {
        // The opcode with immediate data is one above that of either operation.
        if matches!(self.opcode, wr_opcode::SEND | wr_opcode::RDMA_WRITE) {
            self.opcode += 1;
        } else {
            assert!(
                self.opcode != wr_opcode::SEND_WITH_INVALIDATE,
                "a message that invalidates a key carries no immediate data"
            );
        }
        self.immediate = immediate.to_be();
        self
    }

    /// Copies the bytes into the request. They may be used again as soon as it is posted, and the
    /// device needs no second read. For short requests only.
    #[inline]
    #[must_use]
    pub fn inline(mut self) -> Self {
        self.flags |= send_flags::INLINE;
        self
    }

    /// Makes a completion. A completion that succeeds says that all requests before it on this
    /// queue pair have succeeded too.
    #[inline]
    #[must_use]
    pub fn signaled(mut self) -> Self {
        self.flags |= send_flags::SIGNALED;
        self
    }

    /// Wakes a peer that waits for solicited completions only.
    #[inline]
    #[must_use]
    pub fn solicited(mut self) -> Self {
        self.flags |= send_flags::SOLICITED;
        self
    }

    /// Waits for earlier RDMA reads and atomics of this queue pair.
    #[inline]
    #[must_use]
    pub fn fenced(mut self) -> Self {
        self.flags |= send_flags::FENCE;
        self
    }

    /// Returns whether the send is inline.
    #[inline]
    #[must_use]
    pub fn is_inline(&self) -> bool {
        self.flags & send_flags::INLINE != 0
    }

    /// Bytes of all its entries.
    #[inline(always)]
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.entries
            .iter()
            .map(|entry| u64::from(entry.bytes()))
            .sum()
    }

    /// Checks that queue pairs of a kind do what the request asks for.
    pub(crate) fn check_kind(&self, kind: QueuePairKind) -> Result<(), PushError> {
        let refused = |operation| Err(PushError::OtherKind { operation, kind });
        if !kind.does(self.opcode) {
            return refused(match self.opcode {
                wr_opcode::SEND_WITH_INVALIDATE => "invalidation",
                _ => "RDMA write",
            });
        }
        match self.flags & send_flags::FENCE {
            0 => Ok(()),
            _ => refused("fence"),
        }
    }

    #[inline(always)]
    fn check(&self, max_entries: usize, max_inline: u32) -> Result<(), PushError> {
        check_entries(self.entries, max_entries)?;
        if !self.is_inline() {
            return check_registered(self.entries);
        }
        let bytes = self.bytes();
        if bytes > u64::from(max_inline) {
            return Err(PushError::InlineTooLong {
                bytes,
                limit: max_inline,
            });
        }
        Ok(())
    }
}

/// Flags that all requests to a send queue can have (`enum ibv_send_flags`).
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flags(u32);

impl Flags {
    /// Returns the bits, as the verbs take them.
    pub(crate) fn bits(self) -> u32 {
        self.0
    }

    pub(crate) fn signaled(self) -> Self {
        Self(self.0 | send_flags::SIGNALED)
    }

    pub(crate) fn fenced(self) -> Self {
        Self(self.0 | send_flags::FENCE)
    }
}

/// A request to a receive queue: memory for one message.
///
/// See [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'entries, 'memory> {
    id: WorkId,
    entries: &'entries [ScatterEntry<'memory>],
}

impl<'entries, 'memory> ReceiveRequest<'entries, 'memory> {
    /// Lets the next message be put into `entries`, one after the other.
    #[inline]
    #[must_use]
    pub fn new(id: WorkId, entries: &'entries [ScatterEntry<'memory>]) -> Self {
        Self { id, entries }
    }
    #[inline]
    fn check(&self, max_entries: usize) -> Result<(), PushError> {
        check_entries(self.entries, max_entries)?;
        check_registered(self.entries)
    }
}
#[inline]
fn check_entries(entries: &[ScatterEntry<'_>], limit: usize) -> Result<(), PushError> {
    if entries.len() > limit {
        return Err(PushError::TooManyEntries {
            entries: entries.len(),
            limit,
        });
    }
    Ok(())
}
#[inline]
fn check_registered(entries: &[ScatterEntry<'_>]) -> Result<(), PushError> {
    if entries.iter().all(|entry| entry.registered) {
        Ok(())
    } else {
        Err(PushError::NotRegistered)
    }
}

/// The reason why a request was not taken into a batch. The batch is as it was.
///
/// Errors other than [`PushError::QueueFull`] and [`PushError::BatchFull`] are mistakes of the
/// caller; a device would answer each of them with the same `EINVAL`.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PushError {
    /// The queue has no room: wait for completions and retire them.
    #[error(
        "the queue is full: all of its {capacity} requests are outstanding; poll their completions and \
         retire them"
    )]
    QueueFull {
        /// The queue's capacity.
        capacity: u32,
    },
    /// The batch has no room: post it and begin another.
    #[error("the batch is full at {capacity} requests; post it first")]
    BatchFull {
        /// The table's capacity.
        capacity: usize,
    },
    /// The request has more pieces than one request can have.
    #[error("a request of {entries} scatter entries, where the queue pair has {limit}")]
    TooManyEntries {
        /// The number of entries that were given.
        entries: usize,
        /// The largest number.
        limit: usize,
    },
    /// The request has more bytes than an inline request can have.
    #[error("an inline request of {bytes} bytes, where the queue pair takes {limit}")]
    InlineTooLong {
        /// The number of bytes that were given.
        bytes: u64,
        /// The largest number.
        limit: u32,
    },
    /// Memory that is not registered, in a request that is not inline.
    #[error(
        "the memory of the request is not registered: register it (`MemoryRegion::register`); only \
         an inline send may have other memory"
    )]
    NotRegistered,
    /// A read or an atomic on a connection that has none.
    #[error(
        "the connection carries no reads and atomics: at least one end allows none \
         (`ConnectionSettings::read_depth` and `read_resources`)"
    )]
    NoReads,
    /// A request that queue pairs of this kind do not do.
    #[error("a queue pair of the kind {kind} has no {operation}")]
    OtherKind {
        /// What the request asks for.
        operation: &'static str,
        /// The kind of the queue pair.
        kind: QueuePairKind,
    },
    /// A datagram that does not fit into one packet.
    #[error(
        "a datagram of {bytes} bytes, where a packet of the port carries {limit} (0 before \
         `DatagramQueuePair::start`)"
    )]
    DatagramTooLong {
        /// The number of bytes that were given.
        bytes: u64,
        /// The largest number.
        limit: u32,
    },
    /// An address handle of another protection domain.
    #[error(
        "the address handle is of another protection domain than the queue pair: make it of the \
         queue pair's"
    )]
    OtherDomain,
    /// A remote address that is no multiple of 8.
    #[error("an atomic at {address:#x}, where the address has to be a multiple of 8")]
    Unaligned {
        /// The address at the peer.
        address: u64,
    },
    /// The device has no atomics.
    #[error("the device has no atomics (`DeviceAttributes::atomics`)")]
    NoAtomics,
    /// The place for an atomic's result waits for another one.
    #[error(
        "the place of the result still waits for {id}: take its result with the completion first"
    )]
    ResultOutstanding {
        /// The request that will write to the place.
        id: WorkId,
    },
}

ibex_base::debug_as_display!(PushError);

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
    pub(crate) fn last_mut(&mut self) -> Option<&mut W> {
        self.requests[..self.used].last_mut()
    }

    /// Links the batch into a list and returns its head. There must be at least one request.
    #[inline]
    pub(crate) fn link(&mut self) -> *mut W {
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
            (*last).link(std::ptr::null_mut(), entries);
        }
        head
    }

    /// Returns how many requests were taken before the one that `refused` points to.
    pub(crate) fn accepted(&self, refused: *mut W) -> usize {
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
        flags: Flags,
        entries: &[TargetEntry<'_>],
    ) -> Result<&mut SendWr, PushError> {
        let entries = TargetEntry::as_entries(entries);
        check_entries(entries, self.stride)?;
        let place = self.next(entries)?;
        place.wr_id = id.to_raw();
        place.num_sge = entries.len() as c_int;
        place.send_flags = flags.bits();
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
