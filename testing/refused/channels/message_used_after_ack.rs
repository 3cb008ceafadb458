//! An acknowledged message is gone: its bytes may be overwritten.

use ibex::{Message, Raw};

fn read(message: Message<[u8], Raw>) -> u8 {
    message.ack();
    message[0]
}

fn main() {}
