extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

#[ibex::message(size = 8)]
struct Entry {
    offset: u64,
}

fn main() {}
