//! Handles of nodes and of ends: clones of a node, a receiver that closes, a sender that learns of
//! it, messages by the batch, and calls with a deadline.

use std::{mem, time::Instant};

use ibex::{
    CloseReason, EndCause, Event, Message, Peer, Raw, RecvErrorKind, SendErrorKind, WaitErrorKind,
};

use crate::common::{
    scenario::{Scenario, Side},
    stage::{LONG, Stage, receiver, sender},
    stream::send_all,
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("node_lives_as_its_clones", node_clones),
    Scenario::new("receiver_closes", receiver_closes),
    Scenario::new("messages_by_the_batch", batches),
    Scenario::new("deadlines", deadlines),
];

const MESSAGES: u64 = 10;

/// A node goes on until its last clone is dropped, and a weak reference does not keep it.
fn node_clones(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let ids = |peers: &[Peer]| peers.iter().map(Peer::id).collect::<Vec<_>>();
    match stage.side {
        Side::Dialer => {
            let weak = node.downgrade();
            let clone = node.clone();
            assert_eq!(node.id(), clone.id());
            drop(node);
            let upgraded = weak.upgrade().expect("a clone is left");
            assert_eq!(ids(&upgraded.peers()), [peer.id()]);
            drop(upgraded);
            let mut out = sender(&peer, "out");
            out.send(b"from the clone").expect("the node is open");
            stage.hear("received", &clone);
            drop(clone);
            assert!(weak.upgrade().is_none());
            let over = out.wait_acked(2).expect_err("the node closes");
            assert_eq!(over.kind(), WaitErrorKind::Disconnected);
        }
        Side::Listener => {
            assert_eq!(ids(&node.peers()), [peer.id()]);
            let mut out = receiver(&peer, "out");
            let message = out.recv().expect("a message");
            assert_eq!(&*message, b"from the clone");
            message.ack();
            stage.tell("received");
            let is_gone = |event| matches!(event, Event::Gone { .. });
            assert!(node.events().any(is_gone), "the node is open");
            assert!(node.peers().is_empty());
        }
    }
}

/// A receiver closes when all has arrived and most was not received: it gets the rest and then the
/// orderly end, the sender learns of it, and the name can be used again.
fn receiver_closes(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut log = sender(&peer, "log");
            log.opened(LONG).expect("the peer opens");
            let all = log.capacity();
            send_all(&mut log, MESSAGES, |_| 100);
            log.flush().expect("the peer's engine has them");
            assert_eq!(log.capacity(), all - MESSAGES);
            assert!(!log.is_closed());
            stage.tell("sent");
            task::run(&node, stage.driver(), log.closed_async());
            assert!(log.is_closed());
            assert_eq!(log.capacity(), 0);
            let refused = log.send(b"late").expect_err("nobody receives it");
            let cause = EndCause::PeerClosed(CloseReason::Dropped);
            assert_eq!(refused.cause(), Some(&cause));
            drop(log);
            stage.rendezvous("over", &node);
            let mut again = sender(&peer, "log");
            again.send(b"again").expect("room");
            stage.hear("received", &node);
        }
        Side::Listener => {
            let mut log = receiver(&peer, "log");
            log.opened(LONG).expect("the peer opens");
            stage.hear("sent", &node);
            log.recv().expect("the first").ack();
            log.close();
            log.close();
            let mut rest = Vec::new();
            while log.recv_many(&mut rest, 4).expect("no error") != 0 {}
            let numbers: Vec<_> = rest.iter().map(Message::sequence).collect();
            assert_eq!(numbers, Vec::from_iter(2..=MESSAGES));
            rest.into_iter().for_each(Message::ack);
            let over = log.recv().expect_err("the end");
            assert_eq!(over.kind(), RecvErrorKind::Ended);
            let over = log.opened(LONG).expect_err("the end");
            assert_eq!(over.kind(), RecvErrorKind::Ended);
            assert!(log.iter().next().is_none());
            stage.rendezvous("over", &node);
            let mut again = receiver(&peer, "log");
            drop(log); // does not end the channel that has its name now
            assert_eq!(&*again.recv().expect("a message"), b"again");
            stage.tell("received");
        }
    }
}

/// A batch has what is there, up to its limit, and waits for the first message alone.
fn batches(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut log = sender(&peer, "log");
            send_all(&mut log, MESSAGES, |_| 100);
            log.flush().expect("the peer's engine has them");
            stage.tell("sent");
            log.wait_acked(MESSAGES).expect("all are acknowledged");
            log.close().expect("all are delivered");
            stage.hear("over", &node);
        }
        Side::Listener => {
            let mut log = receiver(&peer, "log");
            stage.hear("sent", &node);
            let mut batch = Vec::new();
            assert_eq!(log.recv_many(&mut batch, 0).expect("nothing"), 0);
            assert_eq!(log.recv_many(&mut batch, 4).expect("a batch"), 4);
            let rest = log.recv_many_async(&mut batch, 100);
            let rest = task::run(&node, stage.driver(), rest).expect("the rest");
            assert_eq!(
                rest,
                mem::take(&mut batch).into_iter().map(Message::ack).count() - 4
            );
            assert_eq!(log.received(), MESSAGES);
            let end = log.recv_many_async(&mut batch, 100);
            assert_eq!(task::run(&node, stage.driver(), end).expect("the end"), 0);
            assert_eq!(log.recv_many(&mut batch, 1).expect("the end"), 0);
            stage.tell("over");
        }
    }
}

/// Calls wait until their deadline, also one that has passed.
fn deadlines(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let log = peer.channel("log").codec::<Raw>().window_messages(1);
            let mut log = log.sender::<[u8]>().expect("a sender");
            stage.hear("looked", &node);
            let later = Instant::now() + LONG;
            log.send_deadline(b"first", later).expect("room");
            let refused = log.send_deadline(b"second", Instant::now());
            assert_eq!(refused.unwrap_err().kind(), SendErrorKind::Timeout);
            stage.tell("full");
            log.send_deadline(b"third", later).expect("room comes");
            stage.hear("over", &node);
        }
        Side::Listener => {
            let mut log = receiver(&peer, "log");
            log.opened(LONG).expect("the peer opens");
            let nothing = log.recv_deadline(Instant::now()).unwrap_err();
            assert_eq!(nothing.kind(), RecvErrorKind::Timeout);
            stage.tell("looked");
            stage.hear("full", &node);
            let later = Instant::now() + LONG;
            let first = log.recv_deadline(later).expect("the first");
            assert_eq!(&*first, b"first");
            drop(first);
            assert_eq!(&*log.recv_deadline(later).expect("the next"), b"third");
            stage.tell("over");
        }
    }
}
