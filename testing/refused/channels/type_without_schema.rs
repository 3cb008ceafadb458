//! A type that the ends cannot compare cannot be sent.

struct Entry {
    offset: u64,
}

fn open(peer: &ibex::Peer) {
    let _ = peer.sender::<Entry>("entries");
}

fn main() {}
