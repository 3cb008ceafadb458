//! The words by which the two ends of a channel know of each other.
//!
//! Rules:
//!
//! 1. Each end owns a block of words. Only that end writes it (over a network, the engine does, as
//!    a copy of the peer's report), and the other end reads it. Between processes blocks stand in
//!    control segments, which are read-only on the other side.
//! 2. A block consists of atomics from end to end, so that a reference to it covers no
//!    byte that another process could change behind the compiler's back. A peer's word is
//!    a claim: its reader checks it.
//! 3. Words that different threads write stand on different cache lines.

use std::{
    any::Any,
    fmt,
    mem::{offset_of, size_of},
    ops::Deref,
    ptr::NonNull,
    sync::{
        Arc,
        atomic::{Ordering, fence},
    },
};

use super::{doorbell::ArmedWord, parking::Rung};
use ibex_base::{
    fork,
    sync::{AtomicU32, AtomicU64},
};
use ibex_protocol::format::counters::Counters;

/// Bytes of a block in a control segment; the words take half of them.
pub const BLOCK_BYTES: usize = 256;

/// The words of a sending end.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct SenderWords {
    /// The receiver's arming that was rung for last. The headers in the ring say which messages
    /// there are.
    pub rung: Rung,
    _rung_half: AtomicU32,
    /// 0 while the end is open, else its last message's sequence + 1.
    closed_at: AtomicU64,
    _line: [AtomicU64; 6],
    /// The armed word of a sender that waits for release or acknowledgement.
    pub asked: ArmedWord,
    /// Not 0 while the sender waits for release. A receiver that has been asked for a long time
    /// looks at this word.
    pub wants_room: AtomicU32,
    _asked_line: [AtomicU32; 14],
}

/// The words of a receiving end.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct ReceiverWords {
    received: AtomicU64,
    released: AtomicU64,
    released_position: AtomicU64,
    /// Bit 63 says that acknowledgement has ended.
    acknowledged: AtomicU64,
    /// Not 0 once the end is gone.
    closed: AtomicU64,
    _line: [AtomicU64; 3],
    /// The armed word of a receiver that waits for messages.
    pub armed: ArmedWord,
    _armed_line: [AtomicU32; 15],
}

// The layout is shared with another process, which may run another build.
const _: () = {
    assert!(size_of::<SenderWords>() <= BLOCK_BYTES && size_of::<ReceiverWords>() <= BLOCK_BYTES);
    assert!(offset_of!(SenderWords, closed_at) == 8 && offset_of!(SenderWords, asked) == 64);
    assert!(offset_of!(SenderWords, wants_room) == 68);
    assert!(offset_of!(ReceiverWords, released_position) == 16);
    assert!(offset_of!(ReceiverWords, closed) == 32 && offset_of!(ReceiverWords, armed) == 64);
};

/// Loads a word that a peer process may own.
///
/// A relaxed load and a fence instead of an acquire load, because only relaxed loads are
/// promised to work on read-only memory (`std::sync::atomic`, "Atomic accesses to
/// read-only memory"). On x86-64 both are the same instruction.
#[inline]
fn load(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    // CLOSE, RELEASE and GONE: pairs with the two `close` and with the release stores of `report`. It
    // orders nothing for `received` and `acknowledged`, which are counts.
    fence(Ordering::Acquire);
    value
}

const ENDED_BIT: u64 = 1 << 63;

impl SenderWords {
    /// Clears a block for a new end.
    #[inline]
    pub fn reset(&self) {
        self.rung.reset();
        self.closed_at.store(0, Ordering::Relaxed);
        self.asked.reset();
        self.wants_room.store(0, Ordering::Relaxed);
    }

    /// The end closes behind message `last`.
    #[inline]
    pub fn close(&self, last: u64) {
        // CLOSE, pairs with `closed_at`: a reader that sees it sees every record before it.
        self.closed_at.store(last + 1, Ordering::Release);
    }

    /// The last message's sequence, once the end is closed.
    #[inline]
    pub fn closed_at(&self) -> Option<u64> {
        // CLOSE, pairs with `close`.
        load(&self.closed_at).checked_sub(1)
    }
}

