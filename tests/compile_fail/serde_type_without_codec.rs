//! A type of another codec is told how a channel is given one.

#[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
struct Entry {
    offset: u64,
}

fn open(peer: &ibex::Peer) {
    let _ = peer.sender::<Entry>("entries");
    let _ = peer.channel("entries").receiver::<Entry>();
}

fn main() {}
