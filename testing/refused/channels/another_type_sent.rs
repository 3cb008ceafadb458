//! A channel carries one type.

#[ibex::message]
struct Entry {
    offset: u64,
}

#[ibex::message]
struct Query {
    offset: u64,
}

fn send(sender: &mut ibex::Sender<Entry>) {
    sender.send(&Query { offset: 1 }).unwrap();
}

fn main() {}
