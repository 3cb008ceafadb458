//! Reserved room is the sender's memory.

use ibex::{Raw, Sender};

fn loan(mut sender: Sender<[u8], Raw>) {
    let room = sender.loan(64).unwrap();
    drop(sender);
    room.send();
}

fn main() {}
