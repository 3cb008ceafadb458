//! Limits of what a peer may have: whoever asks for more is told which limit and whose, at
//! both ends, and what is there goes on.

use std::{sync::mpsc, thread};

use ibex::{
    ConnectError, Message, Node, OpenFailure, Peer, Raw, SendTimeoutError,
    bootstrap::{DialError, End, HandshakeError, SessionLimit},
};

use crate::common::{
    log::Log,
    payload,
    scenario::{Scenario, Side, Span},
    stage::{LONG, MOMENT, Stage, receiver, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("too_many_channels", too_many_channels),
    Scenario::new("too_many_sessions_of_a_peer", too_many_of_a_peer),
    Scenario::new("large_messages_unreleased", large_unreleased),
    Scenario::new("too_many_sessions_of_a_node", too_many_of_a_node).on(Span::EachDriver),
];

/// Either side may have so many ends open, and is told the limit.
fn too_many_channels(stage: &mut Stage) {
    let limit = if stage.is_dialer() { 8 } else { 100 };
    let (node, peer) = stage.meet_as(|builder| builder.max_channels(limit));
    let side = stage.side;
    let ends: Vec<_> = (0..8)
        .map(|number| sender(&peer, &format!("{side:?} {number}")))
        .collect();
    let error = peer
        .channel("one more")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .expect_err("above the smaller limit");
    assert_eq!(error.reason, OpenFailure::TooMany { limit: 8 });
    assert!(error.to_string().contains("max_channels"), "{error}");
    stage.rendezvous("all are open", &node);
    drop(ends);
}

/// A peer has its places, whoever it connects as; another identity has others, and the end
/// of a session makes room.
fn too_many_of_a_peer(stage: &mut Stage) {
    let limit = SessionLimit::PerPeer(2);
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let [node, again] = [(); 2].map(|()| client(stage, IDENTITY));
            let first = node.connect(&address).expect("a session");
            let second = again.connect(&address).expect("another");
            check_refusal(&node, &address, End::Acceptor, limit);
            converse(&first, "first");
            converse(&second, "second");
            let other = client(stage, [2; 16]);
            let third = other.connect(&address).expect("another peer's");
            converse(&third, "third");
            let undelivered = again.close(LONG).undelivered;
            assert!(undelivered.is_empty(), "{undelivered:?}");
            stage.tell("one session is over");
            stage.hear("so it is", &node);
            let after = node.connect(&address).expect("there is room");
            converse(&after, "after");
        }
        Side::Listener => {
            let log = Log::take_over();
            let builder = stage.builder().listen("127.0.0.1:0");
            let node = builder.max_peer_sessions(2).build().expect("a node");
            stage.tell_address(&node);
            let [first, second, third] = ["first", "second", "third"].map(|name| {
                let peer = node.accept().expect("a peer");
                answer(&peer, name);
                peer
            });
            let [failure] = &log.failures()[..] else {
                panic!("one was refused: {:?}", log.failures());
            };
            let end = End::Acceptor;
            assert_eq!(
                failure.error,
                HandshakeError::TooManySessions { end, limit }
            );
            assert!(
                failure.said.contains("max_peer_sessions"),
                "{}",
                failure.said
            );
            stage.hear("one session is over", &node);
            while !second.is_gone() {
                node.poll();
            }
            assert!(!first.is_gone() && !third.is_gone());
            stage.tell("so it is");
            answer(&node.accept().expect("a peer"), "after");
        }
    }
}

/// Whoever connects is bound by its own limit too, and both hear whose it is.
fn too_many_of_a_node(stage: &mut Stage) {
    let limit = SessionLimit::PerNode(1);
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let builder = stage.builder().max_node_sessions(1);
            let node = builder.build().expect("a node");
            let peer = node.connect(&address).expect("a session");
            check_refusal(&node, &address, End::Dialer, limit);
            converse(&peer, "only");
        }
        Side::Listener => {
            let log = Log::take_over();
            let builder = stage.builder().listen("127.0.0.1:0");
            let node = builder.build().expect("a node");
            stage.tell_address(&node);
            answer(&node.accept().expect("a peer"), "only");
            let [failure] = &log.failures()[..] else {
                panic!("one was refused: {:?}", log.failures());
            };
            let end = End::Dialer;
            assert_eq!(
                failure.error,
                HandshakeError::TooManySessions { end, limit }
            );
        }
    }
}

/// Of messages with memory of their own so many may be unreleased and no more; dropping
/// one, on any thread, lets the next come.
fn large_unreleased(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("large").codec::<Raw>();
    let channel = channel.max_message_bytes(LONGEST as u64);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("an end");
            let mut sent = 0;
            let mut message = vec![0; LONGEST];
            let waits = loop {
                payload::fill(sent + 1, &mut message);
                match sender.send_timeout(&message, 10 * MOMENT) {
                    Ok(sequence) => sent = sequence,
                    Err(error) => break error,
                }
            };
            assert!(matches!(waits, SendTimeoutError::Timeout(_)), "{waits}");
            // Two there, where the fabric has memory at both ends, and two here, or three where
            // one that has arrived is kept for the session to go on with.
            assert!(
                (1..=5).contains(&sent),
                "{sent} messages of {LONGEST} bytes"
            );
            stage.tell("it waits");
            for sequence in sent + 1..=MESSAGES {
                payload::fill(sequence, &mut message);
                sender.send(&message).expect("sent");
            }
            sender.wait_acked(MESSAGES).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("an end");
            stage.hear("it waits", &node);
            let (hand_on, guards) = mpsc::channel::<Message<[u8], Raw>>();
            let settling = thread::spawn(move || {
                for guard in guards {
                    // Long enough for the receiver to wait for it.
                    thread::sleep(MOMENT);
                    payload::check(guard.sequence(), &guard);
                    guard.ack();
                }
            });
            for sequence in 1..=MESSAGES {
                let message = receiver.recv().expect("a message");
                assert_eq!((message.sequence(), message.len()), (sequence, LONGEST));
                hand_on.send(message).expect("it settles them");
            }
            drop(hand_on);
            settling.join().expect("settled");
            stage.hear("done", &node);
        }
    }
}

/// Longer than half of the least that may be unreleased.
const LONGEST: usize = 9 << 20;
const MESSAGES: u64 = 8;

const IDENTITY: [u8; 16] = [1; 16];

fn client(stage: &Stage, identity: [u8; 16]) -> Node {
    let builder = stage.builder().identity(identity);
    builder.build().expect("a node")
}

/// One session more cannot be had, as both a value and words say.
fn check_refusal(node: &Node, address: &str, whose: End, which: SessionLimit) {
    let error = node.connect(address).expect_err("one too many");
    let ConnectError::Dial(DialError::Handshake { source, .. }) = &error else {
        panic!("not refused: {error}");
    };
    let HandshakeError::TooManySessions { end, limit } = source else {
        panic!("refused otherwise: {error}");
    };
    assert_eq!((*end, *limit), (whose, which));
    assert!(error.to_string().contains(which.setting()), "{error}");
}

pub(crate) fn converse(peer: &Peer, name: &str) {
    let mut sender = sender(peer, name);
    sender.send(name.as_bytes()).expect("sent");
    sender.wait_acked(1).expect("acknowledged");
}

pub(crate) fn answer(peer: &Peer, name: &str) {
    let mut receiver = receiver(peer, name);
    let message = receiver.recv().expect("a message");
    assert_eq!(&message[..], name.as_bytes());
    message.ack();
    // Its word goes out before this end does.
    drop(receiver);
}
