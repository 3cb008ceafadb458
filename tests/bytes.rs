//! Messages as `bytes::Bytes` and `bytes::Buf`, without a copy.
#![forbid(unsafe_code)]

use std::{io::Cursor, thread};

use bytes::{Buf, Bytes};
use ibex::{Node, Raw, Receiver, Sender};

/// Two nodes, and a channel between them whose window is one message.
type Channel = ([Node; 2], Sender<[u8], Raw>, Receiver<[u8], Raw>);

fn channel() -> Channel {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let client = Node::client().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let there = client.connect(address).expect("a session");
    let here = listener.accept().expect("a session");
    let sender = there.channel("bytes").codec::<Raw>().window_messages(1);
    let receiver = here.channel("bytes").codec::<Raw>();
    let (sender, receiver) = (sender.sender(), receiver.receiver());
    (
        [client, listener],
        sender.expect("a sender"),
        receiver.expect("a receiver"),
    )
}

#[test]
fn the_last_of_the_bytes_releases_the_message() {
    let (_nodes, mut sender, mut receiver) = channel();
    sender.send(b"one and two").expect("sent");
    let message = receiver.recv().expect("a message");
    let place = message.as_ptr();
    let bytes = Bytes::from(message.ack_on_drop());
    assert_eq!(bytes.as_ptr(), place);
    let two = bytes.slice(8..);
    drop(bytes);
    sender.try_send(b"three").expect_err("it is held");
    // The bytes are dropped on another thread.
    let elsewhere = thread::spawn(move || assert_eq!(two, &b"two"[..]));
    elsewhere.join().expect("it ends");
    // The last drop releases the message, with the acknowledgement that was asked for.
    sender.wait_acked(1).expect("acknowledged");
    sender.send(b"three").expect("there is room");

    let bytes = Bytes::from(receiver.recv().expect("a message"));
    assert_eq!(bytes, &b"three"[..]);
    drop(bytes);
    sender.send(b"four").expect("it is released");
    sender.wait_acked(2).expect_err("nobody said so");
}

#[test]
fn a_message_is_read_as_a_buffer() {
    let (_nodes, mut sender, mut receiver) = channel();
    sender.send(&[0, 0, 0, 7, 1, 2, 3]).expect("sent");
    let message = receiver.recv().expect("a message");
    let place = message.as_ptr();
    let mut buffer = Cursor::new(message);
    assert_eq!(buffer.get_u32(), 7);
    assert_eq!(buffer.chunk().as_ptr(), place.wrapping_add(4));
    let mut chained = buffer.chain(&b"45"[..]);
    assert_eq!(chained.copy_to_bytes(5), &[1, 2, 3, b'4', b'5'][..]);
    assert!(!chained.has_remaining());
}
