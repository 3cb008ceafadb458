//! Encoding, checking and viewing allocate nothing once a thread is warm.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::mem::MaybeUninit;

use ibex_codec::{Codec, EncodeError, Pod, Raw, Rkyv, SlotWriter};

use support::{Payload, encode};

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System`, unchanged, under the promises
// that our caller made for it. The counter is const-initialized and needs no
// drop, so that reaching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of this thread while `work` ran 10 000 times, after 100 runs of
/// warm-up.
fn allocations(mut work: impl FnMut()) -> u64 {
    for _ in 0..100 {
        work();
    }
    let before = ALLOCATIONS.get();
    for _ in 0..10_000 {
        work();
    }
    ALLOCATIONS.get() - before
}

#[message]
struct Entry {
    offset: u64,
    data: Vec<u8>,
    names: Vec<String>,
    index: BTreeMap<u32, String>,
}

fn entry() -> Entry {
    Entry {
        offset: 1,
        data: vec![7; 3000],
        names: (0..200)
            .map(|i| format!("a name beyond the inline length: {i}"))
            .collect(),
        index: (0..100).map(|i| (i, i.to_string())).collect(),
    }
}

/// Encodes, opens and views one message, in memory that the caller keeps.
fn one_message<C: Codec<T>, T: ?Sized>(value: &T, memory: &mut [MaybeUninit<u8>], sent: &Payload) {
    C::encode(value, &mut SlotWriter::new(memory)).unwrap();
    sent.read::<C, T, _>(|view| {
        black_box(view);
    })
    .unwrap();
}

#[test]
fn a_message_allocates_nothing() {
    let mut memory = vec![MaybeUninit::uninit(); 64 * 1024];

    let (value, sent) = (entry(), encode::<Rkyv, _>(&entry()));
    assert_eq!(
        allocations(|| one_message::<Rkyv, _>(&value, &mut memory, &sent)),
        0
    );

    let bytes = [1_u8; 1000];
    let sent = encode::<Raw, _>(&bytes[..]);
    assert_eq!(
        allocations(|| one_message::<Raw, [u8]>(&bytes, &mut memory, &sent)),
        0
    );

    let words = [1_u64; 100];
    let sent = encode::<Pod, _>(&words[..]);
    assert_eq!(
        allocations(|| one_message::<Pod, [u64]>(&words, &mut memory, &sent)),
        0
    );
}

/// A slot near the end of a full ring is an everyday matter.
#[test]
fn an_overflow_allocates_nothing() {
    let value = entry();
    let mut memory = [MaybeUninit::uninit(); 3100];
    let overflow = || {
        let result = Rkyv::encode(&value, &mut SlotWriter::new(&mut memory));
        assert!(matches!(result, Err(EncodeError::Overflow(_))));
    };
    assert_eq!(allocations(overflow), 0);
}

#[test]
fn the_counter_sees_a_planted_allocation() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1_u8)))), 10_000);
}
