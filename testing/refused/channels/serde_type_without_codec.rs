//! The compiler's message for a type of another codec says how to set the channel's codec.

#[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
struct Entry {
    offset: u64,
}

fn open(peer: &ibex::Peer) {
    let _ = peer.sender::<Entry>("entries");
    let _ = peer.channel("entries").receiver::<Entry>();
}

fn main() {}
