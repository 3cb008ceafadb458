//! Arbitrary bytes, as a peer may send them. `open` answers with yes or no, and a yes is safe to
//! read to the end.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::thread;

use ibex_codec::{Codec, Pod, Rkyv};
use proptest::prelude::*;
use rkyv::Deserialize;
use rkyv::api::high::HighDeserializer;
use rkyv::rancor::BoxedError;

use support::{Payload, encode, encode_into, read_bytes};

#[message]
#[derive(Debug)]
struct Everything {
    name: String,
    bytes: Vec<u8>,
    wide: Vec<u128>,
    nested: Vec<Vec<Option<String>>>,
    ordered: BTreeMap<u32, String>,
    hashed: HashMap<String, u64>,
    shared: Vec<Arc<[u16]>>,
    choice: Choice,
    letter: char,
    flag: bool,
    list: List,
}

#[message]
#[derive(Debug)]
enum Choice {
    Nothing,
    Text(Box<str>),
    Number { value: std::num::NonZeroU32 },
}

/// A type that contains itself, as rkyv wants such types written.
#[message]
#[rkyv(
    serialize_bounds(__S: rkyv::ser::Writer + rkyv::ser::Allocator),
    deserialize_bounds(__D::Error: rkyv::rancor::Source),
    bytecheck(bounds(__C: rkyv::validation::ArchiveContext))
)]
#[derive(Debug)]
enum List {
    End,
    Link(u32, #[rkyv(omit_bounds)] Box<List>),
}

impl List {
    fn of(links: u32) -> Self {
        (0..links).fold(Self::End, |rest, i| Self::Link(i, Box::new(rest)))
    }
}

fn everything() -> Everything {
    let shared: Arc<[u16]> = (0..9).collect();
    Everything {
        name: "a name that is too long to be kept inline".to_owned(),
        bytes: (0..100).collect(),
        wide: vec![u128::MAX, 1],
        nested: vec![vec![None, Some("x".to_owned())], vec![]],
        ordered: (0..40).map(|i| (i, i.to_string())).collect(),
        hashed: (0..20).map(|i| (i.to_string(), i)).collect(),
        shared: vec![shared.clone(), shared],
        choice: Choice::Text("text".into()),
        letter: 'λ',
        flag: true,
        list: List::of(3),
    }
}

/// Opens `bytes` and, if they are valid, reads every part of the view: a bad
/// length or pointer that the check had let through would show here.
fn challenge<T>(bytes: &[u8]) -> bool
where
    Rkyv: Codec<T>,
    <Rkyv as Codec<T>>::View: Sized + Deserialize<T, HighDeserializer<BoxedError>>,
    T: std::fmt::Debug,
{
    read_bytes::<Rkyv, T, _>(bytes, |view| {
        // A valid value may be too deep or too shared to deserialize; trying must be safe.
        if let Ok(value) = rkyv::deserialize::<T, BoxedError>(view) {
            assert!(!format!("{value:?}").is_empty());
        }
    })
    .is_ok()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512), skip in 0..64_usize) {
        let payload = Payload::new(&bytes);
        let bytes = &payload.bytes()[skip.min(bytes.len())..];
        challenge::<Everything>(bytes);
        challenge::<Vec<String>>(bytes);
        challenge::<BTreeMap<u8, u8>>(bytes);
        challenge::<HashMap<u16, u16>>(bytes);
        challenge::<List>(bytes);
        let _ = read_bytes::<Pod, [u32; 4], _>(bytes, |view| *view);
        let _ = read_bytes::<Pod, [u64], _>(bytes, <[u64]>::to_vec);
    }

    /// Random bytes with small numbers in them: such lengths and offsets point
    /// somewhere near, and pass the first checks.
    #[test]
    fn plausible_bytes(words in prop::collection::vec(-64..64_i32, 0..128)) {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let payload = Payload::new(&bytes);
        challenge::<Everything>(payload.bytes());
        challenge::<Vec<Vec<u32>>>(payload.bytes());
        challenge::<BTreeMap<u32, u32>>(payload.bytes());
        challenge::<HashMap<u32, u32>>(payload.bytes());
        challenge::<Vec<Arc<u32>>>(payload.bytes());
        challenge::<List>(payload.bytes());
    }

    #[test]
    fn flipped_bits(flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4)) {
        let mut bytes = encode::<Rkyv, _>(&everything()).bytes().to_vec();
        for flip in flips {
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        challenge::<Everything>(Payload::new(&bytes).bytes());
    }
}

#[test]
fn every_truncation_and_every_offset() {
    let payload = encode::<Rkyv, _>(&everything());
    let bytes = payload.bytes();
    assert!(challenge::<Everything>(bytes));
    for cut in 1..=bytes.len() {
        challenge::<Everything>(&bytes[..bytes.len() - cut]);
        challenge::<Everything>(&bytes[cut..]);
    }
}

/// Runs where encoding, which recurses as deep as the value does, has room.
fn with_deep_stack<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    thread::scope(|scope| {
        let thread = thread::Builder::new().stack_size(256 << 20);
        thread.spawn_scoped(scope, work).unwrap().join().unwrap()
    })
}

#[test]
fn nesting_ends_at_its_limit_and_not_at_the_end_of_the_stack() {
    // Written by rkyv alone, whose sender knows no limit.
    let opens = |links| {
        let bytes = with_deep_stack(|| rkyv::to_bytes::<BoxedError>(&List::of(links)));
        Payload::new(&bytes.unwrap()).read::<Rkyv, List, _>(|_| ())
    };

    // The root is the first level: one pointer less than the limit allows.
    assert!(opens(254).is_ok());
    let error = opens(255).unwrap_err();
    assert!(
        error.to_string().contains("maximum subtree depth"),
        "{error}"
    );
    assert!(opens(100_000).is_err());
}

#[message]
struct Holder<T> {
    inner: Option<T>,
}

#[test]
fn a_sender_refuses_the_nesting_that_its_receiver_would() {
    fn encoded<T>(value: impl FnOnce() -> T + Send) -> Result<Payload, String>
    where
        Rkyv: Codec<T>,
    {
        with_deep_stack(|| {
            let result = encode_into::<Rkyv, T>(&value(), 4 << 20);
            result.map_err(|error| error.to_string())
        })
    }

    let payload = encoded(|| List::of(254)).unwrap();
    payload.read::<Rkyv, List, _>(|_| ()).unwrap();
    for links in [255, 256, 1000, 100_000] {
        let error = encoded(|| List::of(links)).unwrap_err();
        assert!(
            error.contains("List: its pointers are nested deeper than 254"),
            "{error}"
        );
    }
    // Within another type, one that does not contain itself.
    let held = |links| Holder {
        inner: Some(vec![List::of(links)]),
    };
    let payload = encoded(|| held(253)).unwrap();
    payload.read::<Rkyv, Holder<Vec<List>>, _>(|_| ()).unwrap();
    assert!(encoded(|| held(254)).is_err());
}

#[test]
fn memory_that_is_not_aligned_does_not_change_the_senders_check() {
    let mut memory = vec![std::mem::MaybeUninit::uninit(); 1 << 10];
    for skip in 0..16 {
        let mut slot = ibex_codec::SlotWriter::new(&mut memory[skip..]);
        Rkyv::encode(&List::of(20), &mut slot).unwrap();
        Payload::new(slot.written())
            .read::<Rkyv, List, _>(|_| ())
            .unwrap();
    }
}
