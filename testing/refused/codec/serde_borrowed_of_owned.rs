extern crate self as ibex;
pub use ibex_codec::{self as codec, Codec, Schema, SerdeBorrowed};

#[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
struct Entry {
    offset: u64,
}

fn send<C: Codec<T>, T: ?Sized>(_: &T) {}

fn main() {
    send::<SerdeBorrowed, _>(&Entry { offset: 1 });
}
