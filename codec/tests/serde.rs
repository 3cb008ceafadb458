//! Messages by serde's derives: what is written, what is read, and what is refused.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

mod support;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt::Debug;
use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::thread;

use ibex_codec::{
    Codec, EncodeError, Fingerprint, Rkyv, SchemaInfo, Serde, SerdeBorrowed, WithLifetime,
    serde_bytes,
};
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use support::{Payload, encode, encode_into, read_bytes};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
struct Everything {
    small: (u8, i8, bool, char),
    wide: (u16, u32, u64, u128, i16, i32, i64, i128),
    real: (f32, f64),
    text: String,
    numbers: Vec<u8>,
    #[serde(with = "serde_bytes")]
    bytes: Vec<u8>,
    buffer: serde_bytes::ByteBuf,
    #[serde(with = "ibex_codec::serde_bytes")]
    digest: Option<[u8; 4]>,
    nested: Vec<Option<Box<Choice>>>,
    ordered: BTreeMap<u32, String>,
    hashed: HashMap<String, u64>,
    set: BTreeSet<NonZeroU32>,
    nothing: (),
    marker: PhantomData<u8>,
    rest: Vec<()>,
    tree: Tree,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
enum Choice {
    Nothing,
    Text(Box<str>),
    Pair(u8, u16),
    Number { value: NonZeroU32 },
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, Schema)]
struct Tree {
    key: u64,
    children: Vec<Tree>,
}

fn everything() -> Everything {
    let number = NonZeroU32::new(300).unwrap();
    Everything {
        small: (1, -1, true, 'λ'),
        wide: (
            300,
            70_000,
            u64::MAX,
            u128::MAX,
            -300,
            70_000,
            -1,
            i128::MIN,
        ),
        real: (0.5, -2.5),
        text: "text".to_owned(),
        numbers: vec![1, 2, 3],
        bytes: vec![4, 5, 6],
        buffer: serde_bytes::ByteBuf::from(vec![7; 300]),
        digest: Some([1, 2, 3, 4]),
        nested: vec![
            None,
            Some(Box::new(Choice::Nothing)),
            Some(Box::new(Choice::Text("long enough".into()))),
            Some(Box::new(Choice::Pair(1, 2))),
            Some(Box::new(Choice::Number { value: number })),
        ],
        ordered: (0..20).map(|i| (i, i.to_string())).collect(),
        hashed: [("one".to_owned(), 1)].into(),
        set: [number].into(),
        nothing: (),
        marker: PhantomData,
        rest: vec![(); 3],
        tree: Tree {
            key: 1,
            children: vec![Tree::default(), Tree::default()],
        },
    }
}

fn decoded<T>(bytes: &[u8]) -> Result<T, String>
where
    T: Clone,
    Serde: Codec<T, View = T>,
{
    read_bytes::<Serde, T, _>(bytes, T::clone).map_err(|invalid| invalid.to_string())
}

fn refusal<T>(bytes: &[u8]) -> String
where
    T: Clone + Debug,
    Serde: Codec<T, View = T>,
{
    decoded::<T>(bytes).unwrap_err()
}

#[test]
fn every_kind_of_value_comes_back() {
    let value = everything();
    let payload = encode::<Serde, _>(&value);
    assert_eq!(decoded::<Everything>(payload.bytes()), Ok(value));
}

/// The format is that of postcard 1: <https://postcard.jamesmunns.com/wire-format>.
#[test]
fn the_bytes_are_the_published_format() {
    #[derive(Serialize, Deserialize, Schema)]
    struct Row {
        offset: u32,
        change: i16,
        name: String,
        choice: Choice,
    }
    let row = Row {
        offset: 300,
        change: -2,
        name: "ab".to_owned(),
        choice: Choice::Pair(7, 128),
    };
    let payload = encode::<Serde, _>(&row);
    assert_eq!(payload.bytes(), b"\xac\x02\x03\x02ab\x02\x07\x80\x01");
}

