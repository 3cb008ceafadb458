//! What a node's calls promise to whoever drives it: that waiting may take for ever, that
//! closing twice says the same twice, that a program's own event loop is enough.

use std::time::Duration;

use crate::common::{
    scenario::{Scenario, Side},
    stage::{Stage, receiver, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[Scenario::new("waiting_for_ever", waiting_for_ever)];

/// `Duration::MAX` is for ever, wherever a time can be given.
fn waiting_for_ever(stage: &mut Stage) {
    const FOR_EVER: Duration = Duration::MAX;
    let settings = |builder: ibex::NodeBuilder| {
        builder
            .connect_timeout(FOR_EVER)
            .handshake_timeout(FOR_EVER)
            .open_timeout(FOR_EVER)
            .linger(FOR_EVER)
    };
    for round in 0..2 {
        let node = match stage.side {
            Side::Dialer => {
                let builder = settings(stage.builder());
                let node = builder.build().expect("a node that dials");
                let peer = stage.dial(&node);
                let mut out = sender(&peer, "out");
                out.opened(FOR_EVER).expect("the peer opens");
                out.send_timeout(b"hello", FOR_EVER).expect("sent");
                out.flush_timeout(FOR_EVER).expect("received");
                out.wait_acked_timeout(1, FOR_EVER).expect("acknowledged");
                node
            }
            Side::Listener => {
                let builder = settings(stage.builder()).listen("127.0.0.1:0");
                let node = builder.build().expect("a node that listens");
                stage.tell_address(&node);
                let peer = node.accept_timeout(FOR_EVER).expect("a peer");
                let mut out = receiver(&peer, "out");
                let mut pending = sender(&peer, "never opened");
                let message = out.recv_timeout(FOR_EVER).expect("a message");
                assert_eq!(&message[..], b"hello");
                message.ack();
                // Pending for ever, until the peer's node is closed.
                pending.send(b"early").expect_err("nobody opens");
                node
            }
        };
        if round == 0 {
            let report = node.close(FOR_EVER);
            assert!(report.undelivered.is_empty(), "{report:?}");
        }
        // Else `linger` says for how long.
        drop(node);
        stage.tell("next");
        assert_eq!(stage.hear_any(), "next");
    }
}
