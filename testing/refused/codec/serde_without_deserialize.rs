extern crate self as ibex;
pub use ibex_codec::{self as codec, Codec, Schema, Serde};

#[derive(serde::Serialize, ibex::Schema)]
struct Entry {
    offset: u64,
}

fn send<C: Codec<T>, T: ?Sized>(_: &T) {}

fn main() {
    send::<Serde, _>(&Entry { offset: 1 });
}
