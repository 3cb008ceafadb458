extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

#[ibex::message]
fn send() {}

fn main() {}
