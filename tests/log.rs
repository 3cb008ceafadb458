//! The log and the counts of a node, as an operator reads them. The log names the peer, and the
//! node's own address.
#![forbid(unsafe_code)]

use std::{
    fmt::{self, Write as _},
    io::Write as _,
    net::TcpStream,
    sync::{Arc, Mutex},
    thread,
};

use ibex::{Fabric, Node, Policy, Raw};
use tracing::{
    Event, Metadata, Subscriber,
    field::{Field, Visit},
    span,
};

/// The logged events, one line each.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn line_with(&self, words: &str) -> Option<String> {
        let lines = self.0.lock().expect("nobody panics with it");
        lines.iter().find(|line| line.contains(words)).cloned()
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.is_event()
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().expect("nobody panics with it").push(line.0);
    }

    // ibex opens no spans.
    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }
    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
    fn enter(&self, _: &span::Id) {}
    fn exit(&self, _: &span::Id) {}
}

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("memory");
    }
}

#[test]
fn log_lines_name_a_peer_by_identity_and_by_the_node_it_connected_to() {
    let log = Log::default();
    tracing::subscriber::set_global_default(log.clone()).expect("nobody keeps the log yet");
    let listener = Node::builder().name("the second").listen("127.0.0.1:0");
    let listener = listener.build().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let dialer = thread::spawn(move || {
        let client = Node::builder().identity([7; 16]).build().expect("a node");
        let peer = client.connect(address).expect("a session");
        (client, peer)
    });
    let peer = listener.accept().expect("the same session");
    let own = format!(", accepted on {address}, a peer of node the second ");
    let line = log.line_with(&own).expect("it is logged");
    assert!(line.contains("session up"), "{line}");
    let named = format!("peer={} at {}", peer.id(), peer.address());
    assert!(line.contains(&named), "{line}");
    assert!(line.contains("peer=070707070707/"), "{line}");
    drop(dialer.join());

    // A stranger is no peer and has no name, but the listener has an address.
    let mut stranger = TcpStream::connect(address).expect("a connection");
    stranger.write_all(b"GET / HTTP/1.1\r\n\r\n").expect("room");
    let own = format!("listener={address}");
    let line = loop {
        match log.line_with(&own) {
            Some(line) => break line,
            None => thread::yield_now(),
        }
    };
    assert!(line.contains("did not become a session"), "{line}");
}

/// Counts tell bytes of messages from bytes of control messages, on each fabric.
#[test]
fn over_shared_memory_no_bytes_of_messages_are_sent() {
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        let builder = || Node::builder().fabric(fabric, Policy::Require);
        let listener = builder().listen("127.0.0.1:0").build().expect("a node");
        let client = builder().build().expect("a node");
        let peer = client.connect(listener.local_addr().expect("it listens"));
        let peer = peer.expect("a session");
        let theirs = listener.accept().expect("the same session");
        let raw = peer.channel("log").codec::<Raw>();
        let mut sender = raw.sender::<[u8]>().expect("an end");
        let raw = theirs.channel("log").codec::<Raw>();
        let mut receiver = raw.receiver::<[u8]>().expect("the other");
        sender.send(&[7; 1000]).expect("room");
        receiver.recv().expect("it came").ack();
        sender.wait_acked(1).expect("acknowledged");

        let counted = |node: &Node| {
            let sessions = node.stats().sessions;
            sessions.first().expect("the session").counters
        };
        let (sent, came) = (counted(&client), counted(&listener));
        match fabric {
            Fabric::Shm => {
                assert_eq!((sent.bytes_sent, came.bytes_received), (0, 0));
                assert!(sent.control_bytes_sent > 0 && came.control_bytes_received > 0);
            }
            _ => {
                assert!(sent.bytes_sent > 1000 && came.bytes_received > 1000);
                let control = (sent.control_bytes_sent, came.control_bytes_received);
                assert_eq!(control, (0, 0));
            }
        }
    }
}
