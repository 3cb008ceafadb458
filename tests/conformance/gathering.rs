//! A receiver for all peers: those present, those that come, and those that leave.

use std::{collections::BTreeMap, fs, task::Poll};

use futures_util::StreamExt;
use ibex::{
    Counts, FanIn, FanInEvent, Message, Node, Peer, PeerAt, Raw, RecvErrorKind, Select, Selectable,
};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage, receiver, sender},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("fan_in", fan_in),
    Scenario::new("fan_in_rests", fan_in_rests),
    Scenario::new("fan_in_among_others", fan_in_among_others),
    Scenario::new("fan_in_of_the_silent", fan_in_of_the_silent),
    Scenario::new("fan_in_tasks", fan_in_tasks),
    Scenario::new("fan_in_tasks_dropped", fan_in_tasks_dropped),
    Scenario::new("fan_in_counts", fan_in_counts),
    Scenario::new("fan_in_answers", fan_in_answers),
    Scenario::new("fan_in_of_passers_by", fan_in_of_passers_by),
];

const NODES: u64 = 4;

fn next(requests: &mut FanIn<[u8], Raw>) -> FanInEvent<Message<[u8], Raw>> {
    let event = requests.next_timeout(LONG).expect("something comes");
    event.expect("the node is open")
}

/// Creates a node that only connects, and its session with the other side.
fn client(stage: &Stage, address: &str) -> (Node, Peer) {
    let node = stage.builder().build().expect("a node");
    let peer = node.connect(address).expect("a session");
    (node, peer)
}

fn gather(node: &Node) -> FanIn<[u8], Raw> {
    let requests = node.channel("up").codec::<Raw>().window_messages(32);
    requests.fan_in().expect("a fan-in")
}

/// Each peer's messages arrive in their order, between its joining and its end.
fn fan_in(stage: &mut Stage) {
    let last = stage.count(2_000);
    let length = |sequence| (sequence * 37 % 3000) as usize;
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            // The second half of the nodes comes when the first has sent its part.
            for half in 0..2 {
                let mut clients: Vec<_> = (0..NODES / 2)
                    .map(|_| {
                        let (node, peer) = client(stage, &address);
                        stage.check_peer(&peer);
                        (sender(&peer, "up"), node)
                    })
                    .collect();
                let last = last * (half + 1);
                for sequence in 1..=last {
                    let bytes = payload::numbered(sequence, length(sequence));
                    for (sender, _) in &mut clients {
                        assert_eq!(sender.send(&bytes).expect("sent"), sequence);
                    }
                }
                for (sender, _node) in clients {
                    sender.close().expect("delivered");
                }
            }
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let mut taken = BTreeMap::<PeerAt, u64>::new();
            let mut ended = Vec::new();
            while ended.len() < NODES as usize {
                match next(&mut requests) {
                    FanInEvent::Joined(peer) => assert_eq!(taken.insert(peer, 0), None),
                    FanInEvent::Message(peer, message) => {
                        let taken = taken.get_mut(&peer).expect("it has joined");
                        *taken += 1;
                        assert_eq!(message.sequence(), *taken);
                        assert_eq!(message.len(), length(*taken));
                        payload::check(*taken, &message);
                    }
                    FanInEvent::Ended(peer) => ended.push(taken[&peer]),
                    FanInEvent::Lost(peer, error) => panic!("{peer}: {error}"),
                }
            }
            ended.sort_unstable();
            assert_eq!(ended, [last, last, 2 * last, 2 * last]);
            assert!(requests.peers().is_empty());
        }
    }
}

/// Sessions ask one after the other, while the others are idle, and wait for the answer.
fn ask_in_turns(stage: &mut Stage, rounds: u64) {
    let node = stage.builder().build().expect("a node");
    let address = stage.hear_any();
    let peers: Vec<_> = (0..NODES)
        .map(|_| node.connect(&address).expect("a session"))
        .collect();
    let mut senders: Vec<_> = peers.iter().map(|peer| sender(peer, "up")).collect();
    let channel = peers[0].channel("answers").codec::<Raw>();
    let mut answers = channel.receiver::<[u8]>().expect("a receiver");
    for round in 0..rounds {
        let number = (round * 7 % NODES) as usize;
        senders[number].send(&round.to_le_bytes()).expect("sent");
        assert_eq!(*answers.recv().expect("an answer"), round.to_le_bytes());
    }
}