impl ReceiverWords {
    /// Clears a block for a new end whose ring begins at `first_position`.
    #[inline]
    pub fn reset(&self, first_position: u64) {
        for word in [
            &self.received,
            &self.released,
            &self.acknowledged,
            &self.closed,
        ] {
            word.store(0, Ordering::Relaxed);
        }
        self.released_position
            .store(first_position, Ordering::Relaxed);
        self.armed.reset();
    }

    /// Publishes counters; only the holder of the advance lock, or the engine, does.
    #[inline]
    pub fn report(&self, counters: &Counters) {
        let ended = if counters.acknowledgement_ended {
            ENDED_BIT
        } else {
            0
        };
        self.received.store(counters.received, Ordering::Relaxed);
        self.acknowledged
            .store(counters.acknowledged | ended, Ordering::Relaxed);
        // RELEASE, pairs with `released`: a sender that sees the prefix may write over the bytes
        // that its guards have read. The position is stored first, so a reader that sees the count
        // sees a position at least as new.
        self.released_position
            .store(counters.released_position, Ordering::Release);
        // RELEASE, pairs with `released`.
        self.released.store(counters.released, Ordering::Release);
    }

    /// Messages that the other engine (over shared memory, the other handle) holds.
    #[inline]
    pub fn received(&self) -> u64 {
        load(&self.received).max(load(&self.released))
    }

    /// The prefix of released messages, and the ring position where it ends.
    #[inline]
    pub fn released(&self) -> (u64, u64) {
        // RELEASE, pairs with `report`.
        let messages = load(&self.released);
        (messages, load(&self.released_position))
    }

    /// The prefix of acknowledged messages, and whether acknowledgement has ended.
    #[inline]
    pub fn acknowledged(&self) -> (u64, bool) {
        let word = load(&self.acknowledged);
        (word & !ENDED_BIT, word & ENDED_BIT != 0)
    }

    /// The end is gone.
    #[inline]
    pub fn close(&self) {
        // GONE, pairs with `is_closed`: a sender that sees it sees the last counters.
        self.closed.store(1, Ordering::Release);
    }

    /// Returns whether the end is gone.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // GONE, pairs with `close`.
        load(&self.closed) != 0
    }
}

/// A block of words together with what keeps its memory.
pub struct Words<T> {
    block: NonNull<T>,
    _memory: Arc<dyn Any + Send + Sync>,
}

// SAFETY: `T` is one of the blocks above, all atomics; the memory is kept by the `Arc`.
unsafe impl<T: Sync> Send for Words<T> {}
// SAFETY: as above; a shared block gives out `&T` of atomics only.
unsafe impl<T: Sync> Sync for Words<T> {}

impl<T: Default + Send + Sync + 'static> Words<T> {
    /// A block of this process.
    #[must_use]
    #[inline]
    pub fn local() -> Self {
        let memory = Arc::new(T::default());
        Self {
            block: NonNull::from(&*memory),
            _memory: memory,
        }
    }

    /// A block in a control segment.
    ///
    /// # Safety
    ///
    /// `block` is valid for atomic access (reads alone, if the mapping is read-only) for
    /// as long as `memory` lives.
    #[must_use]
    #[inline]
    pub unsafe fn mapped(block: NonNull<T>, memory: Arc<dyn Any + Send + Sync>) -> Self {
        Self {
            block,
            _memory: memory,
        }
    }
}

impl<T> Clone for Words<T> {
    #[inline]
    fn clone(&self) -> Self {
        Self {
            block: self.block,
            _memory: self._memory.clone(),
        }
    }
}

impl<T> Deref for Words<T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: valid while `_memory` lives, by construction (`local`) or by the
        // contract of `mapped`; only atomics lie there, so another process's writes
        // do not break the shared reference.
        unsafe { self.block.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Words<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if fork::is_child() {
            // The words may be in memory that the child does not have.
            return f.write_str("Words");
        }
        (**self).fmt(f)
    }
}
