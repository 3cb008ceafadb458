extern crate self as ibex;
pub use ibex_codec::{self as codec, Codec, Rkyv, Schema, message, rkyv};

use std::num::NonZeroUsize;

#[ibex::message]
struct Chunk {
    offset: usize,
}

#[ibex::message]
enum Nested {
    Parts(Vec<(u8, Option<NonZeroUsize>)>),
}

#[ibex::message]
struct Lied {
    #[ibex(schema = i64)]
    back: std::primitive::isize,
}

type Length = usize;

#[ibex::message]
struct Aliased {
    lengths: Vec<Length>,
}

#[ibex::message]
struct Generic<T> {
    parts: Vec<T>,
}

fn send<C: Codec<T>, T: ?Sized>(_: &T) {}

fn main() {
    send::<Rkyv, _>(&Generic { parts: vec![1_usize] });
    send::<Rkyv, _>(&vec![(1_u8, -1_isize)]);
}
