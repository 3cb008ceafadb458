extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

struct Foreign;

#[derive(ibex::Schema)]
struct Entry {
    offset: u64,
    origin: Vec<Foreign>,
}

fn main() {}
