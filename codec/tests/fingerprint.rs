//! Changes that alter a fingerprint, and changes that do not.
//!
//! Each `differ` is a change that a rolling upgrade may make on one side first;
//! a fingerprint that missed it would let the peers misread each other.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, DefaultHasher};
use std::marker::PhantomData;
use std::rc::Rc;
use std::sync::Arc;

use ibex_codec::{Codec, Fingerprint, Pod, Raw, Rkyv, SchemaInfo};

/// Under a codec of the test's own, so that only the type counts.
fn fingerprint<T: Schema + ?Sized>() -> Fingerprint {
    SchemaInfo::of::<T>("test", &[]).fingerprint
}

fn text<T: Schema + ?Sized>() -> String {
    SchemaInfo::of::<T>("test", &[]).text
}

#[derive(Schema)]
#[allow(dead_code)]
struct Entry {
    offset: u64,
    data: Vec<u8>,
    origin: Origin,
}

#[derive(Schema)]
#[allow(dead_code)]
enum Origin {
    Local,
    Peer { id: u32, hops: u8 },
    Path(Vec<u32>, String),
}

/// Declares each type in a module of its own, so that the names may repeat.
macro_rules! variants_of {
    ($($module:ident { $($item:item)* })*) => {$(
        #[allow(dead_code)]
        mod $module {
            use super::*;
            $(#[derive(Schema)] $item)*
        }
    )*};
}

variants_of! {
    moved {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin }
        pub(super) enum Origin { Local, Peer { id: u32, hops: u8 }, Path(Vec<u32>, String) }
    }
    renamed_types {
        pub(super) struct Record { offset: u64, data: Vec<u8>, origin: Source }
        pub(super) enum Source { Local, Peer { id: u32, hops: u8 }, Path(Vec<u32>, String) }
    }
    reordered {
        pub(super) struct Entry { data: Vec<u8>, offset: u64, origin: Origin }
    }
    renamed {
        pub(super) struct Entry { position: u64, data: Vec<u8>, origin: Origin }
    }
    widened {
        pub(super) struct Entry { offset: u128, data: Vec<u8>, origin: Origin }
    }
    signed {
        pub(super) struct Entry { offset: i64, data: Vec<u8>, origin: Origin }
    }
    added {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin, crc: u32 }
    }
    removed {
        pub(super) struct Entry { offset: u64, data: Vec<u8> }
    }
    nested_field_widened {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin }
        pub(super) enum Origin { Local, Peer { id: u64, hops: u8 }, Path(Vec<u32>, String) }
    }
    variant_inserted {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin }
        pub(super) enum Origin { Local, Relay, Peer { id: u32, hops: u8 }, Path(Vec<u32>, String) }
    }
    variant_appended {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin }
        pub(super) enum Origin { Local, Peer { id: u32, hops: u8 }, Path(Vec<u32>, String), Relay }
    }
    variant_renamed {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin }
        pub(super) enum Origin { Here, Peer { id: u32, hops: u8 }, Path(Vec<u32>, String) }
    }
    variants_swapped {
        pub(super) struct Entry { offset: u64, data: Vec<u8>, origin: Origin }
        pub(super) enum Origin { Peer { id: u32, hops: u8 }, Local, Path(Vec<u32>, String) }
    }
}

#[test]
fn moving_a_type_or_renaming_it_keeps_the_fingerprint() {
    assert_eq!(fingerprint::<Entry>(), fingerprint::<moved::Entry>());
    assert_eq!(
        fingerprint::<Entry>(),
        fingerprint::<renamed_types::Record>()
    );
}

