//! The trace context of calls and messages, over whatever carries them.

use std::cell::Cell;

use ibex::prelude::*;
use ibex::{Raw, TraceContext, calls::Metadata};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::Stage,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("traced_messages", traced_messages),
    Scenario::new("traced_calls", traced_calls),
];

thread_local! {
    /// The trace context of this thread.
    static CURRENT: Cell<Option<TraceContext>> = const { Cell::new(None) };
}

/// Each third message has none.
fn context_of(sequence: u64) -> Option<TraceContext> {
    let context = TraceContext::new([7; 16], sequence.to_le_bytes(), 1);
    context.ok().filter(|_| !sequence.is_multiple_of(3))
}

/// Lengths that take each way: a record in the ring, a record that fills a frame, a block that was
/// granted ahead, and memory of the message's own.
fn length_of(sequence: u64) -> usize {
    const LENGTHS: [usize; 8] = [0, 1, 38, 64, 4 << 10, 20 << 10, 60 << 10, 1 << 20];
    LENGTHS[(sequence * 5 % 8) as usize]
}

const MESSAGES: u64 = 240;

/// Messages with and without a context, of lengths that go in different ways.
fn traced_messages(stage: &mut Stage) {
    let (_node, peer) = stage.meet_as(|builder| builder.trace_context(|| CURRENT.get()));
    let channel = peer.channel("spans").codec::<Raw>().trace_context(true);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            for sequence in 1..=MESSAGES {
                CURRENT.set(context_of(sequence));
                let bytes = payload::numbered(sequence, length_of(sequence));
                sender.send(&bytes).expect("sent");
            }
            sender.wait_acked(MESSAGES).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            for sequence in 1..=MESSAGES {
                let mut message = receiver.recv().expect("a message");
                if sequence.is_multiple_of(7) {
                    message = message.into_owned();
                }
                assert_eq!(message.trace_context(), context_of(sequence), "{sequence}");
                let expected = payload::numbered(sequence, length_of(sequence));
                assert!(message[..] == expected[..], "message {sequence}");
                message.ack();
            }
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// Calls with and without a context, some with metadata, of such lengths.
fn traced_calls(stage: &mut Stage) {
    let (node, peer) = stage.meet_as(|builder| builder.trace_context(|| CURRENT.get()));
    let metadata = |sequence: u64| {
        let mut metadata = Metadata::new();
        if sequence.is_multiple_of(2) {
            metadata.insert("sequence", sequence as i64).expect("room");
        }
        metadata
    };
    match stage.side {
        Side::Dialer => {
            let plain = peer.channel("spans").codec::<Raw>().caller::<[u8], [u8]>();
            let plain = plain.expect("a caller");
            for sequence in 1..=MESSAGES {
                CURRENT.set(context_of(sequence));
                let caller = plain.with_metadata(metadata(sequence));
                let bytes = payload::numbered(sequence, length_of(sequence));
                let reply = caller.call(&bytes).expect("a reply");
                assert_eq!(reply[..], sequence.to_le_bytes());
            }
        }
        Side::Listener => {
            let service = node.channel("spans").codec::<Raw>();
            let mut service = service.service::<[u8], [u8]>().expect("a service");
            for sequence in 1..=MESSAGES {
                let request = service.next().expect("no error").expect("a request");
                assert_eq!(request.trace_context(), context_of(sequence), "{sequence}");
                assert_eq!(*request.metadata(), metadata(sequence));
                let expected = payload::numbered(sequence, length_of(sequence));
                assert!(request[..] == expected[..], "request {sequence}");
                request.reply(&sequence.to_le_bytes()).expect("sent");
            }
        }
    }
}
