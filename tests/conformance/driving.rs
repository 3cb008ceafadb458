//! What a node's calls promise to whoever drives it: that waiting may take for ever, that
//! closing twice says the same twice, that a program's own event loop is enough.

use std::{thread, time::Duration};

use crate::common::{
    kernel,
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage, receiver, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("waiting_for_ever", waiting_for_ever),
    Scenario::new("close_reports_twice", close_reports_twice),
    Scenario::new("close_in_two_threads", close_in_two_threads),
];

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

/// Closing again gives the first report again, not one that says "all delivered".
fn close_reports_twice(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            out.opened(LONG).expect("the peer opens");
            stage.stop_other();
            for _ in 0..10 {
                out.send(b"unread").expect("sent");
            }
            let report = node.close(MOMENT);
            assert_eq!(node.close(LONG), report);
            stage.resume_other();
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let mut out = receiver(&peer, "out");
            for _ in 0..10 {
                out.recv().expect("what is on its way arrives");
            }
            stage.tell("received");
        }
    }
}

/// A thread that closes for ever is held up by a peer that does not run; another that has
/// less time ends both calls, with one report.
fn close_in_two_threads(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut out = sender(&peer, "out");
            out.opened(LONG).expect("the peer opens");
            stage.stop_other();
            for _ in 0..10 {
                out.send(b"unread").expect("sent");
            }
            thread::scope(|scope| {
                let (started, patient) = std::sync::mpsc::channel();
                let node = &node;
                let first = scope.spawn(move || {
                    started.send(kernel::this_thread()).expect("we wait");
                    node.close(Duration::MAX)
                });
                kernel::wait_until_asleep(patient.recv().expect("it has begun"));
                let second = node.close(MOMENT);
                assert_eq!(first.join().expect("no panic"), second);
            });
            stage.resume_other();
            assert_eq!(stage.hear_any(), "received");
        }
        Side::Listener => {
            let mut out = receiver(&peer, "out");
            for _ in 0..10 {
                out.recv().expect("what is on its way arrives");
            }
            stage.tell("received");
        }
    }
}
