//! Sending takes `&mut`: a handle that two threads share would need a lock.

use ibex::{Raw, SendError, Sender};

fn send(sender: &Sender<[u8], Raw>) -> Result<u64, SendError> {
    sender.send(b"hello")
}

fn main() {}
