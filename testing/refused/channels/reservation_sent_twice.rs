//! Reserved room becomes one message.

use ibex::{Raw, Sender};

fn send_twice(sender: &mut Sender<[u8], Raw>) {
    let room = sender.loan(64).unwrap();
    room.send();
    room.send();
}

fn main() {}
