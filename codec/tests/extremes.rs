//! Every type that has a schema arrives with every value, by every codec that carries it: the
//! values at which a narrower representation would lose something.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};
use std::num::*;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ibex_codec::{Codec, Pod, Rkyv, Serde};
use rkyv::Deserialize;
use rkyv::api::high::HighDeserializer;
use rkyv::rancor::BoxedError;

use support::{Payload, encode_into};

/// A type with the values at which a codec might fail.
trait Extremes: Debug + Sized {
    fn extremes() -> Vec<Self>;

    /// Equal in every bit.
    fn is_same(&self, other: &Self) -> bool;
}

fn encode<C: Codec<T>, T: ?Sized>(value: &T) -> Payload {
    // Most values are small, and to prepare the memory takes longer than to encode.
    let payload = encode_into::<C, T>(value, 1 << 8);
    payload.unwrap_or_else(|_| encode_into::<C, T>(value, 64 << 10).unwrap())
}

fn by_serde<T: Extremes>()
where
    Serde: Codec<T, View = T>,
{
    for value in T::extremes() {
        let payload = encode::<Serde, T>(&value);
        let arrived = |back: &T| assert!(value.is_same(back), "{value:?} arrived as {back:?}");
        payload.read::<Serde, T, _>(arrived).unwrap();
    }
}

fn by_rkyv<T: Extremes>()
where
    Rkyv: Codec<T>,
    <Rkyv as Codec<T>>::View: Sized + Deserialize<T, HighDeserializer<BoxedError>>,
{
    for value in T::extremes() {
        let payload = encode::<Rkyv, T>(&value);
        let back = payload.read::<Rkyv, T, _>(|view| rkyv::deserialize::<T, BoxedError>(view));
        let back = back.unwrap().unwrap();
        assert!(value.is_same(&back), "{value:?} arrived as {back:?}");
    }
}

fn by_pod<T: Extremes + Copy>()
where
    Pod: Codec<T, View = T> + Codec<[T], View = [T]>,
{
    let all = T::extremes();
    for value in &all {
        let payload = encode::<Pod, T>(value);
        let arrived = |back: &T| assert!(value.is_same(back), "{value:?} arrived as {back:?}");
        payload.read::<Pod, T, _>(arrived).unwrap();
    }
    let payload = encode::<Pod, [T]>(&all);
    let arrived = |back: &[T]| assert!(all.iter().zip(back).all(|(a, b)| a.is_same(b)));
    payload.read::<Pod, [T], _>(arrived).unwrap();
}

macro_rules! extremes {
    ($($type:ty: $values:expr;)*) => {$(
        impl Extremes for $type {
            fn extremes() -> Vec<Self> {
                $values.into_iter().collect()
            }

            fn is_same(&self, other: &Self) -> bool {
                self == other
            }
        }
    )*};
}

/// Each power of two and its neighbours: where one byte, word or varint ends and the next begins.
macro_rules! integers {
    ($($type:ident $non_zero:ident)*) => {
        extremes! {$(
            $type: (0..$type::BITS).flat_map(|bit| {
                let power = (1 as $type) << bit;
                [power.wrapping_sub(1), power, power.wrapping_add(1), !power, power.wrapping_neg()]
            }).chain([$type::MIN, $type::MAX]);
            $non_zero: <$type>::extremes().into_iter().filter_map($non_zero::new);
        )*}
    };
}

integers! {
    u8 NonZeroU8 u16 NonZeroU16 u32 NonZeroU32 u64 NonZeroU64 u128 NonZeroU128
    i8 NonZeroI8 i16 NonZeroI16 i32 NonZeroI32 i64 NonZeroI64 i128 NonZeroI128
    usize NonZeroUsize isize NonZeroIsize
}

macro_rules! floats {
    ($($type:ident of $bits:ident)*) => {$(
        impl Extremes for $type {
            /// Every pattern of bits that matters, those of quiet and signalling NaNs included.
            fn extremes() -> Vec<Self> {
                let named = [$type::MIN, $type::MAX, $type::MIN_POSITIVE, $type::EPSILON, 0.0, -0.0,
                    $type::INFINITY, $type::NEG_INFINITY, $type::NAN, -$type::NAN];
                named.into_iter().chain($bits::extremes().into_iter().map($type::from_bits)).collect()
            }

            fn is_same(&self, other: &Self) -> bool {
                self.to_bits() == other.to_bits()
            }
        }
    )*};
}

floats!(f32 of u32 f64 of u64);

