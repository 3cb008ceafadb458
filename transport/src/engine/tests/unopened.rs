//! Peers that open ends which the node never opens, with the longest names and types there are.

use std::{io::Write as _, net::TcpStream, sync::Arc};

use ibex_protocol::format::{
    channel_window::ChannelWindow,
    control::{
        ChannelSpec, Control, MAX_NAME_BYTES, MAX_OLDER_SCHEMA_BYTES, MAX_SCHEMA_BYTES, Role,
    },
    message_version::{MAX_OLDER_VERSIONS, MessageVersion},
};

use crate::{
    node::SessionShared,
    runtime::{Driver, Runtime},
    wire::tests::by_hand::{admit, connection, control_frame, runtime, spec_of_bytes},
};

/// A session whose peer is the test.
struct Opener {
    session: Arc<SessionShared>,
    peer: TcpStream,
    opened: u32,
}

impl Opener {
    fn new(node: &Arc<Runtime>) -> Self {
        let [stream, peer] = connection();
        Self {
            session: admit(node, stream, None),
            peer,
            opened: 0,
        }
    }

    /// Opens `count` ends, and lets the node take them in, unless it ends the session. Returns
    /// whether the session goes on.
    fn open(&mut self, node: &Runtime, count: u32, texts: usize) -> bool {
        let expected = u64::from(self.opened + count);
        for _ in 0..count {
            let frame = control_frame(self.opened.into(), Some(&open(self.opened + 1, texts)));
            self.opened += 1;
            if self.peer.write_all(&frame).is_err() {
                break;
            }
            node.poll_ready();
        }
        while !self.session.is_over() && self.session.stats().frames_received < expected {
            node.poll_ready();
        }
        !self.session.is_over()
    }
}

/// Opens an end whose texts are as long as they may be, divided by `texts`.
fn open(end: u32, texts: usize) -> Control {
    let version = |longest: usize, number: usize| MessageVersion {
        fingerprint: [number as u8; 16],
        schema: "s".repeat(longest / texts),
        alignment: 8,
    };
    let window = ChannelWindow {
        messages: 64,
        bytes: 1 << 20,
    };
    let older = (1..=MAX_OLDER_VERSIONS).map(|number| version(MAX_OLDER_SCHEMA_BYTES, number));
    Control::Open {
        end,
        role: Role::Sender,
        name: format!("{end:0>width$}", width = MAX_NAME_BYTES / texts).into(),
        spec: Arc::new(ChannelSpec {
            newest: version(MAX_SCHEMA_BYTES, 0),
            older: older.collect(),
            ..spec_of_bytes(window, 1 << 10)
        }),
    }
}

#[test]
fn ends_that_the_node_never_opens_are_bounded_for_all_peers_together() {
    let node = runtime(Driver::Caller);
    let whole = node.unopened_left();
    let mut modest = Opener::new(&node);
    assert!(modest.open(&node, 20, 50));
    let mut greedy: Vec<Opener> = Vec::new();
    let refused = loop {
        assert!(greedy.len() < 40, "40 sessions hold what they like");
        let mut opener = Opener::new(&node);
        if !opener.open(&node, 1019, 1) {
            break opener;
        }
        greedy.push(opener);
    };
    assert!(refused.session.is_over());
    let held = whole - node.unopened_left();
    assert!(held > whole / 2 && held <= whole, "{held} of {whole}");
    // What is left for all is taken, and each session has its own all the same.
    let mut late = Opener::new(&node);
    assert!(late.open(&node, 50, 50));
    assert!(modest.open(&node, 50, 50));

    // All of it comes back with the ends of the sessions.
    let sessions: Vec<_> = greedy.iter().map(|opener| opener.session.clone()).collect();
    drop(greedy);
    while sessions.iter().any(|session| !session.is_over()) {
        node.poll_ready();
    }
    node.poll_ready();
    assert_eq!(node.unopened_left(), whole);
    assert!(!modest.session.is_over() && !late.session.is_over());
}
