//! Memory that a session sends from, with the registration that its wire needs.

#[cfg(any(test, feature = "verbs"))]
use std::ops::Range;
use std::{any::Any, io, mem, ptr::NonNull, sync::Arc};

use ibex_protocol::transfer::rendezvous::Chunk;
use ibex_ring::memory::{
    LargeBuffer, LargeLease, LargePool, MemoryError, MemoryUse, RegionSlice, RingLease, copy_slice,
    is_of_file, mapped_bytes,
};

#[cfg(any(test, feature = "verbs"))]
use ibex_verbs::ScatterEntry;

use crate::{
    rdma::{RdmaPort, RegisteredMessage, RegisteredRing},
    session::frame_path::FramePath,
};

/// The ring of a sending end.
#[derive(Debug)]
pub(crate) struct SendRingMemory {
    /// Keeps the ring until none of its bytes wait to be written.
    lease: Arc<RingLease>,
    /// The ring as a device sends from it.
    registered: Option<Arc<RegisteredRing>>,
}

impl SendRingMemory {
    /// Takes over a ring, which its handle has registered if the path requires that.
    pub(crate) fn new(lease: Arc<RingLease>, path: &FramePath) -> Self {
        let registered = path
            .rdma_port()
            .and_then(|rdma_port| rdma_port.registered_ring(&lease));
        Self { lease, registered }
    }

    /// Returns the memory of the ring.
    #[inline]
    pub(crate) fn lease(&self) -> &RingLease {
        &self.lease
    }

    /// Registers the ring with `rdma_port`, unless it is registered already. A registration with
    /// another port goes to `leftovers`.
    fn register(
        &mut self,
        rdma_port: &RdmaPort,
        leftovers: &mut Vec<Box<dyn Any>>,
    ) -> Result<(), MemoryError> {
        let before = self.registered.take();
        let registered = rdma_port.ring_to_send(&self.lease, before.as_ref());
        leave_replaced(before, registered.as_ref().ok(), leftovers);
        self.registered = Some(registered?);
        Ok(())
    }

    /// Returns the ring as a device sends from it.
    #[inline]
    pub(super) fn registered(&self) -> Option<&RegisteredRing> {
        self.registered.as_deref()
    }
}

/// The bytes of a large message.
#[derive(Debug)]
pub(crate) enum MessageBytes {
    /// The beginning of memory of the node, in which the message was encoded.
    Lease(LargeLease),
    /// The program's own memory, all of it, which nobody changes, and its registration if the path
    /// requires that.
    Slice(RegionSlice, Option<Arc<RegisteredMessage>>),
}

impl From<LargeLease> for MessageBytes {
    fn from(lease: LargeLease) -> Self {
        Self::Lease(lease)
    }
}

impl MessageBytes {
    /// Returns where the message begins in memory that is registered.
    fn offset(&self) -> usize {
        match self {
            Self::Lease(_) => 0,
            Self::Slice(slice, _) => mapped_bytes(slice).map_or(0, |(_, start)| start),
        }
    }
}

/// A large message that is being sent.
#[derive(Debug)]
pub(crate) struct MessageMemory {
    /// The message as a device sends from it. Dropped before `bytes`, whose drop may be waited for.
    registered: Option<Arc<RegisteredMessage>>,
    bytes: MessageBytes,
    /// The slice that `bytes` are a copy of. The copy is made in a turn, which drops no slice.
    copied: Option<RegionSlice>,
    length: usize,
}

impl MessageMemory {
    /// Takes over a message, which its handle has registered if the path requires that.
    pub(crate) fn new(bytes: MessageBytes, length: usize, path: &FramePath) -> Self {
        let rdma_port = path.rdma_port();
        let (bytes, registered) = match bytes {
            MessageBytes::Lease(lease) => {
                let registered = rdma_port.and_then(|port| port.registered_message(&lease));
                (MessageBytes::Lease(lease), registered)
            }
            MessageBytes::Slice(slice, registered) => {
                (MessageBytes::Slice(slice, None), registered)
            }
        };
        Self {
            registered,
            bytes,
            copied: None,
            length,
        }
    }

    /// Returns the bytes of the message.
    #[inline]
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// Returns whether a chunk of this message is its last.
    #[inline]
    pub(crate) fn ends_with(&self, chunk: Chunk) -> bool {
        chunk.offset as usize + chunk.bytes == self.length
    }

    /// Gives memory of the node back to its pool. Returns what a turn must not drop, if anything:
    /// memory of the program, which may be notified, and what takes long to free.
    pub(crate) fn give_back(self) -> Option<Leftover> {
        let Self {
            registered,
            bytes,
            copied,
            ..
        } = self;
        // A registration that is not attached to the memory is the message's own. The pool may drop
        // what is attached as soon as it has the memory.
        let registered = registered.filter(|registered| Arc::strong_count(registered) == 1);
        let (slice, unmapped) = match bytes {
            MessageBytes::Lease(lease) => (copied, lease.give_back()),
            MessageBytes::Slice(slice, _) => (Some(slice), Vec::new()),
        };
        let has_any = registered.is_some() || slice.is_some() || !unmapped.is_empty();
        has_any.then_some(Leftover {
            _registered: registered,
            _slice: slice,
            _unmapped: unmapped,
        })
    }

