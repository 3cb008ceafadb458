extern crate self as ibex;
pub use ibex_codec::{self as codec, Schema, SerdeBorrowed};

#[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
struct Entry<'a> {
    name: &'a str,
}

fn main() {
    let payload = b"\x01a".to_vec();
    let entry = SerdeBorrowed::decode::<Entry<'static>>(&payload).unwrap();
    drop(payload);
    println!("{}", entry.name);
}
