//! A channel has one receiver: clones would race for each message.

use ibex::{Raw, Receiver};

fn share(receiver: &Receiver<[u8], Raw>) -> Receiver<[u8], Raw> {
    receiver.clone()
}

fn main() {}
