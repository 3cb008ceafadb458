use ibex_codec::{Codec, Serde};

#[derive(serde::Serialize, serde::Deserialize)]
struct Entry {
    offset: u64,
}

fn send<C: Codec<T>, T: ?Sized>(_: &T) {}

fn main() {
    send::<Serde, _>(&Entry { offset: 1 });
}