/// A single peer sends at a time, while the others are idle and the receiver sleeps.
fn fan_in_rests(stage: &mut Stage) {
    let rounds = stage.count(200);
    match stage.side {
        Side::Dialer => ask_in_turns(stage, rounds),
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let first = node.accept().expect("a peer");
            let mut answers = sender(&first, "answers");
            let (mut round, mut ended) = (0u64, 0);
            while ended < NODES {
                match next(&mut requests) {
                    FanInEvent::Joined(_) => {}
                    FanInEvent::Message(_, message) => {
                        assert_eq!(*message, round.to_le_bytes());
                        round += 1;
                        answers.send(&message).expect("sent");
                    }
                    FanInEvent::Ended(_) => ended += 1,
                    FanInEvent::Lost(peer, error) => panic!("{peer}: {error}"),
                }
            }
            assert_eq!(round, rounds);
        }
    }
}

/// A single call waits for the requests of all peers and the commands of one. One message comes at
/// a time, while the receiver sleeps.
fn fan_in_among_others(stage: &mut Stage) {
    let rounds = stage.count(200);
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let peers: Vec<_> = (0..NODES)
                .map(|_| node.connect(&address).expect("a session"))
                .collect();
            let mut senders: Vec<_> = peers.iter().map(|peer| sender(peer, "up")).collect();
            senders.push(sender(&peers[0], "commands"));
            let mut answers = receiver(&peers[0], "answers");
            for round in 0..rounds {
                let number = (round * 7 % (NODES + 1)) as usize;
                senders[number].send(&round.to_le_bytes()).expect("sent");
                assert_eq!(*answers.recv().expect("an answer"), round.to_le_bytes());
            }
            stage.hear("nothing more comes", &node);
            stage.rendezvous("all are done", &node);
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let first = node.accept().expect("a peer");
            let mut commands = receiver(&first, "commands");
            let mut answers = sender(&first, "answers");
            let mut select = Select::new();
            let (mut round, mut joined) = (0u64, 0);
            // Few rounds leave a sender out, whose end may come late.
            while round < rounds || joined < NODES {
                let message = match select.ready(&mut [&mut requests, &mut commands]) {
                    0 => match requests.try_next().expect("it is there") {
                        Some(FanInEvent::Message(_, message)) => message,
                        Some(FanInEvent::Joined(_)) => {
                            joined += 1;
                            continue;
                        }
                        other => panic!("{other:?}"),
                    },
                    _ => commands.try_recv().expect("it is there"),
                };
                assert_eq!(*message, round.to_le_bytes());
                round += 1;
                answers.send(&message).expect("sent");
            }
            assert_eq!(joined, NODES);
            let both = &mut [&mut requests as _, &mut commands as _];
            assert_eq!(select.ready_timeout(both, MOMENT), None);
            assert_eq!(select.try_ready(both), None);
            stage.tell("nothing more comes");
            stage.rendezvous("all are done", &node);
            // The remaining events are five ends, and the close of the node.
            let (mut ended, mut commands_end) = (0, false);
            while ended < NODES || !commands_end {
                let mut ends: Vec<&mut dyn Selectable> = vec![&mut requests];
                if !commands_end {
                    ends.push(&mut commands);
                }
                match select.ready(&mut ends) {
                    0 => match requests.try_next().expect("it is there") {
                        Some(FanInEvent::Ended(_)) => ended += 1,
                        other => panic!("{other:?}"),
                    },
                    _ => match commands.try_recv() {
                        Err(error) if error.kind() == RecvErrorKind::Ended => commands_end = true,
                        other => panic!("{other:?}"),
                    },
                }
            }
            let closing = node.close(LONG);
            assert!(closing.undelivered.is_empty(), "{closing}");
            assert_eq!(select.ready(&mut [&mut requests]), 0);
            assert!(requests.try_next().expect("the end").is_none());
        }
    }
}

