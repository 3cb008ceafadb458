//! A value that borrows from a message ends with the message.

use ibex::SerdeBorrowed;

#[derive(serde::Serialize, serde::Deserialize, ibex::Schema)]
struct Entry<'a> {
    name: &'a str,
}

fn read(receiver: &mut ibex::Receiver<Entry<'static>, SerdeBorrowed>) -> usize {
    let message = receiver.recv().unwrap();
    let entry = message.decode();
    message.ack();
    entry.name.len()
}

fn main() {}
