//! Every codec returns the value that went in; and a slot that is too small gives an overflow and
//! nothing else, whatever its size.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::sync::Arc;

use ibex_codec::{Codec, EncodeError, MAX_ALIGNMENT, MIN_ALIGNMENT, Pod, Raw, Rkyv, SlotWriter};
use rkyv::Deserialize;
use rkyv::api::high::HighDeserializer;
use rkyv::rancor::BoxedError;

use support::{encode, encode_into, read_bytes};

#[message]
#[derive(Debug, Clone, PartialEq)]
struct Order {
    id: u64,
    precise: u128,
    symbol: String,
    legs: Vec<Leg>,
    by_venue: BTreeMap<String, u32>,
    by_id: HashMap<u64, Vec<u8>>,
    shared: [Arc<String>; 2],
    kind: Kind,
    parent: Option<Box<i16>>,
}

#[message]
#[derive(Debug, Clone, PartialEq)]
struct Leg(u32, f64, bool, char);

#[message]
#[derive(Debug, Clone, PartialEq)]
enum Kind {
    Market,
    Limit { price: f64 },
    Pegged(i32, String),
}

#[message]
#[derive(Debug, Clone, PartialEq)]
struct Nothing;

#[message]
#[derive(Debug, Clone, PartialEq)]
struct Pair<A, B> {
    a: A,
    b: B,
}

fn order() -> Order {
    let shared = Arc::new("a text that is longer than what rkyv keeps inline".to_owned());
    Order {
        id: 7,
        precise: u128::MAX / 3,
        symbol: "IBEX".to_owned(),
        legs: vec![Leg(1, 1.5, true, 'ä'), Leg(2, -0.0, false, '𝄞')],
        by_venue: (0..20).map(|i| (format!("venue {i}"), i)).collect(),
        by_id: (0..20).map(|i| (i, vec![i as u8; i as usize])).collect(),
        shared: [shared.clone(), shared],
        kind: Kind::Pegged(-3, "bid".to_owned()),
        parent: Some(Box::new(-1)),
    }
}

/// Encodes, checks the size, tries every smaller slot, and gives back what the
/// receiver makes of it.
fn round_trip<C: Codec<T>, T: ?Sized, R>(value: &T, read: impl FnOnce(&C::View) -> R) -> R {
    let alignment = C::alignment();
    assert!(alignment.is_power_of_two());
    assert!((MIN_ALIGNMENT..=MAX_ALIGNMENT).contains(&alignment));

    let payload = encode::<C, T>(value);
    let len = payload.bytes().len();
    if let Some(size) = C::size(value) {
        assert_eq!(size, len, "`size` promises the exact size");
    }
    let exact = encode_into::<C, T>(value, len).expect("a slot of the exact size suffices");
    assert_eq!(exact.bytes(), payload.bytes());
    for room in 0..len {
        match encode_into::<C, T>(value, room) {
            Err(EncodeError::Overflow(_)) => {}
            other => panic!("{len} bytes into a slot of {room} gave {other:?}"),
        }
    }
    payload
        .read::<C, T, R>(read)
        .expect("what was encoded is valid")
}

fn rkyv_round_trip<T>(value: &T)
where
    Rkyv: Codec<T>,
    <Rkyv as Codec<T>>::View: Sized + Deserialize<T, HighDeserializer<BoxedError>>,
    T: Debug + PartialEq,
{
    let back = round_trip::<Rkyv, T, T>(value, |view| {
        rkyv::deserialize::<T, BoxedError>(view).unwrap()
    });
    assert_eq!(&back, value);
}

#[test]
fn rkyv_messages() {
    rkyv_round_trip(&order());
    rkyv_round_trip(&Nothing);
    rkyv_round_trip(&Kind::Market);
    rkyv_round_trip(&Kind::Limit { price: 99.5 });
    rkyv_round_trip(&Pair {
        a: Leg(0, 0.0, false, 'x'),
        b: vec![u128::MAX; 3],
    });
    rkyv_round_trip(&0x0102_0304_u32);
    rkyv_round_trip(&vec![u128::MAX; 5]);
    rkyv_round_trip(&"short".to_owned());
    rkyv_round_trip(&(1_u8, Some("x".repeat(100))));
}

#[test]
fn rkyv_is_read_in_place() {
    let payload = encode::<Rkyv, _>(&Pair {
        a: 1_u64,
        b: vec![7_u8; 100],
    });
    let within = payload.bytes().as_ptr_range();
    payload
        .read::<Rkyv, Pair<u64, Vec<u8>>, _>(|view| {
            assert_eq!(&*view.b, &[7; 100]);
            assert!(within.contains(&view.b.as_ptr()));
        })
        .unwrap();
}

#[test]
fn rkyv_knows_the_size_of_types_without_pointers() {
    assert_eq!(<Rkyv as Codec<u64>>::size(&1), Some(8));
    assert_eq!(<Rkyv as Codec<[u16; 5]>>::size(&[0; 5]), Some(10));
    assert_eq!(<Rkyv as Codec<String>>::size(&String::new()), None);
}

/// The payload's own alignment also holds for the data behind pointers, even where the root's
/// alignment alone would not do.
#[test]
fn rkyv_aligns_for_nested_data() {
    type Message = Vec<u128>;
    assert!(align_of::<rkyv::Archived<Message>>() < 16);
    assert_eq!(<Rkyv as Codec<Message>>::alignment(), 16);

    let payload = encode::<Rkyv, Message>(&vec![1, 2]);
    let mut shifted = support::Payload::new(&[&[0; 8], payload.bytes()].concat());
    let eight_off = &shifted.bytes()[8..];
    let error = read_bytes::<Rkyv, Message, _>(eight_off, |_| ()).unwrap_err();
    assert!(error.to_string().contains("unaligned"), "{error}");

    shifted = support::Payload::new(&[&[0; 16], payload.bytes()].concat());
    read_bytes::<Rkyv, Message, _>(&shifted.bytes()[16..], |view| assert_eq!(view[1], 2)).unwrap();
}

