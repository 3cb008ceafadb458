//! While room is reserved nothing else may be sent by the same handle: it would be
//! written over the room.

use ibex::{Raw, Sender};

fn interleave(sender: &mut Sender<[u8], Raw>) {
    let room = sender.loan(64).unwrap();
    sender.send(b"in between").unwrap();
    room.send();
}

fn main() {}