/// Peers that have opened their sender have joined, even if they never send.
fn fan_in_of_the_silent(stage: &mut Stage) {
    const SILENT: usize = 40;
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let senders: Vec<_> = (0..SILENT)
                .map(|_| {
                    let peer = node.connect(&address).expect("a session");
                    let mut sender = sender(&peer, "up");
                    sender.opened(LONG).expect("the fan-in opens");
                    sender
                })
                .collect();
            stage.rendezvous("all have joined", &node);
            drop(senders);
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            for _ in 0..SILENT {
                match next(&mut requests) {
                    FanInEvent::Joined(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            stage.rendezvous("all have joined", &node);
        }
    }
}

/// Peers that come, send and leave keep no descriptor, even if the node does not accept them.
fn fan_in_of_passers_by(stage: &mut Stage) {
    let passers_by = stage.count(400);
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            for number in 1..=passers_by {
                let node = stage.builder().build().expect("a node");
                let peer = node.connect(&address).expect("a session");
                let mut sender = sender(&peer, "up");
                sender.send(&number.to_le_bytes()).expect("sent");
                sender.close().expect("delivered");
            }
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let descriptors = || fs::read_dir("/proc/self/fd").expect("procfs").count();
            let (mut ended, mut warm) = (0, 0);
            while ended < passers_by {
                match next(&mut requests) {
                    FanInEvent::Joined(_) => {}
                    FanInEvent::Message(_, message) => message.ack(),
                    FanInEvent::Ended(_) => ended += 1,
                    FanInEvent::Lost(peer, error) => panic!("{peer}: {error}"),
                }
                if ended == passers_by / 2 {
                    warm = descriptors();
                }
            }
            // Peers that are about to leave still have some descriptors.
            assert!(
                descriptors() < warm + 16,
                "{warm}, and then {}",
                descriptors()
            );
        }
    }
}

/// A task receives messages, asleep in between, until the node is closed.
fn fan_in_tasks(stage: &mut Stage) {
    let rounds = stage.count(200);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => ask_in_turns(stage, rounds),
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let first = node.accept().expect("a peer");
            let mut answers = sender(&first, "answers");
            task::run(&node, driver, async {
                let (mut round, mut ended) = (0u64, 0);
                let mut events = requests.stream();
                while ended < NODES {
                    match events.next().await.expect("the node is open") {
                        FanInEvent::Joined(_) => {}
                        FanInEvent::Message(_, message) => {
                            assert_eq!(*message, round.to_le_bytes());
                            round += 1;
                            answers.send_async(&message).await.expect("sent");
                        }
                        FanInEvent::Ended(_) => ended += 1,
                        FanInEvent::Lost(peer, error) => panic!("{peer}: {error}"),
                    }
                }
                assert_eq!(round, rounds);
            });
            // A waiting future learns that the node is closed, and so does a later one.
            let mut waiting = requests.next_async();
            assert!(task::poll_once(&mut waiting).is_pending());
            let _ = node.close(LONG);
            assert!(task::run(&node, driver, waiting).is_none());
            assert!(task::run(&node, driver, requests.stream().next()).is_none());
        }
    }
}

/// Futures are repeatedly dropped after one poll, with calls of threads in between: each message
/// comes once, in its peer's order.
fn fan_in_tasks_dropped(stage: &mut Stage) {
    let last = stage.count(1_000);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let peers: Vec<_> = (0..NODES)
                .map(|_| node.connect(&address).expect("a session"))
                .collect();
            let mut senders: Vec<_> = peers.iter().map(|peer| sender(peer, "up")).collect();
            for sequence in 1..=last {
                for sender in &mut senders {
                    let bytes = payload::numbered(sequence, 64);
                    assert_eq!(sender.send(&bytes).expect("sent"), sequence);
                }
            }
            for sender in senders {
                sender.close().expect("delivered");
            }
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            // All sessions belong to one peer, so the test counts the occurrences of each number.
            let mut taken = BTreeMap::<u64, u64>::new();
            let mut ended = 0;
            for call in 0u64.. {
                let polled = task::poll_once(&mut requests.next_async());
                let event = match polled {
                    Poll::Ready(event) => event,
                    Poll::Pending if call % 3 == 0 => Some(next(&mut requests)),
                    Poll::Pending => task::run(&node, driver, requests.next_async()),
                };
                match event.expect("the node is open") {
                    FanInEvent::Joined(_) => {}
                    FanInEvent::Message(_, message) => {
                        payload::check(message.sequence(), &message);
                        *taken.entry(message.sequence()).or_default() += 1;
                    }
                    FanInEvent::Ended(_) => ended += 1,
                    FanInEvent::Lost(peer, error) => panic!("{peer}: {error}"),
                }
                if ended == NODES {
                    break;
                }
            }
            let expected = (1..=last).map(|sequence| (sequence, NODES));
            assert!(taken.into_iter().eq(expected));
        }
    }
}