#[message]
#[rkyv(attr(repr(align(64))))]
struct Line {
    word: u64,
}

#[message]
#[rkyv(attr(repr(align(32))))]
struct HalfLine {
    data: Vec<u8>,
}

#[test]
fn rkyv_refuses_an_alignment_it_cannot_pad_to() {
    assert_eq!(<Rkyv as Codec<Line>>::alignment(), 64);
    match encode_into::<Rkyv, _>(&Line { word: 1 }, 1024) {
        Err(EncodeError::Failed(error)) => {
            assert!(error.to_string().contains("aligned to 64"), "{error}");
        }
        other => panic!("{other:?}"),
    }

    assert_eq!(<Rkyv as Codec<HalfLine>>::alignment(), 32);
    let half_line = HalfLine {
        data: vec![1, 2, 3],
    };
    round_trip::<Rkyv, HalfLine, _>(&half_line, |view| assert_eq!(&*view.data, &[1, 2, 3]));
}

/// Nested data that is stricter than the payload is refused where it lies wrong,
/// and read where it lies right.
#[test]
fn rkyv_rejects_nested_data_that_lies_wrong() {
    #[message]
    struct Holder {
        lines: Vec<HalfLine>,
    }
    let lines = vec![HalfLine { data: vec![5] }];
    let payload = encode::<Rkyv, _>(&Holder { lines });
    assert_eq!(<Rkyv as Codec<Holder>>::alignment(), 16);

    let moved = |by| support::Payload::new(&[&vec![0; by], payload.bytes()].concat());
    let read =
        |by| read_bytes::<Rkyv, Holder, _>(&moved(by).bytes()[by..], |view| view.lines[0].data[0]);
    assert_eq!(read(32).unwrap(), 5);
    let error = read(16).unwrap_err().to_string();
    assert!(
        error.contains("unaligned") && error.contains("32"),
        "{error}"
    );
}

#[test]
fn rkyv_reports_a_value_that_cannot_be_archived() {
    #[message]
    struct Located {
        #[rkyv(with = rkyv::with::AsString)]
        #[ibex(schema = String)]
        path: std::path::PathBuf,
    }
    use std::os::unix::ffi::OsStringExt;
    let path = std::ffi::OsString::from_vec(vec![0xff]).into();
    match encode_into::<Rkyv, _>(&Located { path }, 1024) {
        Err(EncodeError::Failed(error)) => assert!(!error.to_string().is_empty()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn raw_bytes() {
    for bytes in [&b""[..], b"x", &[7; 1000]] {
        round_trip::<Raw, [u8], _>(bytes, |view| assert_eq!(view, bytes));
    }
}

/// The arguments that a sender of raw bytes accepts without a conversion: its `send` takes `&T`,
/// as `encode` does.
#[test]
fn raw_takes_literals_and_vectors() {
    let mut memory = [std::mem::MaybeUninit::uninit(); 16];
    let mut slot = SlotWriter::new(&mut memory);
    Raw::encode(b"abc", &mut slot).unwrap();
    let vector: Vec<u8> = b"de".to_vec();
    Raw::encode(&vector, &mut slot).unwrap();
    assert_eq!(slot.written(), b"abcde");
}

#[derive(Debug, Clone, Copy, PartialEq, bytemuck::Pod, bytemuck::Zeroable, Schema)]
#[repr(C)]
struct Tick {
    instrument: u64,
    price: f64,
    flags: [u16; 4],
}

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable, Schema)]
#[repr(C, align(32))]
struct Wide([u8; 32]);

#[test]
fn pod_values_and_slices() {
    let tick = Tick {
        instrument: 3,
        price: -2.5,
        flags: [1, 2, 3, 4],
    };
    round_trip::<Pod, Tick, _>(&tick, |view| assert_eq!(*view, tick));
    round_trip::<Pod, [Tick], _>(&[tick; 3], |view| assert_eq!(view, [tick; 3]));
    round_trip::<Pod, [Tick], _>(&[], |view| assert!(view.is_empty()));
    round_trip::<Pod, u8, _>(&9, |view| assert_eq!(*view, 9));
    assert_eq!(<Pod as Codec<Wide>>::alignment(), 32);
    assert_eq!(<Pod as Codec<u8>>::alignment(), 8);
}

#[test]
fn pod_names_the_length_or_alignment_that_does_not_fit() {
    let payload = support::Payload::new(&[0; 64]);
    let bytes = payload.bytes();
    assert!(read_bytes::<Pod, Tick, _>(&bytes[..24], |_| ()).is_ok());

    let refused = |bytes| {
        read_bytes::<Pod, Tick, _>(bytes, |_| ())
            .unwrap_err()
            .to_string()
    };
    let short = refused(&bytes[..23]);
    assert!(
        short.contains("exactly 24 bytes") && short.contains("got 23 bytes"),
        "{short}"
    );
    let unaligned = refused(&bytes[4..28]);
    assert!(
        unaligned.contains("aligned to 8") && unaligned.contains("is 4 modulo 64"),
        "{unaligned}"
    );
    let uneven = read_bytes::<Pod, [Tick], _>(&bytes[..25], |_| ())
        .unwrap_err()
        .to_string();
    assert!(uneven.contains("a multiple of 24 bytes"), "{uneven}");
}
