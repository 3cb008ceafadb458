extern crate self as ibex;
pub use ibex_codec::{Codec, Rkyv};

struct Plain {
    offset: u64,
}

fn send<C: Codec<T>, T: ?Sized>(_: &T) {}

fn main() {
    send::<Rkyv, _>(&Plain { offset: 1 });
}
