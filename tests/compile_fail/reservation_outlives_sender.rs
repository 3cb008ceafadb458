//! Reserved room is the sender's memory.

use ibex::{Raw, Sender};

fn reserve(mut sender: Sender<[u8], Raw>) {
    let room = sender.reserve(64).unwrap();
    drop(sender);
    room.send();
}

fn main() {}
