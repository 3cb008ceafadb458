extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

#[ibex::message]
union Word {
    number: u32,
    bytes: [u8; 4],
}

fn main() {}
