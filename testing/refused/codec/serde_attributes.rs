extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema};

use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize, ibex::Schema)]
struct Optional {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    offset: Option<u64>,
}

#[derive(Serialize, Deserialize, ibex::Schema)]
struct Flat {
    #[serde(flatten)]
    inner: Inner,
}

#[derive(Serialize, Deserialize, ibex::Schema)]
struct Inner {
    #[serde(skip_deserializing)]
    offset: u64,
}

#[derive(Serialize, Deserialize, ibex::Schema)]
#[serde(tag = "type")]
enum Tagged {
    Number { value: u64 },
}

#[derive(Serialize, Deserialize, ibex::Schema)]
enum Skipping {
    Number(u64),
    #[serde(skip)]
    Nothing,
}

#[derive(Serialize, Deserialize, Clone, ibex::Schema)]
#[serde(into = "u64", from = "u64")]
struct Converted(u64);

impl From<u64> for Converted {
    fn from(value: u64) -> Self {
        Self(value)
    }
}

impl From<Converted> for u64 {
    fn from(value: Converted) -> Self {
        value.0
    }
}

#[derive(Serialize, Deserialize, ibex::Schema)]
struct Custom {
    #[serde(with = "hexadecimal")]
    number: u64,
}

mod hexadecimal {
    pub fn serialize<S: serde::Serializer>(value: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&format!("{value:x}"))
    }
    pub fn deserialize<'de, D: serde::Deserializer<'de>>(_: D) -> Result<u64, D::Error> {
        Ok(0)
    }
}

fn main() {}