    /// Returns whether the message lies in a file that the program has mapped.
    pub(crate) fn is_of_file(&self) -> bool {
        matches!(&self.bytes, MessageBytes::Slice(slice, _) if is_of_file(slice))
    }

    /// Returns the message's first byte.
    #[inline]
    pub(crate) fn base(&self) -> NonNull<u8> {
        match &self.bytes {
            MessageBytes::Lease(lease) => lease.base(),
            MessageBytes::Slice(slice, _) => NonNull::from(&**slice).cast(),
        }
    }

    /// Registers the message with `rdma_port`, unless it is registered already. A registration with
    /// another port goes to `leftovers`.
    fn register(
        &mut self,
        rdma_port: &RdmaPort,
        leftovers: &mut Vec<Box<dyn Any>>,
    ) -> Result<(), MemoryError> {
        let before = self.registered.take();
        let registered = self.registration(rdma_port, before.as_ref());
        leave_replaced(before, registered.as_ref().ok(), leftovers);
        self.registered = Some(registered?);
        Ok(())
    }

    /// Returns the registration of the message with `rdma_port`: `before`, if it is that, or another.
    /// A slice whose region is not registered is copied, since the region may be much longer.
    fn registration(
        &mut self,
        rdma_port: &RdmaPort,
        before: Option<&Arc<RegisteredMessage>>,
    ) -> Result<Arc<RegisteredMessage>, MemoryError> {
        let slice = match &self.bytes {
            MessageBytes::Lease(lease) => {
                return rdma_port.message_to_send(lease, self.length, before);
            }
            MessageBytes::Slice(slice, _) => slice,
        };
        let mapped = mapped_bytes(slice);
        let registered = mapped.and_then(|(mapped, _)| rdma_port.registered_mapped(mapped, before));
        if let Some(registered) = registered {
            return Ok(registered);
        }
        // No frame in flight refers to the slice: the registration of one that does is still valid,
        // or its device has ended.
        let copy = MessageBytes::Lease(copied(slice)?);
        if let MessageBytes::Slice(slice, _) = mem::replace(&mut self.bytes, copy) {
            self.copied = Some(slice);
        }
        self.registration(rdma_port, None)
    }

    /// Returns the registration of the message, and where the message lies in it.
    #[cfg(any(test, feature = "verbs"))]
    pub(super) fn registered(&self) -> Option<(&RegisteredMessage, Range<usize>)> {
        let start = self.bytes.offset();
        Some((self.registered.as_deref()?, start..start + self.length))
    }

    /// Returns the registration of the message with the port of a rail, and where the message lies in
    /// it.
    #[cfg(any(test, feature = "verbs"))]
    pub(super) fn registered_at(
        &self,
        rdma_port: &RdmaPort,
    ) -> Option<(Arc<RegisteredMessage>, Range<usize>)> {
        let registered = match &self.bytes {
            MessageBytes::Lease(lease) => rdma_port.message_target(lease, self.length)?,
            MessageBytes::Slice(slice, _) => {
                let (mapped, _) = mapped_bytes(slice)?;
                rdma_port.registered_mapped(mapped, None)?
            }
        };
        let start = self.bytes.offset();
        Some((registered, start..start + self.length))
    }

    /// Returns a chunk of the message as a piece for a device; `None` if it is not registered.
    #[inline]
    #[cfg(any(test, feature = "verbs"))]
    pub(super) fn piece(&self, chunk: Chunk) -> Option<ScatterEntry<'_>> {
        let start = self.bytes.offset() + chunk.offset as usize;
        let registered = self.registered.as_deref()?;
        Some(registered.piece(start..start + chunk.bytes))
    }
}

/// What is left of a message, to be dropped behind the turn.
pub(crate) struct Leftover {
    // In drop order.
    _registered: Option<Arc<RegisteredMessage>>,
    _slice: Option<RegionSlice>,
    _unmapped: Vec<LargeBuffer>,
}

/// Copies the program's memory to memory that a device may send from, and that no pool keeps.
fn copied(slice: &RegionSlice) -> Result<LargeLease, MemoryError> {
    let mut lease = LargePool::new(0, 0).take(slice.len())?;
    copy_slice(slice, lease.slot()).map_err(|unreadable| {
        let source = io::Error::other(unreadable);
        MemoryError::new(
            MemoryUse::LargeMessage,
            slice.len(),
            "process_vm_readv",
            source,
        )
    })?;
    Ok(lease)
}

/// Registers memory to send from with a device, unless it is registered already. Registrations with
/// another device go to `leftovers`: their ends take long, and belong behind the turn.
pub(crate) fn register_with<'a>(
    rdma_port: &RdmaPort,
    ring: Option<&mut SendRingMemory>,
    mut messages: impl Iterator<Item = &'a mut MessageMemory>,
    leftovers: &mut Vec<Box<dyn Any>>,
) -> Result<(), MemoryError> {
    if let Some(ring) = ring {
        ring.register(rdma_port, leftovers)?;
    }
    messages.try_for_each(|message| message.register(rdma_port, leftovers))
}

/// Leaves the registration `before`, unless `now` is the same one.
fn leave_replaced<T: 'static>(
    before: Option<Arc<T>>,
    now: Option<&Arc<T>>,
    leftovers: &mut Vec<Box<dyn Any>>,
) {
    if let Some(before) = before
        && !now.is_some_and(|now| Arc::ptr_eq(now, &before))
    {
        leftovers.push(Box::new(before));
    }
}
