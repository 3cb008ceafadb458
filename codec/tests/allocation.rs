//! Encoding, checking and viewing allocate nothing once a thread is warm, and a length that a peer
//! claims is not allocated before the bytes are there.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use std::mem::MaybeUninit;

use ibex_codec::{
    Codec, EncodeError, Pod, Raw, Rkyv, Serde, SerdeBorrowed, SlotWriter, serde_bytes,
};
use serde::{Deserialize, Serialize};

use support::{Payload, encode};

/// The system's allocator, counting the calls of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_BYTES: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to `System`, unchanged, under the promises
// that our caller made for it. The counter is const-initialized and needs no
// drop, so that reaching it allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size() as u64);
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + size as u64);
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
#[derive(Serialize, Deserialize)]
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

#[derive(Serialize, Deserialize, Schema)]
struct Borrower<'a> {
    offset: u64,
    name: &'a str,
    #[serde(with = "serde_bytes")]
    data: &'a [u8],
}

/// A decoded value owns what it holds; the sender, and a receiver that borrows, need nothing.
#[test]
fn a_message_by_serde_is_sent_and_borrowed_without_allocating() {
    let mut memory = vec![MaybeUninit::uninit(); 64 * 1024];
    let value = entry();
    let send = || Serde::encode(&value, &mut SlotWriter::new(&mut memory)).unwrap();
    assert_eq!(allocations(send), 0);

    let value = Borrower {
        offset: 1,
        name: "name",
        data: &[7; 1000],
    };
    let sent = encode::<SerdeBorrowed, Borrower<'static>>(&value);
    let carry = || {
        one_message::<SerdeBorrowed, Borrower<'static>>(&value, &mut memory, &sent);
        let entry = SerdeBorrowed::decode::<Borrower<'static>>(sent.bytes()).unwrap();
        assert_eq!(black_box(entry.data).len(), 1000);
    };
    assert_eq!(allocations(carry), 0);
}

/// A slot near the end of a full ring occurs all the time.
#[test]
fn an_overflow_allocates_nothing() {
    let value = entry();
    let mut memory = [MaybeUninit::uninit(); 3100];
    let overflow = || {
        let result = Rkyv::encode(&value, &mut SlotWriter::new(&mut memory));
        assert!(matches!(result, Err(EncodeError::Overflow(_))));
        let result = Serde::encode(&value, &mut SlotWriter::new(&mut memory));
        assert!(matches!(result, Err(EncodeError::Overflow(_))));
    };
    assert_eq!(allocations(overflow), 0);
}

/// A length is a claim. Only a few bytes follow it, and only about as many are allocated: serde's
/// own types reserve up to 1 MiB ahead, once for each level that a claim can reach.
#[test]
fn a_claimed_length_is_not_allocated() {
    fn refuse<T: Send + 'static>(payload: &[u8], most: u64)
    where
        Serde: Codec<T, Held = T>,
    {
        let before = ALLOCATED_BYTES.get();
        assert!(<Serde as Codec<T>>::open(payload).is_err());
        let allocated = ALLOCATED_BYTES.get() - before;
        assert!(
            allocated <= most,
            "{} reserves {allocated} bytes for {payload:?}",
            std::any::type_name::<T>()
        );
    }
    const AHEAD: u64 = 1 << 20;
    const TEXT: u64 = 4096;
    let all = b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01\x01\x01";
    refuse::<String>(all, TEXT);
    refuse::<Entry>(&[b"\x01", &all[..]].concat(), TEXT);
    refuse::<serde_bytes::ByteBuf>(all, TEXT);
    refuse::<Vec<u8>>(all, TEXT);
    refuse::<Vec<[u64; 32]>>(all, TEXT);
    refuse::<Vec<Vec<u64>>>(&all[..].repeat(10), TEXT);
    refuse::<BTreeMap<u64, u64>>(all, TEXT);
    // A map is believed as far as there are bytes, and reserves twice as much.
    refuse::<HashMap<u64, [u64; 16]>>(all, 4 * AHEAD);
    refuse::<HashMap<(), ()>>(all, 4 * AHEAD);
}

#[test]
fn the_counter_sees_a_planted_allocation() {
    assert_eq!(allocations(|| drop(black_box(Box::new(1_u8)))), 10_000);
}
