//! A receiver for all peers: those present, those that come, and those that leave.
#![forbid(unsafe_code)]

use std::{collections::BTreeMap, thread, time::Duration};

use ibex::{Fabric, FanIn, FanInEvent, Message, Node, PeerAt, Pod, Policy, RecvErrorKind, Sender};

const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];
const LONG: Duration = Duration::from_secs(300);

fn server() -> (Node, FanIn<u64, Pod>) {
    let node = Node::listen("127.0.0.1:0").expect("a node");
    let numbers = node.channel("numbers").codec::<Pod>().fan_in();
    (node, numbers.expect("a fan-in"))
}

/// Connects a client to `server`. Returns its node and its sender.
fn client(server: &Node, fabric: Fabric) -> (Node, Sender<u64, Pod>) {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    let builder = builder
        .connect_timeout(Duration::MAX)
        .open_timeout(Duration::MAX);
    let node = builder.build().expect("a node");
    let address = server.local_addr().expect("it listens");
    let peer = node.connect(address).expect("a session");
    let numbers = peer.channel("numbers").codec::<Pod>().window_messages(1024);
    let sender = numbers.sender().expect("a sender");
    (node, sender)
}

fn next(numbers: &mut FanIn<u64, Pod>) -> FanInEvent<Message<u64, Pod>> {
    let event = numbers.next_timeout(LONG).expect("something comes");
    event.expect("the node is open")
}

#[test]
fn peers_come_send_and_go() {
    for fabric in FABRICS {
        let (node, mut numbers) = server();
        // One client is there before the first check, and four come later.
        let first = client(&node, fabric);
        let address = node.local_addr().expect("it listens");
        let sending = move |(_node, mut sender): (Node, Sender<u64, Pod>)| {
            for number in 1..=MESSAGES {
                sender.send(&number).expect("sent");
            }
            sender.close().expect("delivered");
        };
        let mut clients = vec![thread::spawn(move || sending(first))];
        for _ in 1..CLIENTS {
            clients.push(thread::spawn(move || {
                let builder = Node::builder().fabric(fabric, Policy::Require);
                let builder = builder
                    .connect_timeout(Duration::MAX)
                    .open_timeout(Duration::MAX);
                let node = builder.build().expect("a node");
                let peer = node.connect(address).expect("a session");
                let numbers = peer.channel("numbers").codec::<Pod>();
                sending((node, numbers.sender().expect("a sender")));
            }));
        }
        let mut last = BTreeMap::<PeerAt, u64>::new();
        let mut ended = 0;
        while ended < CLIENTS {
            match next(&mut numbers) {
                FanInEvent::Joined(peer) => assert_eq!(last.insert(peer, 0), None),
                FanInEvent::Message(peer, message) => {
                    let last = last.get_mut(&peer).expect("it has joined");
                    *last += 1;
                    assert_eq!((*message, message.sequence()), (*last, *last));
                }
                FanInEvent::Ended(peer) => {
                    assert_eq!(last[&peer], MESSAGES);
                    ended += 1;
                }
                FanInEvent::Lost(peer, error) => panic!("{peer}: {error}"),
            }
        }
        assert_eq!(last.len(), CLIENTS);
        let nothing = numbers.try_next().expect_err("nobody is left");
        assert_eq!(nothing.kind(), RecvErrorKind::Empty);
        for client in clients {
            client.join().expect("it ends");
        }
    }
}

const CLIENTS: usize = 5;
const MESSAGES: u64 = 20_000;

