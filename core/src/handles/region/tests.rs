//! Headers beside trace contexts.

use std::thread;

use super::*;
use crate::{Fabric, Node, Policy, TraceContext};

/// The trace context of every thread.
fn ambient() -> Option<TraceContext> {
    TraceContext::new([7; 16], [9; 8], 1).ok()
}

type Ends = (Sender<[u8], Raw>, Receiver<[u8], Raw>);

/// Joins two nodes by a channel that carries trace contexts.
fn joined(fabric: Fabric) -> ([Node; 2], Ends) {
    let builder = || {
        let builder = Node::builder().fabric(fabric, Policy::Require);
        builder.trace_context(ambient)
    };
    let there = builder().listen("127.0.0.1:0").build().expect("a node");
    let here = builder().build().expect("a node");
    let to = here.connect(there.local_addr().expect("it listens"));
    let from = there.accept().expect("a session");
    let channel = |peer: &crate::Peer| {
        let channel = peer.channel("bytes").codec::<Raw>();
        channel.trace_context(true).max_message_bytes(4 << 20)
    };
    let sender = channel(&to.expect("a session")).sender();
    let receiver = channel(&from).receiver().expect("a receiver");
    ([here, there], (sender.expect("a sender"), receiver))
}

const LENGTHS: [usize; 5] = [0, 9, 4000, 200_000, 3 << 20];

#[test]
fn a_header_and_a_trace_context_come_beside_a_body() {
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        let (_nodes, (mut sender, mut receiver)) = joined(fabric);
        let sending = thread::spawn(move || {
            for length in LENGTHS {
                let slice = Region::from(vec![length as u8; length]).slice(..);
                sender.send_region((b"header", &slice)).expect("sent");
                sender.send_region(&slice).expect("sent");
            }
            sender
        });
        for length in LENGTHS {
            for header in [&b"header"[..], b""] {
                let message = receiver.recv().expect("a message").into_owned();
                assert_eq!(message[..], vec![length as u8; length]);
                assert_eq!(message.header(), header, "{fabric} {length}");
                assert_eq!(message.trace_context(), ambient(), "{fabric} {length}");
            }
        }
        drop(sending.join().expect("no panic"));
    }
}
