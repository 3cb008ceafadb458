//! Whole streams of numbered messages, and what follows the last.

use super::{
    payload,
    stage::{BytesReceiver, BytesSender},
};

/// Takes messages 1 to `last` and checks every byte; `length` says how long each is.
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

/// Sends messages 1 to `last`; `length` says how long each is.
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
    // It stays so.
    assert!(receiver.next().expect("an orderly end").is_none());
}
