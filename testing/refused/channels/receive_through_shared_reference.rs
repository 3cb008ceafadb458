//! Receiving takes `&mut`: two threads cannot receive through one handle.

use ibex::{Message, Raw, Receiver, RecvError};

fn receive(receiver: &Receiver<[u8], Raw>) -> Result<Message<[u8], Raw>, RecvError> {
    receiver.recv()
}

fn main() {}
