//! A sender by the codec `Serde` refuses what its receiver would refuse.

extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema};

mod support;

use std::collections::HashMap;

use ibex_codec::{Codec, Serde};
use proptest::prelude::*;
use serde::{Deserialize, Serialize};

use support::encode_into;

/// Every form in which serde nests.
#[derive(Debug, Serialize, Deserialize, Schema)]
enum Nest {
    End,
    Newtype(Box<Nest>),
    Pair(u8, Box<Nest>),
    Named { inner: Box<Nest> },
    Optional(Option<Box<Nest>>),
    Sequence(Vec<Nest>),
    Map(HashMap<u8, Nest>),
    Tuple((Box<Nest>, u8)),
    Array([Box<Nest>; 1]),
    Wrapped(Wrapper),
    Choice(Result<Box<Nest>, u8>),
    Bytes(#[serde(with = "serde_bytes")] Vec<u8>),
}

#[derive(Debug, Serialize, Deserialize, Schema)]
struct Wrapper(#[ibex(schema_name = "nest")] Box<Nest>);

impl Nest {
    fn within(form: u8, inner: Self) -> Self {
        let boxed = |inner| Box::new(inner);
        match form {
            0 => Self::Newtype(boxed(inner)),
            1 => Self::Pair(1, boxed(inner)),
            2 => Self::Named {
                inner: boxed(inner),
            },
            3 => Self::Optional(Some(boxed(inner))),
            4 => Self::Sequence(vec![inner]),
            5 => Self::Map(HashMap::from([(1, inner)])),
            6 => Self::Tuple((boxed(inner), 1)),
            7 => Self::Array([boxed(inner)]),
            8 => Self::Wrapped(Wrapper(boxed(inner))),
            _ => Self::Choice(Ok(boxed(inner))),
        }
    }
}

fn opens<T>(payload: &[u8]) -> bool
where
    Serde: Codec<T>,
{
    Serde::open(payload).is_ok()
}

/// What postcard writes without bounds.
fn unbounded<T: Serialize>(value: &T) -> Vec<u8> {
    let mut memory = vec![0; 64 << 10];
    postcard::to_slice(value, &mut memory).unwrap().to_vec()
}

#[test]
fn a_sender_refuses_what_takes_no_bytes_like_its_receiver() {
    for units in [0, 1, 1000, 1025, 1026, 1027, 1028, 5000, 1 << 20] {
        let value = (vec![(); units], 7_u8);
        let opens = opens::<(Vec<()>, u8)>(&unbounded(&value));
        match encode_into::<Serde, _>(&value, 1024) {
            Ok(payload) => assert!(opens && self::opens::<(Vec<()>, u8)>(payload.bytes())),
            Err(error) => assert!(
                !opens && error.to_string().contains("take no bytes"),
                "{error}"
            ),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn a_sender_refuses_the_nesting_that_its_receiver_would(
        forms in prop::collection::vec(0..10_u8, 35..130),
    ) {
        let value = forms.iter().fold(Nest::End, |inner, &form| Nest::within(form, inner));
        let opens = opens::<Nest>(&unbounded(&value));
        match encode_into::<Serde, _>(&value, 64 << 10) {
            Ok(payload) => {
                prop_assert!(opens);
                prop_assert_eq!(payload.bytes(), unbounded(&value));
            }
            Err(error) => {
                prop_assert!(!opens);
                prop_assert!(error.to_string().contains("deeper than 128 levels"), "{error}");
            }
        }
    }

    /// The receiver's type may take a sequence of numbers for what the sender writes as bytes.
    #[test]
    fn bytes_count_as_a_level(forms in prop::collection::vec(0..10_u8, 35..130)) {
        let bytes = Nest::Bytes(vec![7; 3000]);
        let value = forms.iter().fold(bytes, |inner, &form| Nest::within(form, inner));
        if let Ok(payload) = encode_into::<Serde, _>(&value, 64 << 10) {
            prop_assert!(opens::<Nest>(payload.bytes()));
        }
    }
}
