extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

struct Plain {
    offset: u64,
}

#[ibex::message]
struct Entry {
    length: u64,
    parts: Vec<Plain>,
}

fn main() {}