extremes! {
    bool: [false, true];
    char: ['\0', '\u{7f}', '\u{80}', '\u{7ff}', '\u{800}', '\u{d7ff}', '\u{e000}', '\u{ffff}',
        '\u{10000}', char::MAX];
    // rkyv keeps up to 8 bytes of a text inline.
    String: [0, 1, 7, 8, 9, 127, 128, 1000].map(|length| "x".repeat(length)).into_iter()
        .chain(char::extremes().into_iter().map(String::from));
    Duration: [Duration::ZERO, Duration::from_nanos(1), Duration::new(1, 999_999_999),
        Duration::new(u64::from(u32::MAX) + 1, 0), Duration::MAX];
    Ipv4Addr: [Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, Ipv4Addr::new(1, 2, 3, 4)];
    Ipv6Addr: [Ipv6Addr::UNSPECIFIED, Ipv6Addr::LOCALHOST, Ipv6Addr::from(u128::MAX),
        Ipv6Addr::from(0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10_u128)];
    IpAddr: Ipv4Addr::extremes().into_iter().map(IpAddr::V4)
        .chain(Ipv6Addr::extremes().into_iter().map(IpAddr::V6));
    SocketAddrV4: Ipv4Addr::extremes().into_iter()
        .flat_map(|ip| [0, 1, u16::MAX].map(|port| SocketAddrV4::new(ip, port)));
    SocketAddrV6: Ipv6Addr::extremes().into_iter()
        .flat_map(|ip| [0, 1, u16::MAX].map(|port| SocketAddrV6::new(ip, port, 0, 0)));
    SocketAddr: SocketAddrV4::extremes().into_iter().map(SocketAddr::V4)
        .chain(SocketAddrV6::extremes().into_iter().map(SocketAddr::V6));
    (): [()];
    PhantomData<String>: [PhantomData];
}

macro_rules! lists {
    ($($list:ident)*) => {$(
        impl<T: Extremes> Extremes for $list<T> {
            fn extremes() -> Vec<Self> {
                [$list::new(), T::extremes().into_iter().collect()].into_iter()
                    .chain(T::extremes().into_iter().map(|value| [value].into_iter().collect()))
                    .collect()
            }

            fn is_same(&self, other: &Self) -> bool {
                self.len() == other.len() && self.iter().zip(other).all(|(a, b)| a.is_same(b))
            }
        }
    )*};
}

lists!(Vec VecDeque);

macro_rules! pointers {
    ($($pointer:ident)*) => {$(
        impl<T: Extremes> Extremes for $pointer<T> {
            fn extremes() -> Vec<Self> {
                T::extremes().into_iter().map($pointer::new).collect()
            }

            fn is_same(&self, other: &Self) -> bool {
                T::is_same(self, other)
            }
        }
    )*};
}

pointers!(Box Rc Arc);

impl<T: Extremes> Extremes for Option<T> {
    fn extremes() -> Vec<Self> {
        T::extremes().into_iter().map(Some).chain([None]).collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Some(value), Some(other)) => value.is_same(other),
            (None, None) => true,
            _ => false,
        }
    }
}

impl<T: Extremes, E: Extremes> Extremes for Result<T, E> {
    fn extremes() -> Vec<Self> {
        let errors = E::extremes().into_iter().map(Err);
        T::extremes().into_iter().map(Ok).chain(errors).collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Ok(value), Ok(other)) => value.is_same(other),
            (Err(error), Err(other)) => error.is_same(other),
            _ => false,
        }
    }
}

impl<A: Extremes, B: Extremes> Extremes for (A, B) {
    fn extremes() -> Vec<Self> {
        A::extremes().into_iter().zip(B::extremes()).collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.0.is_same(&other.0) && self.1.is_same(&other.1)
    }
}

impl<T: Extremes> Extremes for [T; 2] {
    fn extremes() -> Vec<Self> {
        let reversed = T::extremes().into_iter().rev();
        T::extremes()
            .into_iter()
            .zip(reversed)
            .map(|(a, b)| [a, b])
            .collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self[0].is_same(&other[0]) && self[1].is_same(&other[1])
    }
}

impl<T: Extremes> Extremes for Range<T> {
    fn extremes() -> Vec<Self> {
        let ends = T::extremes().into_iter().rev();
        T::extremes()
            .into_iter()
            .zip(ends)
            .map(|(start, end)| start..end)
            .collect()
    }

    fn is_same(&self, other: &Self) -> bool {
        self.start.is_same(&other.start) && self.end.is_same(&other.end)
    }
}

