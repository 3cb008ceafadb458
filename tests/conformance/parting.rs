//! Sessions that end alone: either program ends one, for a reason that the other receives, and both
//! nodes go on.

use std::time::Duration;

use ibex::{EndCause, Event, Node, OpenErrorKind, Peer, Raw};

use super::ending::{assert_all_come, close_while_stopped, interrupt};
use crate::common::{
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage, receiver, sender},
    stream::send_all,
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("session_ended_by_the_dialer", ended_by_the_dialer),
    Scenario::new("session_ended_by_the_listener", ended_by_the_listener),
    Scenario::new("session_ended_in_a_task", ended_in_a_task),
    Scenario::new("session_end_interrupts", end_interrupts),
    Scenario::new("session_end_with_a_stopped_peer", end_with_a_stopped_peer),
    Scenario::new("session_ended_at_once_by_the_dialer", at_once_by_the_dialer),
    Scenario::new(
        "session_ended_at_once_by_the_listener",
        at_once_by_the_listener,
    ),
];

/// A reason with a character that must not reach a log as it is.
const REASON: &str = "the job is done\nWARN";
const HEARD: &str = "the job is done\\nWARN";

fn ended_here() -> EndCause {
    let reason = HEARD.to_owned();
    EndCause::EndedHere { reason }
}

fn ended_by_peer() -> EndCause {
    let reason = HEARD.to_owned();
    EndCause::EndedByPeer { reason }
}

/// Waits for the event of the session's end, and checks its cause.
fn expect_gone(node: &Node, peer: &Peer, expected: &EndCause) {
    for event in node.events() {
        if let Event::Gone {
            peer: who, cause, ..
        } = event
        {
            assert_eq!((who, &cause), (peer.id(), expected));
            return;
        }
    }
    panic!("the session never ended");
}

/// Ends the session on one side, which has sent 100 messages: all arrive before the end.
fn end(stage: &mut Stage, node: &Node, peer: &Peer, close: impl FnOnce(&Peer)) {
    let mut out = sender(peer, "out");
    let mut back = receiver(peer, "back");
    back.opened(LONG).expect("the peer opens");
    send_all(&mut out, 100, |_| 5000);
    close(peer);
    let again = peer.close(LONG);
    assert!(again.undelivered.is_empty(), "closing again does nothing");
    let late = out.send(b"late").expect_err("the session has ended");
    assert_eq!(late.cause(), Some(&ended_here()));
    // Messages that had arrived are handed out first.
    let over = back.iter().find_map(Result::err).expect("no orderly end");
    assert_eq!(over.cause(), Some(&ended_here()));
    let refused = peer.channel("late").codec::<Raw>().sender::<[u8]>();
    let refused = refused.expect_err("the session has ended");
    assert_eq!(refused.kind(), OpenErrorKind::SessionOver);
    assert!(peer.is_gone());
    expect_gone(node, peer, &ended_here());
    stage.rendezvous("parted", node);
}

/// Receives the end of the session behind 100 messages.
fn hear_end(stage: &mut Stage, node: &Node, peer: &Peer) {
    let mut out = receiver(peer, "out");
    let mut back = sender(peer, "back");
    assert_all_come(&mut out, 100);
    let cause = loop {
        if let Err(error) = back.send(b"to nobody") {
            break error.cause().cloned();
        }
    };
    assert_eq!(cause, Some(ended_by_peer()));
    expect_gone(node, peer, &ended_by_peer());
    assert!(peer.is_gone());
    stage.rendezvous("parted", node);
}

/// Makes another session between the same nodes, with channels of the same names.
fn meet_again(stage: &mut Stage, node: &Node, before: &Peer) {
    match stage.side {
        Side::Dialer => {
            let peer = node.connect(before.address()).expect("a session");
            send_all(&mut sender(&peer, "out"), 10, |_| 100);
            stage.hear("received", node);
        }
        Side::Listener => {
            let peer = node.accept().expect("a peer");
            assert_all_come(&mut receiver(&peer, "out"), 10);
            stage.tell("received");
        }
    }
}

fn close(peer: &Peer) {
    let report = peer.close_because(REASON, LONG);
    assert!(report.undelivered.is_empty(), "{report}");
}

/// A client has finished its job, and both nodes go on.
fn ended_by_the_dialer(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => end(stage, &node, &peer, close),
        Side::Listener => hear_end(stage, &node, &peer),
    }
    meet_again(stage, &node, &peer);
}

/// A server sends a client away, which does not come back by itself.
fn ended_by_the_listener(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Listener => end(stage, &node, &peer, close),
        Side::Dialer => hear_end(stage, &node, &peer),
    }
    meet_again(stage, &node, &peer);
}

fn ended_in_a_task(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => end(stage, &node, &peer, |peer| {
            let closing = peer.close_because_async(REASON, LONG);
            let report = task::run(&node, driver, closing);
            assert!(report.undelivered.is_empty(), "{report}");
        }),
        Side::Listener => hear_end(stage, &node, &peer),
    }
    meet_again(stage, &node, &peer);
}

/// Calls that wait on the session's channels return, and a call that waits for another peer does
/// not.
fn end_interrupts(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    interrupt(stage, &node, &peer, &ended_here(), None, || {
        let _ = peer.close_because(REASON, MOMENT);
    });
    meet_again(stage, &node, &peer);
}

/// The peer lives and does not run: the close gives up after its time.
fn end_with_a_stopped_peer(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            close_while_stopped(stage, &peer, || peer.close_because(REASON, MOMENT));
            assert!(peer.is_gone());
            stage.resume_other();
            stage.hear("received", &node);
            meet_again(stage, &node, &peer);
        }
        Side::Listener => {
            // The goodbye was on its way.
            assert_all_come(&mut receiver(&peer, "out"), 10);
            expect_gone(&node, &peer, &ended_by_peer());
            stage.tell("received");
            meet_again(stage, &node, &peer);
        }
    }
}

fn at_once_by_the_dialer(stage: &mut Stage) {
    end_at_once(stage, Side::Dialer, 1 << 20);
}

fn at_once_by_the_listener(stage: &mut Stage) {
    end_at_once(stage, Side::Listener, 1000);
}

/// No time is given, while far more is under way than the fabric takes: the peer, which reads none of
/// it, hears the reason all the same.
fn end_at_once(stage: &mut Stage, closes: Side, length: usize) {
    let (node, peer) = stage.meet();
    if stage.side == closes {
        let mut out = sender(&peer, "out");
        let message = vec![7; length];
        out.send(&message).expect("the peer opens");
        for _ in 0..(15 << 20) / length {
            if out.try_send(&message).is_err() {
                break;
            }
        }
        let _ = peer.close_because(REASON, Duration::ZERO);
        assert!(peer.is_gone());
        expect_gone(&node, &peer, &ended_here());
        stage.hear("heard", &node);
    } else {
        let _unread = receiver(&peer, "out");
        expect_gone(&node, &peer, &ended_by_peer());
        stage.tell("heard");
    }
}