#[test]
fn no_peer_is_starved_and_a_lost_one_ends_no_other() {
    for fabric in FABRICS {
        let (node, mut numbers) = server();
        let mut clients: Vec<_> = (0..3).map(|_| client(&node, fabric)).collect();
        for _ in 0..3 {
            let joined = next(&mut numbers);
            assert!(matches!(joined, FanInEvent::Joined(_)), "{joined:?}");
        }
        assert_eq!(numbers.peers().len(), 3);
        let mut taken = [0u64; 3];
        for _ in 0..ROUNDS / BATCH {
            // Each client sends as much as is taken of all, so that no channel is ever empty.
            for (number, (_, sender)) in clients.iter_mut().enumerate() {
                while sender.counts().sent < taken[number] + BATCH {
                    sender.send(&(number as u64)).expect("sent");
                }
                sender.flush().expect("delivered");
            }
            for _ in 0..BATCH {
                match next(&mut numbers) {
                    FanInEvent::Message(_, number) => taken[*number as usize] += 1,
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!(taken.iter().sum::<u64>(), ROUNDS);
        let (least, most) = (taken.iter().min(), taken.iter().max());
        assert!(
            2 * most.expect("three") <= 3 * least.expect("three"),
            "{taken:?} over {fabric}"
        );
        // One client goes without a goodbye.
        let (lost, sender) = clients.pop().expect("three");
        let _ = lost.close(Duration::ZERO);
        drop(sender);
        loop {
            match next(&mut numbers) {
                FanInEvent::Message(..) => {}
                FanInEvent::Ended(_) => break,
                FanInEvent::Lost(_, error) if error.kind() == RecvErrorKind::Disconnected => break,
                other => panic!("{other:?}"),
            }
        }
        clients[0].1.send(&8).expect("sent");
        loop {
            match next(&mut numbers) {
                FanInEvent::Message(_, message) if *message == 8 => break,
                FanInEvent::Message(..) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(numbers.peers().len(), 2);
    }
}

/// Rounds in which each peer gets a turn, while all have something to send.
const ROUNDS: u64 = 1_000_000;
/// Messages at a time; the window of each peer holds more.
const BATCH: u64 = 250;

#[test]
fn closing_the_node_ends_it() {
    let (node, mut numbers) = server();
    let (_client, mut sender) = client(&node, Fabric::Tcp);
    // Asking for events opens the other end.
    let sending = thread::spawn(move || sender.send(&1).map(|_| sender));
    assert!(matches!(next(&mut numbers), FanInEvent::Joined(_)));
    assert!(matches!(next(&mut numbers), FanInEvent::Message(..)));
    let _sender = sending.join().expect("it ends").expect("sent");
    let closing = thread::spawn(move || node.close(Duration::from_millis(20)));
    let lost = numbers.next().expect("the peer is lost first");
    assert!(matches!(lost, FanInEvent::Lost(..)), "{lost:?}");
    assert!(numbers.next().is_none());
    assert!(numbers.next().is_none());
    let _ = closing.join().expect("it ends");
}

#[test]
fn a_name_is_received_from_in_one_way_at_a_time() {
    let (node, mut numbers) = server();
    let (_client, _sender) = client(&node, Fabric::Shm);
    assert!(matches!(next(&mut numbers), FanInEvent::Joined(_)));
    let peer = node.accept().expect("a session");
    let again = peer.channel("numbers").codec::<Pod>().receiver::<u64>();
    again.expect_err("the fan-in has it");
    // A fan-in does not get the name of an open receiver either.
    let taken = peer.channel("letters").codec::<Pod>().receiver::<u64>();
    let _taken = taken.expect("a receiver");
    let letters = node.channel("letters").codec::<Pod>().fan_in::<u64>();
    let event = letters.expect("a fan-in").next_timeout(LONG);
    let Ok(Some(FanInEvent::Lost(_, error))) = event else {
        panic!("{event:?}")
    };
    assert_eq!(error.kind(), RecvErrorKind::CannotOpen);
}

#[test]
fn another_type_is_told_of_that_peer() {
    let (node, mut numbers) = server();
    let other = Node::client().expect("a node");
    let address = node.local_addr().expect("it listens");
    let peer = other.connect(address).expect("a session");
    let letters = peer.channel("numbers").codec::<Pod>().sender::<u32>();
    let _letters = letters.expect("a sender");
    let event = next(&mut numbers);
    let FanInEvent::Lost(_, error) = event else {
        panic!("{event:?}")
    };
    assert_eq!(error.kind(), RecvErrorKind::Mismatch);
}

#[test]
fn a_sender_that_was_dropped_is_opened_again_in_the_same_session() {
    for fabric in FABRICS {
        let (node, mut numbers) = server();
        let (client, first) = client(&node, fabric);
        drop(first);
        let peer = client
            .connect(node.local_addr().expect("it listens"))
            .expect("a session");
        let opens = || peer.channel("numbers").codec::<Pod>().sender::<u64>();
        let (_other, mut other) = self::client(&node, fabric);
        let joined = |event| match event {
            FanInEvent::Joined(peer) => peer,
            event => panic!("{event:?}"),
        };
        let ended = |event, who| match event {
            FanInEvent::Ended(peer) => assert_eq!(peer, who),
            event => panic!("{event:?}"),
        };
        // The first two come in any order.
        let mut events = 0;
        while events < 3 {
            match next(&mut numbers) {
                FanInEvent::Joined(_) | FanInEvent::Ended(_) => events += 1,
                event => panic!("{event:?}"),
            }
        }
        assert_eq!(numbers.peers().len(), 1);
        for round in 0..20_u64 {
            let mut sender = opens().expect("the name is free");
            let messages = round % 3;
            for number in 0..messages {
                sender.send(&number).expect("sent");
            }
            sender.close().expect("delivered");
            let who = joined(next(&mut numbers));
            for number in 0..messages {
                match next(&mut numbers) {
                    FanInEvent::Message(peer, message) => {
                        assert_eq!((peer, *message), (who, number));
                        assert_eq!(message.sequence(), number + 1, "they count anew");
                    }
                    event => panic!("{event:?}"),
                }
            }
            ended(next(&mut numbers), who);
        }
        // The other members are unaffected.
        other.send(&7).expect("sent");
        let event = next(&mut numbers);
        assert!(matches!(event, FanInEvent::Message(_, _)), "{event:?}");
    }
}

#[test]
fn a_peer_that_came_with_another_type_joins_with_the_right_one() {
    for fabric in FABRICS {
        let (node, mut numbers) = server();
        let builder = Node::builder().fabric(fabric, Policy::Require);
        let builder = builder
            .connect_timeout(Duration::MAX)
            .open_timeout(Duration::MAX);
        let other = builder.build().expect("a node");
        let address = node.local_addr().expect("it listens");
        let peer = other.connect(address).expect("a session");
        for _ in 0..3 {
            let wrong = peer.channel("numbers").codec::<Pod>().sender::<u32>();
            let _wrong = wrong.expect("a sender");
            let event = next(&mut numbers);
            let FanInEvent::Lost(_, error) = event else {
                panic!("{event:?}")
            };
            assert_eq!(error.kind(), RecvErrorKind::Mismatch);
        }
        let right = peer.channel("numbers").codec::<Pod>().sender::<u64>();
        let mut right = right.expect("the name is free");
        right.send(&1).expect("sent");
        let event = next(&mut numbers);
        assert!(matches!(event, FanInEvent::Joined(_)), "{event:?}");
        let event = next(&mut numbers);
        assert!(matches!(event, FanInEvent::Message(_, _)), "{event:?}");
    }
}
