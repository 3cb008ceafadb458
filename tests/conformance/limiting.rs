//! Limits of a peer: a request beyond one gets an error at both ends that names the limit and its
//! owner, and everything else continues.

use std::{sync::mpsc, thread};

use ibex::{ConnectErrorKind, Message, Node, OpenErrorKind, Peer, Raw, SendErrorKind, Sender};
use ibex_bootstrap::{DialError, HandshakeError, SessionLimit, negotiate::Party};

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
    Scenario::new("as_many_unreleased", as_many_unreleased),
    Scenario::new("too_long_for_the_node", too_long_for_the_node),
    Scenario::new("little_memory", little_memory),
    Scenario::new("too_many_sessions_of_a_node", too_many_of_a_node).on(Span::EachDriver),
];

/// Either side may have a limited number of ends open, and learns the limit. A dropped end counts
/// until the peer has opened its own.
fn too_many_channels(stage: &mut Stage) {
    let limit = if stage.is_dialer() { 8 } else { 100 };
    let (node, peer) = stage.meet_as(|builder| builder.max_channels(limit));
    let side = stage.side;
    let open = |number| sender(&peer, &format!("{side:?} {number}"));
    let one_more = || peer.channel("one more").codec::<Raw>().sender::<[u8]>();
    let is_refused = || {
        let error = one_more().expect_err("above the smaller limit");
        assert_eq!(error.kind(), OpenErrorKind::TooMany);
        assert!(error.to_string().contains("has 8 open ends"), "{error}");
        assert!(error.to_string().contains("max_channels"), "{error}");
    };
    let _ends: Vec<_> = (0..7).map(open).collect();
    match side {
        Side::Dialer => {
            let last = open(7);
            is_refused();
            drop(last);
            is_refused();
            stage.tell("all are open");
            while one_more().is_err() {
                node.poll();
            }
        }
        Side::Listener => {
            stage.hear("all are open", &node);
            let mut last = receiver(&peer, "Dialer 7");
            is_refused();
            assert!(last.next().expect("an orderly end").is_none());
        }
    }
    stage.rendezvous("both know", &node);
}

/// An incarnation of a peer has its own places, and so has a node. Other peers and incarnations
/// have others, and the end of a session makes room.
fn too_many_of_a_peer(stage: &mut Stage) {
    let of_a_peer = SessionLimit::PerPeer(2);
    let of_the_node = SessionLimit::PerNode(4);
    let end = Party::Acceptor;
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let meet = |node: &Node, name: &str| {
                let peer = node.connect(&address).expect("a session");
                converse(&peer, name);
                peer
            };
            let node = client(stage, IDENTITY);
            let _first = meet(&node, "first");
            let _second = meet(&node, "second");
            check_refusal(&node, &address, end, of_a_peer);
            let other = client(stage, [2; 16]);
            let _third = meet(&other, "third");
            let again = client(stage, IDENTITY);
            let _fourth = meet(&again, "fourth");
            check_refusal(&again, &address, end, of_the_node);
            let undelivered = again.close(LONG).undelivered;
            assert!(undelivered.is_empty(), "{undelivered:?}");
            stage.tell("one session is over");
            stage.hear("so it is", &node);
            let _after = meet(&other, "after");
        }
        Side::Listener => {
            let log = Log::take_over();
            let builder = stage.builder().listen("127.0.0.1:0");
            let builder = builder.max_peer_sessions(2).max_node_sessions(4);
            let node = builder.build().expect("a node");
            stage.tell_address(&node);
            let peers = ["first", "second", "third", "fourth"].map(|name| {
                let peer = node.accept().expect("a peer");
                answer(&peer, name);
                peer
            });
            stage.hear("one session is over", &node);
            let [of_a_run, of_all] = &log.failures()[..] else {
                panic!("two were refused: {:?}", log.failures());
            };
            for (failure, limit) in [(of_a_run, of_a_peer), (of_all, of_the_node)] {
                let error = HandshakeError::TooManySessions { end, limit };
                assert_eq!(failure.error, error);
                assert!(failure.said.contains(limit.setting()), "{}", failure.said);
            }
            let [others @ .., last] = &peers;
            while !last.is_gone() {
                node.poll();
            }
            assert!(others.iter().all(|peer| !peer.is_gone()));
            stage.tell("so it is");
            answer(&node.accept().expect("a peer"), "after");
        }
    }
}

/// A connecting node is also bound by its own limit, and both ends learn whose it is.
fn too_many_of_a_node(stage: &mut Stage) {
    let limit = SessionLimit::PerNode(1);
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let builder = stage.builder().max_node_sessions(1);
            let node = builder.build().expect("a node");
            let peer = node.connect(&address).expect("a session");
            check_refusal(&node, &address, Party::Dialer, limit);
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
            let end = Party::Dialer;
            assert_eq!(
                failure.error,
                HandshakeError::TooManySessions { end, limit }
            );
        }
    }
}