#[test]
fn a_slot_too_small_is_an_overflow_at_every_size() {
    let value = everything();
    let size = encode::<Serde, _>(&value).bytes().len();
    for room in 0..size {
        match encode_into::<Serde, _>(&value, room) {
            Err(EncodeError::Overflow(_)) => {}
            other => panic!("{room} bytes: {other:?}"),
        }
    }
    assert_eq!(
        encode_into::<Serde, _>(&value, size).unwrap().bytes().len(),
        size
    );
}

#[test]
fn a_refusal_by_serialize_is_a_final_error_that_says_so() {
    #[derive(Serialize, Deserialize, Schema)]
    struct Located {
        #[ibex(schema = String)]
        path: std::path::PathBuf,
    }
    use std::os::unix::ffi::OsStringExt;
    let path = std::ffi::OsString::from_vec(vec![0xff]).into();
    match encode_into::<Serde, _>(&Located { path }, 1024) {
        Err(EncodeError::Failed(error)) => {
            let text = error.to_string();
            assert!(
                text.contains("Located") && text.contains("refuses"),
                "{text}"
            );
        }
        other => panic!("{other:?}"),
    }
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
struct Owner {
    name: String,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
    label: Option<String>,
}

#[derive(Debug, PartialEq, Serialize, Deserialize, Schema)]
struct Borrower<'a> {
    name: &'a str,
    #[serde(with = "serde_bytes")]
    data: &'a [u8],
    #[serde(borrow)]
    label: Option<Cow<'a, str>>,
}

fn owner() -> Owner {
    Owner {
        name: "name".to_owned(),
        data: vec![7; 1000],
        label: Some("label".to_owned()),
    }
}

#[test]
fn a_borrowing_type_reads_an_owned_types_payload_in_place() {
    let payload = encode::<Serde, _>(&owner());
    let within = payload.bytes().as_ptr_range();
    let entry = SerdeBorrowed::decode::<Borrower<'static>>(payload.bytes()).unwrap();
    assert_eq!((entry.name, entry.data), ("name", &[7; 1000][..]));
    assert!(within.contains(&entry.name.as_ptr()) && within.contains(&entry.data.as_ptr()));

    let back = encode::<SerdeBorrowed, _>(&entry);
    assert_eq!(decoded_owner(back.bytes()), owner());
    assert_eq!(
        <Serde as Codec<Owner>>::schema().fingerprint,
        <SerdeBorrowed as Codec<Borrower<'static>>>::schema().fingerprint
    );
}

fn decoded_owner(bytes: &[u8]) -> Owner {
    <Serde as Codec<Owner>>::open(bytes).unwrap()
}

#[test]
fn a_borrowed_payload_is_checked_when_it_is_opened() {
    let payload = encode::<Serde, _>(&owner());
    let open = <SerdeBorrowed as Codec<Borrower<'static>>>::open;
    assert!(open(payload.bytes()).is_ok());
    let cut = &payload.bytes()[..500];
    let error = open(cut).unwrap_err().to_string();
    assert!(error.contains("Borrower"), "{error}");
    let mut no_text = payload.bytes().to_vec();
    no_text[1] = 0xff;
    assert!(open(&no_text).is_err());
}

/// A generic type that borrows can have other lifetimes, too.
#[derive(Serialize, Deserialize, Schema)]
struct Tagged<'a, 'b: 'a, T: Copy, const N: usize> {
    #[serde(borrow)]
    text: &'a str,
    #[serde(borrow)]
    more: &'b str,
    value: T,
    #[serde(bound(deserialize = ""))]
    marker: PhantomData<[u8; N]>,
}