impl<K: Extremes + Ord, V: Extremes> Extremes for BTreeMap<K, V> {
    fn extremes() -> Vec<Self> {
        vec![
            Self::new(),
            K::extremes().into_iter().zip(V::extremes()).collect(),
        ]
    }

    fn is_same(&self, other: &Self) -> bool {
        self.len() == other.len()
            && self
                .iter()
                .zip(other)
                .all(|(a, b)| a.0.is_same(b.0) && a.1.is_same(b.1))
    }
}

impl<K: Extremes + Eq + Hash, V: Extremes> Extremes for HashMap<K, V> {
    fn extremes() -> Vec<Self> {
        vec![
            Self::new(),
            K::extremes().into_iter().zip(V::extremes()).collect(),
        ]
    }

    fn is_same(&self, other: &Self) -> bool {
        let is_there = |(key, value): (&K, &V)| other.get(key).is_some_and(|it| it.is_same(value));
        self.len() == other.len() && self.iter().all(is_there)
    }
}

impl<T: Extremes + Ord> Extremes for BTreeSet<T> {
    fn extremes() -> Vec<Self> {
        vec![Self::new(), T::extremes().into_iter().collect()]
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

impl<T: Extremes + Eq + Hash> Extremes for HashSet<T> {
    fn extremes() -> Vec<Self> {
        vec![Self::new(), T::extremes().into_iter().collect()]
    }

    fn is_same(&self, other: &Self) -> bool {
        self == other
    }
}

/// Sends a type by both codecs, alone and within every type that contains others.
macro_rules! within_all {
    ($($type:ty),*) => {$(
        by_both!(VecDeque<$type>; Box<$type>; [$type; 2];
            Result<$type, $type>; Option<Box<Vec<Option<$type>>>>;
            Range<$type>; Vec<Option<Range<$type>>>; BTreeMap<u16, $type>; HashMap<u16, $type>; Vec<(u8, Vec<$type>)>;
            BTreeMap<String, Option<[$type; 2]>>;);
        // serde has shared pointers only by a feature of its own.
        by_rkyv::<Rc<$type>>();
        by_rkyv::<Vec<Arc<$type>>>();
    )*};
}

macro_rules! by_both {
    ($($type:ty;)*) => {$(
        by_rkyv::<$type>();
        by_serde::<$type>();
    )*};
}

macro_rules! atoms {
    ($($type:ident)*) => {
        const ATOMS: &[&str] = &[$(stringify!($type)),*];

        #[test]
        fn atoms_arrive_by_rkyv_and_serde() {
            $(by_both!($type; Option<$type>; Vec<$type>; ($type, Option<$type>););)*
        }
    };
}

atoms! {
    u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 f32 f64 bool char
    NonZeroU8 NonZeroU16 NonZeroU32 NonZeroU64 NonZeroU128
    NonZeroI8 NonZeroI16 NonZeroI32 NonZeroI64 NonZeroI128
    String Duration
    IpAddr Ipv4Addr Ipv6Addr SocketAddr SocketAddrV4 SocketAddrV6
}

/// The compiler takes a second for each type here, so these stand for the others: the narrowest and
/// the widest, types with a niche, with an inline form, and with several parts.
#[test]
fn atoms_arrive_within_every_type_that_contains_others() {
    within_all!(u8, u64, i128, f64, bool, NonZeroU32, String, SocketAddr);
}

macro_rules! word_sized {
    ($($type:ident)*) => {
        /// Types that rkyv would cut; they are no parts of its messages.
        const WORD_SIZED: &[&str] = &[$(stringify!($type)),*];

        #[test]
        fn word_sized_integers_arrive_by_serde() {
            $(
                by_serde::<$type>();
                by_serde::<Vec<Option<$type>>>();
                by_serde::<BTreeMap<u8, ($type, [$type; 2])>>();
            )*
        }
    };
}

word_sized!(usize isize NonZeroUsize NonZeroIsize);

/// Those that [`within_all`] puts around each atom, and those of the test below.
const COMPOUNDS: &[&str] = &[
    "Box", "Rc", "Arc", "Option", "Result", "Vec", "VecDeque", "BTreeSet", "BTreeMap", "HashSet",
    "HashMap", "Range",
];

#[test]
fn sets_maps_and_types_without_bytes_arrive() {
    by_both!(BTreeSet<u64>; BTreeSet<String>; HashSet<i128>; HashSet<IpAddr>;
        BTreeMap<Duration, Vec<String>>; HashMap<char, Box<SocketAddr>>; HashMap<String, Vec<u128>>;
        (); PhantomData<String>; Option<()>; Box<()>; (u8, ()); Result<(), u64>;
        Range<()>; Option<Range<()>>;
        BTreeMap<u64, ()>; HashMap<u64, PhantomData<String>>;);
    // Shared values without bytes have one position in an archive, and different types.
    by_rkyv::<(Rc<()>, Arc<u64>)>();
    by_rkyv::<(Arc<PhantomData<String>>, (Arc<()>, Arc<Vec<u8>>))>();
}

#[test]
fn plain_data_arrives_by_pod() {
    macro_rules! by_pod {
        ($($type:ty)*) => {
            $(by_pod::<$type>();)*
        };
    }
    by_pod!(u8 u16 u32 u64 u128 i8 i16 i32 i64 i128 usize isize f32 f64 [u64; 2] [f32; 2]);
}

#[test]
fn rkyv_carries_the_scope_of_an_address_and_serde_does_not() {
    let scoped = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7000, 0xf_ffff, u32::MAX);
    let payload = encode::<Rkyv, _>(&scoped);
    let back = |view: &_| rkyv::deserialize::<SocketAddrV6, BoxedError>(view).unwrap();
    assert_eq!(payload.read::<Rkyv, SocketAddrV6, _>(back).unwrap(), scoped);

    // The documentation of `Serde` says so. If serde writes the scope, this sentence goes.
    let payload = encode::<Serde, _>(&scoped);
    let bare = SocketAddrV6::new(Ipv6Addr::LOCALHOST, 7000, 0, 0);
    assert_eq!(
        payload
            .read::<Serde, SocketAddrV6, _>(|back| *back)
            .unwrap(),
        bare
    );
}

#[message]
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
enum Record {
    Nothing,
    Numbers(u64, i64, NonZeroU64),
    Named {
        texts: Vec<Option<String>>,
        by_key: BTreeMap<i16, (char, Duration)>,
    },
    Inner(Box<Record>),
}

extremes! {
    Record: [Record::Nothing].into_iter()
        .chain(u64::extremes().into_iter().zip(i64::extremes())
            .map(|(a, b)| Record::Numbers(a, b, NonZeroU64::MAX)))
        .chain(Vec::extremes().into_iter().zip(BTreeMap::extremes())
            .map(|(texts, by_key)| Record::Named { texts, by_key }))
        .chain([Record::Inner(Box::new(Record::Inner(Box::new(Record::Nothing))))]);
}

#[test]
fn messages_of_a_program_arrive() {
    by_both!(Record; Option<Record>; Vec<(u8, Record)>;);
}

/// A list of elements without bytes states its length alone, so no length may cost time.
#[test]
fn a_stated_length_costs_no_more_than_the_payload() {
    let payload = Payload::new(&[0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    assert!(payload.read::<Rkyv, Vec<u8>, _>(|_| ()).is_err());
    assert!(payload.read::<Rkyv, Vec<Option<()>>, _>(|_| ()).is_err());
    assert!(payload.read::<Rkyv, Box<[[u8; 1]]>, _>(|_| ()).is_err());
}

#[test]
fn every_type_with_a_schema_is_sent_here() {
    let source = include_str!("../src/standard_types.rs");
    let body = |start: &str, end: &str| {
        let (_, rest) = source.split_once(start).unwrap();
        rest.split_once(end).unwrap().0
    };

    let atoms = body("\natoms! {", "\n}").split(',');
    let word_sized = body("\natom_schemas!(", ");").split(',');
    let listed: BTreeSet<&str> = atoms.chain(word_sized).map(str::trim).collect();
    let mut sent: BTreeSet<&str> = [ATOMS, WORD_SIZED].concat().into_iter().collect();
    sent.insert(""); // behind the last comma
    assert_eq!(listed, sent);

    let compounds = body("\ncompounds! {", "\n}").split(';');
    let compounds = compounds
        .chain(body("\ncompound_schemas!(", ");").split(';'))
        .filter_map(|line| line.split_once('<'));
    let listed: BTreeSet<&str> = compounds.map(|(name, _)| name.trim()).collect();
    assert_eq!(listed, COMPOUNDS.iter().copied().collect());

    // Arrays and markers are sent above; borrowed forms are written as what they refer to.
    let others = source.lines().filter(|line| line.starts_with("impl"));
    let listed: BTreeSet<&str> = others
        .map(|line| line.split_once(" for ").unwrap().1)
        .collect();
    let known = [
        "str {",
        "[T] {",
        "&T {",
        "Cow<'_, T> {",
        "[T; N] {",
        "PhantomData<T> {",
    ];
    assert_eq!(listed, known.into_iter().collect());
}