/// Each peer is answered on a channel of its own, which opens when the peer joins.
fn fan_in_answers(stage: &mut Stage) {
    const MESSAGES: u64 = 12;
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let mut clients: Vec<_> = (0..2)
                .map(|_| {
                    let (node, peer) = client(stage, &address);
                    (sender(&peer, "up"), receiver(&peer, "down"), node)
                })
                .collect();
            for sequence in 1..=MESSAGES {
                for (number, (requests, answers, _)) in (1..).zip(&mut clients) {
                    let length = number * 100;
                    requests
                        .send(&payload::numbered(sequence, length))
                        .expect("sent");
                    let answer = answers.recv().expect("an answer");
                    assert_eq!(*answer, (length as u64).to_le_bytes());
                }
            }
            for (requests, _answers, _node) in clients {
                requests.close().expect("delivered");
            }
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let mut answers = BTreeMap::new();
            let mut ended = 0;
            while ended < 2 {
                match next(&mut requests) {
                    FanInEvent::Joined(who) => {
                        let peer = requests.peer(who).expect("it has joined");
                        assert_eq!(peer.at(), who);
                        assert_eq!(
                            who.to_string(),
                            format!("{} at {}", peer.id(), peer.address())
                        );
                        answers.insert(who, sender(&peer, "down"));
                    }
                    FanInEvent::Message(who, message) => {
                        let length = (message.len() as u64).to_le_bytes();
                        let answers = answers.get_mut(&who).expect("it has joined");
                        answers.send(&length).expect("sent");
                    }
                    FanInEvent::Ended(who) => {
                        ended += 1;
                        assert!(requests.peer(who).is_none());
                    }
                    FanInEvent::Lost(who, error) => panic!("{who}: {error}"),
                }
            }
        }
    }
}

/// Each peer has its own counts of received, held and acknowledged messages.
fn fan_in_counts(stage: &mut Stage) {
    const MESSAGES: u64 = 12;
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            let mut clients: Vec<_> = (0..2)
                .map(|_| {
                    let (node, peer) = client(stage, &address);
                    (sender(&peer, "up"), node)
                })
                .collect();
            for (number, (sender, _)) in (1u64..).zip(&mut clients) {
                for sequence in 1..=number * MESSAGES {
                    sender.send(&payload::numbered(sequence, 64)).expect("sent");
                }
                // This node's engine is not turned while the test waits for the other.
                sender.flush().expect("delivered");
            }
            for (number, (sender, _)) in (1..).zip(&mut clients) {
                sender
                    .wait_acked(number * MESSAGES / 2)
                    .expect("half of it");
                assert_eq!(sender.acked(), number * MESSAGES / 2);
            }
            stage.tell("told");
            for (number, (sender, node)) in (1..).zip(clients) {
                stage.hear("let go", &node);
                assert_eq!(sender.counts().sent, number * MESSAGES);
                sender.close().expect("delivered");
            }
        }
        Side::Listener => {
            let node = stage.listen();
            let mut requests = gather(&node);
            let mut held = BTreeMap::<PeerAt, Vec<Message<[u8], Raw>>>::new();
            for _ in 0..2 + MESSAGES + 2 * MESSAGES {
                match next(&mut requests) {
                    FanInEvent::Joined(peer) => _ = held.insert(peer, Vec::new()),
                    FanInEvent::Message(peer, message) => {
                        held.get_mut(&peer).expect("it has joined").push(message);
                    }
                    other => panic!("{other:?}"),
                }
            }
            for messages in held.values_mut() {
                let half = messages.len() / 2;
                messages.drain(..half).for_each(Message::ack);
            }
            let peers = requests.peers();
            assert_eq!(peers.len(), 2);
            for (peer, counts) in &peers {
                let rest = held[peer].len() as u64;
                let expected = Counts {
                    sent: 2 * rest,
                    received: 2 * rest,
                    released: rest,
                    acknowledged: rest,
                };
                assert_eq!(*counts, expected);
            }
            let mut sent: Vec<_> = peers.iter().map(|(_, counts)| counts.sent).collect();
            sent.sort_unstable();
            assert_eq!(sent, [MESSAGES, 2 * MESSAGES]);
            stage.hear("told", &node);
            // Dropped messages are released, and no more is acknowledged than before.
            held.clear();
            for (_, counts) in requests.peers() {
                assert_eq!(counts.released, counts.sent);
                assert_eq!(counts.acknowledged, counts.sent / 2);
            }
            for _ in 0..2 {
                stage.tell("let go");
                match next(&mut requests) {
                    FanInEvent::Ended(_) => {}
                    other => panic!("{other:?}"),
                }
            }
            assert!(requests.peers().is_empty());
        }
    }
}
