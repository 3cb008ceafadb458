//! One receiver for all peers: those that are there, those that come, and those that go.

use std::collections::BTreeMap;

use ibex::{FanIn, FanInEvent, Node, PeerId, Raw};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, Stage, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("fan_in", fan_in),
    Scenario::new("fan_in_rests", fan_in_rests),
];

const NODES: u64 = 4;

fn next(requests: &mut FanIn<[u8], Raw>) -> FanInEvent<[u8], Raw> {
    let event = requests.next_timeout(LONG).expect("something comes");
    event.expect("the node is open")
}

fn gather(node: &Node) -> FanIn<[u8], Raw> {
    let requests = node.fan_in("up").codec::<Raw>().window_messages(32);
    requests.receiver().expect("a fan-in")
}

/// Each peer's messages come in their order, between its joining and its end.
fn fan_in(stage: &mut Stage) {
    let last = stage.count(2_000);
    let length = |sequence| (sequence * 37 % 3000) as usize;
    match stage.side {
        Side::Dialer => {
            let address = stage.hear_any();
            // The second half comes when the first has sent its part.
            for half in 0..2 {
                let mut clients: Vec<_> = (0..NODES / 2)
                    .map(|_| {
                        let node = stage.builder().build().expect("a node");
                        let peer = node.connect(&address).expect("a session");
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
            let mut taken = BTreeMap::<PeerId, u64>::new();
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

/// One speaks at a time, while the others are idle and the receiver sleeps.
fn fan_in_rests(stage: &mut Stage) {
    let rounds = stage.count(200);
    match stage.side {
        Side::Dialer => {
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
