//! Streams of numbered messages, and their ends.

use super::{
    payload,
    stage::{BytesReceiver, BytesSender},
};

/// Receives messages 1 to `last` and checks every byte; `length` gives the length of each.
pub(crate) fn receive_all(receiver: &mut BytesReceiver, last: u64, length: impl Fn(u64) -> usize) {
    for sequence in 1..=last {
        let message = receiver
            .recv()
            .unwrap_or_else(|error| panic!("message {sequence} of {last}: {error}"));
        assert_eq!(message.sequence(), sequence);
        assert_eq!(message.len(), length(sequence));
        payload::check(sequence, &message);
        message.ack();
    }
}

/// Sends messages 1 to `last`; `length` gives the length of each.
pub(crate) fn send_all(sender: &mut BytesSender, last: u64, length: impl Fn(u64) -> usize) {
    let mut bytes = Vec::new();
    for sequence in 1..=last {
        bytes.resize(length(sequence), 0);
        payload::fill(sequence, &mut bytes);
        assert_eq!(sender.send(&bytes).expect("sent"), sequence);
    }
}

/// Panics unless the channel has ended in order.
pub(crate) fn assert_ended(mut receiver: BytesReceiver) {
    assert!(receiver.next().expect("an orderly end").is_none());
    // Later calls give the same answer.
    assert!(receiver.next().expect("an orderly end").is_none());
}
