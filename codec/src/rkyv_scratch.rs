//! The memory that rkyv needs beside the slot to write a message: made when first requested, since
//! most messages never need it.
//!
//! rkyv's own high-level functions prepare an arena and a map of shared pointers
//! for every call. For a struct of 64 bytes these were 11 of the 14 ns that it
//! took to encode.
//!
//! Rules for the arena:
//!
//! 1. A thread keeps at most one between messages, in `ARENA`. A call that encodes takes it out. A
//!    message that is encoded inside a serializer therefore finds none and makes its own; the call
//!    that finishes last leaves its arena there.
//! 2. An arena that is taken out keeps only its largest block (`Arena::acquire` frees the others),
//!    so its size follows the largest message and then stays.

use std::alloc::Layout;
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

use rkyv::rancor::Strategy;
use rkyv::ser::allocator::{Arena, ArenaHandle};
use rkyv::ser::sharing::{Share, SharingState};
use rkyv::ser::{Allocator, Serializer, Sharing};

use crate::{EncodeError, SlotWriter};

/// The serializer that [`Rkyv`](crate::Rkyv) passes to a type. Code that is generic over its
/// messages needs only `Rkyv: Codec<T>`.
pub type RkyvSerializer<'w, 's, 'a> =
    Strategy<Serializer<&'w mut SlotWriter<'s>, Scratch<'a>, WrittenPointers>, EncodeError>;

/// The thread's arena, from the first allocation to the end of the message.
#[derive(Default)]
pub(crate) struct ThreadArena(Option<Arena>);

impl ThreadArena {
    pub(crate) fn scratch(&mut self) -> Scratch<'_> {
        Scratch {
            source: Some(self),
            arena: None,
        }
    }

    #[cold]
    fn acquire(&mut self) -> ArenaHandle<'_> {
        // On a thread that is ending, `ARENA` may be gone; this message then uses an arena of its
        // own.
        let kept = ARENA.try_with(Cell::take).ok().flatten();
        self.0.insert(kept.unwrap_or_default()).acquire()
    }
}

impl Drop for ThreadArena {
    #[inline]
    fn drop(&mut self) {
        if let Some(arena) = self.0.take() {
            let _ = ARENA.try_with(|kept| kept.set(Some(arena)));
        }
    }
}

thread_local! {
    static ARENA: Cell<Option<Arena>> = const { Cell::new(None) };
}

/// Memory for the intermediate results of one serialization: an arena, once
/// something asks for it.
pub struct Scratch<'a> {
    /// The source of the arena, until it is claimed.
    source: Option<&'a mut ThreadArena>,
    arena: Option<ArenaHandle<'a>>,
}

// SAFETY: `push_alloc` must return unaliased memory that fits the layout. All
// memory we return comes from one `ArenaHandle`, which promises the same, and
// which we keep for as long as we live.
unsafe impl Allocator<EncodeError> for Scratch<'_> {
    #[inline]
    unsafe fn push_alloc(&mut self, layout: Layout) -> Result<NonNull<[u8]>, EncodeError> {
        if let Some(source) = self.source.take() {
            self.arena = Some(source.acquire());
        }
        let arena = self.arena.as_mut().expect("taken from its source above");
        // SAFETY: `layout` has a size other than zero: promised by our caller.
        unsafe { arena.push_alloc(layout) }
    }

    #[inline]
    unsafe fn pop_alloc(
        &mut self,
        pointer: NonNull<u8>,
        layout: Layout,
    ) -> Result<(), EncodeError> {
        let arena = self.arena.as_mut().expect("what is popped was pushed");
        // SAFETY: `pointer` came from `push_alloc` above with this `layout`, so
        // from this arena; that nothing pushed later is popped later is promised
        // by our caller.
        unsafe { arena.pop_alloc(pointer, layout) }
    }
}

impl fmt::Debug for Scratch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scratch")
            .field("is_in_use", &self.arena.is_some())
            .finish()
    }
}

/// The positions of each `Rc` and `Arc` of a message that was written: a map, once there is one.
#[derive(Debug, Default)]
pub struct WrittenPointers(Option<Share>);

impl Sharing<EncodeError> for WrittenPointers {
    fn start_sharing(&mut self, address: usize) -> SharingState {
        let share = self.0.get_or_insert_default();
        Sharing::<EncodeError>::start_sharing(share, address)
    }

    fn finish_sharing(&mut self, address: usize, position: usize) -> Result<(), EncodeError> {
        let share = self.0.get_or_insert_default();
        share.finish_sharing(address, position)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn use_arena(arena: &mut ThreadArena) -> NonNull<u8> {
        let mut scratch = arena.scratch();
        let layout = Layout::new::<[u64; 16]>();
        // SAFETY: the layout's size is not zero, and nothing else is pushed
        // before the pop.
        unsafe {
            let memory = scratch.push_alloc(layout).unwrap().cast();
            scratch.pop_alloc(memory, layout).unwrap();
            memory
        }
    }

    #[test]
    fn one_message_after_the_other_uses_the_same_memory() {
        let seen: HashSet<_> = (0..10)
            .map(|_| use_arena(&mut ThreadArena::default()))
            .collect();
        assert_eq!(seen.len(), 1);
    }

    #[test]
    fn a_message_within_a_message_has_memory_of_its_own() {
        let mut outer = ThreadArena::default();
        let held = use_arena(&mut outer);
        let nested = use_arena(&mut ThreadArena::default());
        assert_ne!(held, nested);
    }

    #[test]
    fn a_message_that_needs_no_scratch_takes_no_arena() {
        {
            let mut arena = ThreadArena::default();
            let _scratch = arena.scratch();
        }
        assert!(ARENA.take().is_none());
        use_arena(&mut ThreadArena::default());
        assert!(ARENA.take().is_some());
    }
}
