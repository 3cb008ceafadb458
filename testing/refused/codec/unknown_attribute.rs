extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, message, rkyv};

#[derive(ibex::Schema)]
#[ibex(name = "entry")]
struct Entry {
    offset: u64,
}

#[derive(ibex::Schema)]
struct Other {
    #[ibex(skip)]
    offset: u64,
}

#[derive(ibex::Schema)]
struct DescribedTwice {
    #[ibex(schema = u64, schema_name = "offset-1")]
    offset: u64,
}

#[derive(ibex::Schema)]
#[ibex(schema_name = " ")]
struct Nameless {
    offset: u64,
}

fn main() {}