#[test]
fn every_change_of_structure_changes_the_fingerprint() {
    let all = [
        ("as it was", fingerprint::<Entry>()),
        ("reordered", fingerprint::<reordered::Entry>()),
        ("renamed", fingerprint::<renamed::Entry>()),
        ("widened", fingerprint::<widened::Entry>()),
        ("signed", fingerprint::<signed::Entry>()),
        ("added", fingerprint::<added::Entry>()),
        ("removed", fingerprint::<removed::Entry>()),
        ("nested", fingerprint::<nested_field_widened::Entry>()),
        ("inserted", fingerprint::<variant_inserted::Entry>()),
        ("appended", fingerprint::<variant_appended::Entry>()),
        ("variant renamed", fingerprint::<variant_renamed::Entry>()),
        ("swapped", fingerprint::<variants_swapped::Entry>()),
    ];
    for (i, (a_name, a)) in all.iter().enumerate() {
        for (b_name, b) in &all[i + 1..] {
            assert_ne!(a, b, "{a_name} and {b_name}");
        }
    }
}

variants_of! {
    implicit { pub(super) enum Level { Low, High } }
    explicit_same { pub(super) enum Level { Low = 0, High = 1 } }
    explicit_other { pub(super) enum Level { Low = 1, High = 2 } }
    half_explicit { pub(super) enum Level { Low = 1, High } }
    negative { #[repr(i8)] pub(super) enum Level { Low = -1, High } }
    by_constant { #[repr(u8)] pub(super) enum Level { Low = ONE, High = ONE << 1 } }
}
const ONE: u8 = 1;

#[test]
fn discriminants_count_by_their_value() {
    assert_eq!(
        fingerprint::<implicit::Level>(),
        fingerprint::<explicit_same::Level>()
    );
    assert_eq!(
        fingerprint::<explicit_other::Level>(),
        fingerprint::<half_explicit::Level>()
    );
    assert_eq!(
        fingerprint::<explicit_other::Level>(),
        fingerprint::<by_constant::Level>()
    );
    assert_ne!(
        fingerprint::<implicit::Level>(),
        fingerprint::<half_explicit::Level>()
    );
    assert_ne!(
        fingerprint::<implicit::Level>(),
        fingerprint::<negative::Level>()
    );
}

#[derive(Schema)]
#[allow(dead_code)]
struct Tagged<T, const N: usize> {
    tag: [u8; N],
    value: T,
    marker: PhantomData<fn(T)>,
}

#[test]
fn generic_arguments_count_in_the_fingerprint() {
    assert_eq!(
        fingerprint::<Tagged<u32, 4>>(),
        fingerprint::<Tagged<u32, 4>>()
    );
    assert_ne!(
        fingerprint::<Tagged<u32, 4>>(),
        fingerprint::<Tagged<u64, 4>>()
    );
    assert_ne!(
        fingerprint::<Tagged<u32, 4>>(),
        fingerprint::<Tagged<u32, 5>>()
    );
}

#[derive(Schema)]
#[allow(dead_code)]
enum Answer<T, E = String> {
    Value(T),
    Failure { why: E },
}

variants_of! {
    inserted_into_generic {
        pub(super) enum Answer<T, E = String> { Value(T), Later, Failure { why: E } }
    }
    moved_generic {
        pub(super) enum Reply<A, B> { Value(A), Failure { why: B } }
    }
}

#[test]
fn a_generic_enum_has_the_fingerprint_of_its_contents() {
    let answer = fingerprint::<Answer<Vec<u32>>>();
    assert_eq!(
        answer,
        fingerprint::<moved_generic::Reply<Vec<u32>, String>>()
    );
    assert_ne!(answer, fingerprint::<Answer<Vec<u64>>>());
    assert_ne!(answer, fingerprint::<Answer<Vec<u32>, u8>>());
    assert_ne!(
        answer,
        fingerprint::<inserted_into_generic::Answer<Vec<u32>>>()
    );
    assert_eq!(
        text::<Answer<Entry>>(),
        format!(
            "test: Answer {{ Value {{ 0: {} }}, Failure {{ why: String }} }}",
            text::<Entry>().trim_start_matches("test: ")
        )
    );
}

#[test]
fn a_borrowed_form_is_its_owned_one_and_a_pointer_is_not_its_target() {
    assert_eq!(fingerprint::<&str>(), fingerprint::<String>());
    assert_eq!(fingerprint::<Cow<'_, str>>(), fingerprint::<String>());
    assert_eq!(fingerprint::<[u16]>(), fingerprint::<Vec<u16>>());
    assert_ne!(fingerprint::<Box<u16>>(), fingerprint::<u16>());
    assert_ne!(fingerprint::<Rc<u16>>(), fingerprint::<Arc<u16>>());
    assert_ne!(fingerprint::<Option<u16>>(), fingerprint::<u16>());
    assert_ne!(fingerprint::<[u16; 2]>(), fingerprint::<(u16, u16)>());
    assert_ne!(
        fingerprint::<(u8, (u8, u8))>(),
        fingerprint::<((u8, u8), u8)>()
    );
    assert_ne!(
        fingerprint::<HashMap<u8, u8>>(),
        fingerprint::<BTreeMap<u8, u8>>()
    );
    type OtherHasher = BuildHasherDefault<DefaultHasher>;
    assert_eq!(
        fingerprint::<HashMap<u8, u8>>(),
        fingerprint::<HashMap<u8, u8, OtherHasher>>()
    );
}

#[derive(Schema)]
#[allow(dead_code)]
struct Tree {
    key: u64,
    children: Vec<Tree>,
}

#[derive(Schema)]
#[allow(dead_code)]
struct Even {
    next: Option<Box<Odd>>,
}

#[derive(Schema)]
#[allow(dead_code)]
struct Odd {
    next: Option<Box<Even>>,
    value: u8,
}

variants_of! {
    other_cycle {
        pub(super) struct Even { next: Option<Box<Odd>> }
        pub(super) struct Odd { next: Option<Box<Odd>>, value: u8 }
    }
}

#[test]
fn recursion_ends_and_tells_where_it_goes_back_to() {
    assert_eq!(
        text::<Tree>(),
        "test: Tree { key: u64, children: Vec<Tree> }"
    );
    assert_eq!(
        text::<Even>(),
        "test: Even { next: Option<Box<Odd { next: Option<Box<Even>>, value: u8 }>> }"
    );
    assert_ne!(fingerprint::<Even>(), fingerprint::<Odd>());
    assert_ne!(fingerprint::<Even>(), fingerprint::<other_cycle::Even>());
}

#[derive(Schema)]
#[allow(dead_code)]
struct Event {
    #[ibex(schema = [u8; 16])]
    id: Foreign,
    #[rkyv(with = rkyv::with::AsBox)]
    body: String,
    r#type: (),
}

struct Foreign;

#[test]
fn fields_may_be_described_as_another_type_or_by_their_wrapper() {
    assert_eq!(
        text::<Event>(),
        "test: Event { id: [u8; 16], body: AsBox<String>, type: () }"
    );
}

#[test]
fn the_text_reads_like_the_source() {
    assert_eq!(
        text::<Entry>(),
        "test: Entry { offset: u64, data: Vec<u8>, origin: Origin { Local, \
         Peer { id: u32, hops: u8 }, Path { 0: Vec<u32>, 1: String } } }"
    );
}

#[message]
struct Sample {
    offset: u64,
    data: Vec<u8>,
}

/// Fingerprints are compared between builds of different age: the ones below
/// were recorded once and must never change by accident. A change on purpose is
/// a break of compatibility.
#[test]
fn recorded_fingerprints_still_hold() {
    let recorded = |info: SchemaInfo| format!("{} {}", info.fingerprint, info.text);
    assert_eq!(
        [
            recorded(SchemaInfo::of::<Entry>("test", &["a", "b"])),
            recorded(SchemaInfo::of::<Tree>("test", &[])),
            recorded(<Rkyv as Codec<Sample>>::schema()),
            recorded(<Raw as Codec<[u8]>>::schema()),
        ],
        [
            "fd2a0c79511b08c8e96b6117a8f07aee test (a, b): Entry { offset: u64, data: Vec<u8>, \
             origin: Origin { Local, Peer { id: u32, hops: u8 }, Path { 0: Vec<u32>, 1: String } } }",
            "9cb59043f1e1ba7254c9be3499f6bec8 test: Tree { key: u64, children: Vec<Tree> }",
            "5bb3609a500ac1160721558373d3f1d3 rkyv 0.8 (little-endian, 32-bit offsets, aligned): \
             Sample { offset: u64, data: Vec<u8> }",
            "0f07ed74f40d29f9aae12d24c2b0f7a4 raw: Vec<u8>",
        ]
    );
    #[cfg(all(target_endian = "little", target_pointer_width = "64"))]
    assert_eq!(
        recorded(<Pod as Codec<[u64]>>::schema()),
        "48ac5f039499e43b1df3aec7d7aa559a pod (little-endian, size 8, alignment 8): Vec<u64>"
    );
}

#[test]
fn the_codec_counts_too() {
    let all = [
        <Rkyv as Codec<u64>>::schema().fingerprint,
        <Pod as Codec<u64>>::schema().fingerprint,
        <Pod as Codec<[u64]>>::schema().fingerprint,
        fingerprint::<u64>(),
    ];
    for (i, a) in all.iter().enumerate() {
        assert!(!all[i + 1..].contains(a), "{all:?}");
    }
}

/// Foreign types, which have no schema, described by a name.
mod foreign {
    pub(super) struct Id;
}

variants_of! {
    by_name { pub(super) struct Entry { #[ibex(schema_name = "raft-0.10")] id: foreign::Id } }
    by_same_name { pub(super) struct Record { #[ibex(schema_name = "raft-0.10")] id: Vec<u8> } }
    by_other_name { pub(super) struct Entry { #[ibex(schema_name = "raft-0.11")] id: foreign::Id } }
    by_name_of_an_atom { pub(super) struct Entry { #[ibex(schema_name = "u8")] id: foreign::Id } }
    by_the_atom { pub(super) struct Entry { id: u8 } }
    skipped_by_name {
        pub(super) struct Entry { #[serde(skip)] #[ibex(schema_name = "raft-0.10")] id: foreign::Id }
    }
    whole_by_name {
        #[ibex(schema_name = "raft-0.10")]
        pub(super) struct Entry<T> { id: foreign::Id, any: T }
        #[ibex(schema_name = "raft-0.10")]
        pub(super) union Either { number: u64, bytes: [u8; 8] }
    }
}

#[test]
fn a_name_stands_for_a_structure() {
    let named = fingerprint::<by_name::Entry>();
    assert_eq!(named, fingerprint::<by_same_name::Record>());
    assert_ne!(named, fingerprint::<by_other_name::Entry>());
    assert_ne!(named, fingerprint::<skipped_by_name::Entry>());
    // Only the name itself counts.
    let number = fingerprint::<by_name_of_an_atom::Entry>();
    assert_ne!(number, fingerprint::<by_the_atom::Entry>());
    // A name on the type itself stands for its fields and parameters too.
    let whole = fingerprint::<whole_by_name::Entry<foreign::Id>>();
    assert_eq!(whole, fingerprint::<whole_by_name::Either>());
    assert_ne!(whole, named);
    assert_eq!(
        text::<by_name::Entry>(),
        "test: Entry { id: \"raft-0.10\" }"
    );
    assert_eq!(text::<whole_by_name::Either>(), "test: \"raft-0.10\"");
}

/// The fingerprint is that of the first version that had it, so that programs of both understand
/// each other.
#[test]
fn a_name_has_the_same_fingerprint_for_ever() {
    #[derive(Schema)]
    #[ibex(schema_name = "raft-0.10")]
    struct Any;
    assert_eq!(
        fingerprint::<Any>().to_string(),
        "e398597740922f842910fb2e5541b1af"
    );
}

#[message(schema_name = "raft-0.10")]
struct Archived {
    #[allow(dead_code)]
    text: String,
}

#[test]
fn a_message_may_have_a_name() {
    assert_eq!(text::<Archived>(), "test: \"raft-0.10\"");
}