#[test]
fn generic_types_may_borrow() {
    let payload = encode::<SerdeBorrowed, Tagged<'static, 'static, u16, 3>>(&Tagged {
        text: "a",
        more: "b",
        value: 300,
        marker: PhantomData,
    });
    let tagged = SerdeBorrowed::decode::<Tagged<'static, 'static, u16, 3>>(payload.bytes());
    let tagged = tagged.unwrap();
    assert_eq!((tagged.text, tagged.more, tagged.value), ("a", "b", 300));
}

/// A lifetime in a bound prevents `WithLifetime` for the type; the type still has a schema.
#[test]
fn a_bound_on_a_lifetime_keeps_only_the_schema() {
    trait Within<'a> {}
    impl Within<'_> for u8 {}
    #[derive(Schema)]
    #[allow(dead_code)]
    struct Bound<'a, T: Within<'a>>(&'a str, T);
    assert_eq!(text::<Bound<'_, u8>>(), "test: Bound { 0: String, 1: u8 }");
}

#[test]
fn an_error_names_the_type_and_the_cause() {
    for (bytes, cause) in [
        (
            &b"\x07"[..],
            "integer `7`, expected variant index 0 <= i < 4",
        ),
        (b"\x03\x00", "expected a nonzero u32"),
        (b"\x03", "end of buffer"),
        (b"\x01\x02\xff\xff", "utf-8"),
        (b"\x00\x00\x00", "2 bytes follow"),
        (b"\x03\xff\xff\xff\xff\xff", "varint"),
    ] {
        let text = refusal::<Choice>(bytes);
        assert!(text.contains("Choice") && text.contains(cause), "{text}");
    }
}

#[test]
fn an_untagged_enum_is_refused_at_the_first_message() {
    #[derive(Debug, Clone, Serialize, Deserialize, Schema)]
    #[serde(untagged)]
    #[ibex(ignore_serde)]
    enum Untagged {
        Number(u64),
    }
    let payload = encode::<Serde, _>(&Untagged::Number(1));
    let text = refusal::<Untagged>(payload.bytes());
    assert!(text.contains("asks what comes next"), "{text}");
}

#[test]
fn a_nesting_beyond_the_limit_is_refused_and_not_the_end_of_the_stack() {
    // The struct takes one level and the sequence in it another: 2 for each child.
    let nested = |children: usize| [&b"\x01\x01".repeat(children)[..], b"\x01\x00"].concat();
    assert!(decoded::<Tree>(&nested(63)).is_ok());
    let text = refusal::<Tree>(&nested(64));
    assert!(text.contains("deeper than 128 levels"), "{text}");
    // The limit also holds with the stack of a thread, whatever the build.
    let deep = nested(1_000_000);
    let refused = thread::spawn(move || refusal::<Tree>(&deep));
    assert!(refused.join().unwrap().contains("deeper"));
}

#[test]
fn elements_that_take_no_bytes_are_counted() {
    let many = |length: u8| decoded::<Vec<()>>(&[length]).map(|units| units.len());
    assert_eq!(many(100), Ok(100));
    let text = refusal::<Vec<()>>(b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01");
    assert!(text.contains("more elements than bytes"), "{text}");
    // Elements that take a byte each are never too many.
    let empty = vec![Vec::<u8>::new(); 5000];
    assert_eq!(decoded(encode::<Serde, _>(&empty).bytes()), Ok(empty));
    // Many small claims are added up, for example those of maps.
    let nested = [&b"\xff\x7f"[..], &b"\xff\x03".repeat(0x3fff)].concat();
    assert!(refusal::<Vec<Vec<()>>>(&nested).contains("more elements"));
    let entries = b"\xff\xff\xff\xff\x0f";
    assert!(refusal::<HashMap<(), ()>>(entries).contains("more elements"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..512)) {
        challenge(&bytes);
    }

    /// Small numbers pass the first checks, and are plausible lengths.
    #[test]
    fn plausible_bytes(bytes in prop::collection::vec(0..6_u8, 0..512)) {
        challenge(&bytes);
    }

    #[test]
    fn flipped_bits(flips in prop::collection::vec(any::<prop::sample::Index>(), 1..4)) {
        let mut bytes = encode::<Serde, _>(&everything()).bytes().to_vec();
        for flip in flips {
            let bit = flip.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
        challenge(&bytes);
    }
}

#[test]
fn every_truncation_and_every_offset() {
    let payload = encode::<Serde, _>(&everything());
    let bytes = payload.bytes();
    for cut in 1..=bytes.len() {
        assert!(decoded::<Everything>(&bytes[..bytes.len() - cut]).is_err());
        challenge(&bytes[cut..]);
    }
}

/// Decodes as types of all sorts. An accepted payload is a value, which can be sent on.
fn challenge(bytes: &[u8]) {
    fn one<T: Serialize + DeserializeOwned + Schema + Send + 'static>(bytes: &[u8]) {
        if let Ok(value) = <Serde as Codec<T>>::open(bytes) {
            let again = encode::<Serde, T>(&value);
            assert!(<Serde as Codec<T>>::open(again.bytes()).is_ok());
        }
    }
    one::<Everything>(bytes);
    one::<Vec<Choice>>(bytes);
    one::<BTreeMap<String, Vec<f32>>>(bytes);
    one::<Tree>(bytes);
    one::<(Option<char>, [bool; 2])>(bytes);
    let payload = Payload::new(bytes);
    if let Ok(entry) = SerdeBorrowed::decode::<Borrower<'static>>(payload.bytes()) {
        let end = payload.bytes().as_ptr_range().end;
        assert!(entry.data.as_ptr_range().end <= end);
    }
}

fn text<T: Schema + ?Sized>() -> String {
    SchemaInfo::of::<T>("test", &[]).text
}

fn fingerprint<T: Schema + ?Sized>() -> Fingerprint {
    SchemaInfo::of::<T>("test", &[]).fingerprint
}

/// Declares each type in a module of its own, so that the names may repeat.
macro_rules! entries {
    ($($module:ident { $($field:tt)* })*) => {$(
        mod $module {
            use super::*;
            #[derive(Schema, Serialize, Deserialize)]
            #[allow(dead_code)]
            pub(super) struct Entry { $($field)* }
        }
    )*};
}

entries! {
    plain { id: [u8; 4], data: Vec<u8>, cache: u64 }
    bytes { id: [u8; 4], #[serde(with = "serde_bytes")] data: Vec<u8>, cache: u64 }
    buffer { id: [u8; 4], data: serde_bytes::ByteBuf, cache: u64 }
    named { #[serde(rename = "ID", alias = "i")] id: [u8; 4], data: Vec<u8>, #[serde(default)] cache: u64 }
    array { #[serde(with = "serde_bytes")] id: [u8; 4], data: Vec<u8>, cache: u64 }
    skipped { id: [u8; 4], data: Vec<u8>, #[serde(skip)] cache: u64 }
    absent { id: [u8; 4], data: Vec<u8> }
    widened { id: [u8; 4], data: Vec<u16>, cache: u64 }
    reordered { data: Vec<u8>, id: [u8; 4], cache: u64 }
}

#[test]
fn attributes_that_change_no_byte_change_no_fingerprint() {
    let plain = fingerprint::<plain::Entry>();
    assert_eq!(plain, fingerprint::<bytes::Entry>());
    assert_eq!(plain, fingerprint::<buffer::Entry>());
    assert_eq!(plain, fingerprint::<named::Entry>());
}

#[test]
fn attributes_that_change_bytes_change_the_fingerprint() {
    let all = [
        fingerprint::<plain::Entry>(),
        fingerprint::<array::Entry>(),
        fingerprint::<skipped::Entry>(),
        fingerprint::<absent::Entry>(),
        fingerprint::<widened::Entry>(),
        fingerprint::<reordered::Entry>(),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(!all[i + 1..].contains(a), "{i}: {all:?}");
    }
    assert_eq!(
        text::<array::Entry>(),
        "test: Entry { id: serde_bytes<[u8; 4]>, data: Vec<u8>, cache: u64 }"
    );
    assert_eq!(
        text::<skipped::Entry>(),
        "test: Entry { id: [u8; 4], data: Vec<u8>, cache: skip<u64> }"
    );
}

/// The bytes decide: those of a vector are the same either way, those of an array are not.
#[test]
fn fingerprints_agree_with_the_bytes() {
    let bytes = |value: &dyn Fn() -> Payload| value().bytes().to_vec();
    #[derive(Serialize, Deserialize, Schema)]
    struct AsBytes<T: serde_bytes::Serialize + for<'a> serde_bytes::Deserialize<'a>>(
        #[serde(with = "serde_bytes")]
        #[ibex(schema = ())]
        T,
    );
    let vector = bytes(&|| encode::<Serde, _>(&vec![1_u8, 2, 3]));
    assert_eq!(
        vector,
        bytes(&|| encode::<Serde, _>(&AsBytes(vec![1_u8, 2, 3])))
    );
    let array = bytes(&|| encode::<Serde, _>(&[1_u8, 2, 3]));
    assert_ne!(array, bytes(&|| encode::<Serde, _>(&AsBytes([1_u8, 2, 3]))));
}

mod hexadecimal {
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(value: &u32, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&format_args!("{value:x}"))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
        let text = <&str>::deserialize(from)?;
        u32::from_str_radix(text, 16).map_err(serde::de::Error::custom)
    }
}

/// Functions of the user's own, and the type that they write.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Schema)]
struct Custom {
    #[serde(with = "hexadecimal")]
    #[ibex(schema = String)]
    number: u32,
}

#[test]
fn functions_of_ones_own_are_described_by_hand() {
    assert_eq!(text::<Custom>(), "test: Custom { number: String }");
    let payload = encode::<Serde, _>(&Custom { number: 255 });
    assert_eq!(payload.bytes(), b"\x02ff");
    assert_eq!(decoded(payload.bytes()), Ok(Custom { number: 255 }));
    let text = refusal::<Custom>(b"\x02xy");
    assert!(text.contains("invalid digit"), "{text}");
}

/// A type that may travel by either codec.
#[message]
#[derive(Serialize, Deserialize, Debug, Clone, PartialEq)]
#[rkyv(compare(PartialEq), derive(Debug))]
struct Both {
    offset: u64,
    #[serde(with = "serde_bytes")]
    data: Vec<u8>,
}

#[test]
fn a_message_goes_by_serde_as_well() {
    let both = Both {
        offset: 300,
        data: vec![1, 2],
    };
    let payload = encode::<Serde, _>(&both);
    assert_eq!(decoded(payload.bytes()), Ok(both.clone()));
    encode::<Rkyv, _>(&both)
        .read::<Rkyv, Both, _>(|view| assert_eq!(*view, both))
        .unwrap();
    assert_ne!(
        <Serde as Codec<Both>>::schema().fingerprint,
        <Rkyv as Codec<Both>>::schema().fingerprint
    );
}

/// Fingerprints are compared between builds of different age.
#[test]
fn a_recorded_fingerprint_still_holds() {
    let schema = <Serde as Codec<Owner>>::schema();
    assert_eq!(
        schema.to_string(),
        "postcard 1: Owner { name: String, data: Vec<u8>, label: Option<String> } \
         [4864e724f3bcdaf5994a61727e663c83]"
    );
}

/// The derive reaches every form of a type that borrows.
#[test]
fn a_lifetime_can_be_replaced() {
    fn shorten<'a>(name: &'a str) -> <Borrower<'static> as WithLifetime>::With<'a> {
        Borrower {
            name,
            data: name.as_bytes(),
            label: None,
        }
    }
    let name = String::from("abc");
    assert_eq!(shorten(&name).data, b"abc");
}
