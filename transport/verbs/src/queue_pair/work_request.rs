//! Work requests: what a queue is asked to send or to receive.

use crate::abi::{send_flags, wr_opcode};
use crate::{QueuePairKind, RemoteAddress, RemoteKey, ScatterEntry, WorkId};

/// Declares the methods that set flags of a request (`enum ibv_send_flags`).
macro_rules! flag_methods {
    ($($(#[$doc:meta])* pub fn $name:ident(self) |= $flag:ident;)*) => {$(
        $(#[$doc])*
        #[inline]
        #[must_use]
        pub fn $name(mut self) -> Self {
            self.flags |= crate::abi::send_flags::$flag;
            self
        }
    )*};
}

pub(super) use flag_methods;

/// A request to a send queue.
///
/// See [`ibv_post_send(3)`](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html).
#[derive(Clone, Copy, Debug)]
pub struct SendRequest<'entries, 'memory> {
    pub(super) id: WorkId,
    pub(super) opcode: u32,
    pub(super) flags: u32,
    pub(super) immediate: u32,
    pub(super) remote: RemoteAddress,
    pub(super) entries: &'entries [ScatterEntry<'memory>],
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

    /// Writes the bytes of `entries` into memory that the peer has granted. The peer is not notified of
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

    flag_methods! {
        /// Copies the bytes into the request. They may be used again as soon as it is posted, and the
        /// device needs no second read. For short requests only.
        pub fn inline(self) |= INLINE;
        /// Makes a completion. A completion that succeeds says that all requests before it on this
        /// queue pair have succeeded too.
        pub fn signaled(self) |= SIGNALED;
        /// Wakes a peer that waits for solicited completions only.
        pub fn solicited(self) |= SOLICITED;
        /// Waits for earlier RDMA reads and atomics of this queue pair.
        pub fn fenced(self) |= FENCE;
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
    #[cfg(feature = "all")]
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
    pub(super) fn check(&self, max_entries: usize, max_inline: u32) -> Result<(), PushError> {
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

/// A request to a receive queue: memory for one message.
///
/// See [`ibv_post_recv(3)`](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html).
#[derive(Clone, Copy, Debug)]
pub struct ReceiveRequest<'entries, 'memory> {
    pub(super) id: WorkId,
    pub(super) entries: &'entries [ScatterEntry<'memory>],
}

impl<'entries, 'memory> ReceiveRequest<'entries, 'memory> {
    /// Lets the next message be put into `entries`, one after the other.
    #[inline]
    #[must_use]
    pub fn new(id: WorkId, entries: &'entries [ScatterEntry<'memory>]) -> Self {
        Self { id, entries }
    }
    #[inline]
    pub(super) fn check(&self, max_entries: usize) -> Result<(), PushError> {
        check_entries(self.entries, max_entries)?;
        check_registered(self.entries)
    }
}

#[inline]
pub(super) fn check_entries(entries: &[ScatterEntry<'_>], limit: usize) -> Result<(), PushError> {
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
