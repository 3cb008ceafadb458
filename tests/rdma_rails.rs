//! Rails: the large messages of a session go over several device ports. The devices are made of
//! memory.
#![cfg(feature = "fake-device")]
#![forbid(unsafe_code)]

use std::{thread, time::Duration};

use ibex::{Fabric, Node, NodeBuilder, Peer, Policy, Raw, rdma::RdmaSettings};
use ibex_verbs::{
    QueuePairState,
    provider::fake::{FakeDevice, FakeProvider, Modification},
};

/// A watchdog's time, which suffices on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Length of a message, which is read from where it lies.
const LENGTH: usize = 4 << 20;
/// Messages in each direction.
const MESSAGES: usize = 6;

/// Two nodes, each with the same devices, and the session between them.
struct Pair {
    peers: [Peer; 2],
    _nodes: [Node; 2],
}

impl Pair {
    fn meet(fake: &FakeProvider, max_rails: u8) -> Self {
        let builder = || -> NodeBuilder {
            let settings = RdmaSettings::new()
                .max_sessions(4)
                .receive_buffers(64)
                .held_buffers(64)
                .max_rails(max_rails)
                .on_devices(fake.provider(), |settings| {
                    settings.reads_large = Some(true);
                });
            let builder = Node::builder().fabric(Fabric::Verbs, Policy::Require);
            builder.rdma(settings).connect_timeout(PATIENCE)
        };
        let there = builder().listen("127.0.0.1:0").build().expect("a node");
        let here = builder().build().expect("a node");
        let address = there.local_addr().expect("it listens");
        let dialed = here.connect(address).expect("a session");
        let accepted = there.accept_timeout(PATIENCE).expect("a session");
        assert_eq!(dialed.fabric(), Fabric::Verbs);
        Self {
            peers: [dialed, accepted],
            _nodes: [here, there],
        }
    }

    /// Sends large messages both ways at the same time, and checks them.
    fn exchange(&self) {
        let [dialed, accepted] = &self.peers;
        thread::scope(|scope| {
            scope.spawn(|| send_all(dialed, "there"));
            scope.spawn(|| send_all(accepted, "back"));
            scope.spawn(|| check_all(accepted, "there"));
            check_all(dialed, "back");
        });
    }
}

/// Returns a message with bytes that depend on its channel and its number.
fn message(channel: &str, number: usize) -> Vec<u8> {
    let first = channel.len() * 31 + number * 7;
    (0..LENGTH)
        .map(|at| (first + at / 251 + at) as u8)
        .collect()
}

fn send_all(peer: &Peer, channel: &str) {
    let mut sender = peer
        .channel(channel)
        .codec::<Raw>()
        .sender()
        .expect("an end");
    for number in 0..MESSAGES {
        let bytes = message(channel, number);
        sender.send_timeout(&bytes[..], PATIENCE).expect("sent");
    }
    sender.close().expect("delivered");
}

fn check_all(peer: &Peer, channel: &str) {
    let receiver = peer.channel(channel).codec::<Raw>().receiver::<[u8]>();
    let mut receiver = receiver.expect("an end");
    for number in 0..MESSAGES {
        let came = receiver.recv_timeout(PATIENCE).expect("a message");
        assert!(
            came[..] == message(channel, number)[..],
            "{channel} {number}"
        );
    }
}

fn two_cards() -> FakeProvider {
    let cards = [("left", [192, 0, 2, 1]), ("right", [198, 51, 100, 1])];
    let cards = cards.map(|(name, address)| FakeDevice::soft_roce(name, 0, address));
    FakeProvider::new(cards.to_vec())
}

/// Returns the number of queue pairs that were connected, at both ends together.
fn connected(fake: &FakeProvider) -> usize {
    let changes = fake.modifications();
    let connected = |change: &&Modification| change.attributes.state == QueuePairState::ReadyToSend;
    changes.iter().filter(connected).count()
}

#[test]
fn large_messages_arrive_whole_over_two_ports_both_ways() {
    let fake = two_cards();
    let pair = Pair::meet(&fake, 1);
    assert_eq!(connected(&fake), 4, "a rail at each end");
    pair.exchange();
    for peer in &pair.peers {
        assert!(peer.stats().rail_reads > 0);
    }
}

#[test]
fn a_session_without_rails_has_one_port() {
    let fake = two_cards();
    let pair = Pair::meet(&fake, 0);
    assert_eq!(connected(&fake), 2);
    pair.exchange();
}
