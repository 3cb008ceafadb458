//! Two nodes with a session over verbs, and a channel to watch it by.

use std::{
    thread,
    time::{Duration, Instant},
};

use ibex::{Event, Fabric, Node, Peer, Policy, Raw, Receiver, Sender};

use crate::{PATIENCE, builder};

/// Two nodes that prefer verbs, and a channel from the second to the first.
pub(crate) struct Met {
    pub(crate) nodes: [Node; 2],
    pub(crate) peers: [Peer; 2],
    pub(crate) sender: Sender<[u8], Raw>,
    pub(crate) receiver: Receiver<[u8], Raw>,
}

impl Met {
    pub(crate) fn new() -> Self {
        let server = builder(Policy::Prefer).listen("127.0.0.1:0").build();
        let client = builder(Policy::Prefer).build();
        Self::of([server.expect("a node"), client.expect("a node")])
    }

    pub(crate) fn of(nodes: [Node; 2]) -> Self {
        let address = nodes[0].local_addr().expect("it listens");
        let dialed = nodes[1].connect(address).expect("a session");
        let accepted = nodes[0].accept().expect("a peer");
        let sender = dialed.channel("said").codec::<Raw>().sender();
        let receiver = accepted.channel("said").codec::<Raw>().receiver();
        let mut met = Self {
            nodes,
            peers: [accepted, dialed],
            sender: sender.expect("an end"),
            receiver: receiver.expect("an end"),
        };
        met.carry();
        met
    }

    pub(crate) fn carry(&mut self) {
        self.sender.send(&[7; 64]).expect("sent");
        assert_eq!(self.receiver.recv().expect("a message")[..], [7; 64]);
    }

    /// Sends until the session moves to tcp, without a loss. Returns the reason for the move.
    pub(crate) fn why_moved(&mut self) -> String {
        let mut events = self.nodes[1].events();
        let start = Instant::now();
        let mut sent = 0;
        while start.elapsed() < PATIENCE {
            self.sender.send(&[7; 64]).expect("sent");
            sent += 1;
            while let Some(event) = events.try_next() {
                if let Event::FabricChanged { to, reason, .. } = event {
                    assert_eq!(to, Fabric::Tcp);
                    for _ in 0..sent {
                        assert_eq!(self.receiver.recv().expect("a message")[..], [7; 64]);
                    }
                    return reason;
                }
            }
            thread::sleep(Duration::from_millis(10));
        }
        panic!("the session goes on as before");
    }

    /// Connects the same nodes once more.
    pub(crate) fn meet_again(self) -> Self {
        let Self { nodes, .. } = self;
        Self::of(nodes)
    }
}
