//! A field that is read in place lives as long as the message.

#[ibex::message]
struct Entry {
    offset: u64,
    data: Vec<u8>,
}

fn read(receiver: &mut ibex::Receiver<Entry>) -> usize {
    let entry = receiver.recv().unwrap();
    let data: &[u8] = &entry.data;
    entry.ack();
    data.len()
}

fn main() {}