/// A limited number of messages with their own memory may be unreleased. Dropping one, on any
/// thread, lets the next come.
fn large_unreleased(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let channel = peer.channel("large").codec::<Raw>();
    let channel = channel.max_message_bytes(LONGEST as u64);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("an end");
            let mut message = vec![0; LONGEST];
            let sent = 2;
            for sequence in 1..=sent {
                payload::fill(sequence, &mut message);
                sender.send(&message).expect("twice the longest may be out");
            }
            payload::fill(sent + 1, &mut message);
            assert_full(&mut sender, &message, "max_unreleased_bytes");
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
                    // The pause is long enough for the receiver to wait for the drop.
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

/// A receiver that takes nothing can be sent as many messages as the channel's settings allow, over
/// any fabric. The next send's error names the setting. The smaller settings of both ends hold.
fn as_many_unreleased(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let cases = [
        // The default is twice the longest.
        (None, 2 << 20, 2),
        (None, (1 << 20) + (1 << 19), 2),
        (None, 600 << 10, 6),
        (Some(5 << 19), 600 << 10, 2),
        // One message may always be sent.
        (Some(1 << 20), 2 << 20, 1),
    ];
    for (number, (most, length, count)) in (0..).zip(cases) {
        let channel = peer.channel(&format!("channel {number}")).codec::<Raw>();
        let channel = channel.window_bytes(1 << 20).max_message_bytes(2 << 20);
        // Either end may be the one with the smaller setting.
        let channel = match most.filter(|_| stage.is_dialer() == (number % 2 == 0)) {
            Some(most) => channel.max_unreleased_bytes(most),
            None => channel,
        };
        let message = vec![number as u8; length];
        if stage.is_dialer() {
            let mut sender = channel.sender::<[u8]>().expect("an end");
            for _ in 0..count {
                sender.send(&message).expect("it may be out");
            }
            assert_full(&mut sender, &message, "max_unreleased_bytes at both ends");
            stage.tell("it is full");
            // Each released message makes room for another.
            for _ in 0..count {
                sender.send(&message).expect("sent");
            }
            sender.wait_acked(2 * count).expect("acknowledged");
        } else {
            let mut receiver = channel.receiver::<[u8]>().expect("an end");
            stage.hear("it is full", &node);
            for _ in 0..2 * count {
                let received = receiver.recv().expect("a message");
                assert!(received[..] == message[..]);
                received.ack();
            }
            assert!(receiver.next().expect("the end").is_none());
        }
    }
}

/// Checks that the channel has no room, and that the error names the setting that limits it.
fn assert_full(sender: &mut Sender<[u8], Raw>, message: &[u8], setting: &str) {
    let error = sender.send_timeout(message, 10 * MOMENT);
    let full = error.expect_err("no room");
    assert_eq!(
        full.kind(),
        SendErrorKind::Timeout,
        "{} bytes: {full}",
        message.len()
    );
    assert!(full.to_string().contains(setting), "{full}");
}

/// A message too large for the receiving node's memory is an error of the sending call; one that
/// fits arrives.
fn too_long_for_the_node(stage: &mut Stage) {
    let limit = 3 << 20;
    let (node, peer) = stage.meet_as(|builder| builder.memory_limit(limit + 1));
    if stage.is_dialer() {
        let mut sender = sender(&peer, "wal");
        let error = sender
            .send(&vec![7; limit as usize + 1])
            .expect_err("too long");
        assert_eq!(error.limit(), Some(limit), "{error}");
        let advice = "raise max_message_bytes there, or memory_limit";
        assert!(error.to_string().contains(advice), "{error}");
        let last = sender.send(&vec![7; limit as usize]).expect("sent");
        sender.wait_acked(last).expect("acknowledged");
    } else {
        let mut receiver = receiver(&peer, "wal");
        let message = receiver.recv().expect("a message");
        assert_eq!(message.len(), limit as usize);
        message.ack();
        assert!(receiver.next().expect("the end").is_none());
    }
    stage.rendezvous("both are done", &node);
}

/// Several channels together bring more than the node may hold: everything arrives in the end, each
/// channel in order, while its receiver takes the messages.
fn little_memory(stage: &mut Stage) {
    const CHANNELS: u64 = 4;
    const EACH: u64 = 6;
    const LENGTH: usize = 5 << 20;
    let (node, peer) = stage.meet_as(|builder| builder.memory_limit(8 << 20));
    let names: Vec<_> = (0..CHANNELS).map(|number| number.to_string()).collect();
    if stage.is_dialer() {
        let senders: Vec<_> = names.iter().map(|name| sender(&peer, name)).collect();
        thread::scope(|scope| {
            for mut sender in senders {
                scope.spawn(move || {
                    let mut message = vec![0; LENGTH];
                    for sequence in 1..=EACH {
                        payload::fill(sequence, &mut message);
                        sender.send(&message).expect("sent");
                    }
                    sender.wait_acked(EACH).expect("acknowledged");
                });
            }
        });
    } else {
        let mut receivers: Vec<_> = names.iter().map(|name| receiver(&peer, name)).collect();
        thread::scope(|scope| {
            for receiver in &mut receivers {
                scope.spawn(move || {
                    for sequence in 1..=EACH {
                        let message = receiver.recv().expect("a message");
                        assert_eq!((message.sequence(), message.len()), (sequence, LENGTH));
                        payload::check(sequence, &message);
                        message.ack();
                    }
                    assert!(receiver.next().expect("the end").is_none());
                });
            }
        });
    }
    stage.rendezvous("both are done", &node);
}

const LONGEST: usize = 9 << 20;
const MESSAGES: u64 = 8;

const IDENTITY: [u8; 16] = [1; 16];

fn client(stage: &Stage, identity: [u8; 16]) -> Node {
    let builder = stage.builder().identity(identity);
    builder.build().expect("a node")
}

/// Checks that one more session is refused, by the error's value and its text.
fn check_refusal(node: &Node, address: &str, whose: Party, which: SessionLimit) {
    let error = node.connect(address).expect_err("one too many");
    assert_eq!(error.kind(), ConnectErrorKind::Refused, "{error}");
    let Some(DialError::Handshake { source, .. }) = error.dial_error() else {
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
    // The receiver's last report is sent before its end.
    drop(receiver);
}
