//! Nodes over this machine's RDMA device, if there is one; otherwise their errors.
//!
//! `IBEX_TEST_DEVICE` names the device, and makes its absence a failure. Both ends use it, in this
//! process.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]

use std::{thread, time::Duration};

use ibex::{Driver, Fabric, Node, NodeBuilder, Peer, Pod, Policy, Raw, rdma::RdmaSettings};
use ibex_verbs::discovery::DeviceKind;

/// A watchdog's time, which suffices in a guest under emulation, although nothing here takes long.
const PATIENCE: Duration = Duration::from_secs(120);

/// Returns a builder of a node on the device that the tests should use.
fn builder() -> NodeBuilder {
    let mut settings = RdmaSettings::new();
    if let Ok(device) = std::env::var("IBEX_TEST_DEVICE") {
        settings = settings.device(device);
    }
    Node::builder()
        .fabric(Fabric::Shm, Policy::Forbid)
        .rdma(settings)
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
}

/// Creates a listening node that requires verbs. Returns `None` if the machine has no device and
/// the error says so properly.
fn listening(driver: Driver) -> Option<Node> {
    listening_as(builder().driver(driver))
}

/// Like [`listening`], with other settings.
fn listening_as(builder: NodeBuilder) -> Option<Node> {
    let required = builder.fabric(Fabric::Verbs, Policy::Require);
    match required.listen("127.0.0.1:0").build() {
        Ok(node) => Some(node),
        Err(error) => {
            assert!(std::env::var_os("IBEX_TEST_DEVICE").is_none(), "{error}");
            let source = error.verbs_error().expect("it is about RDMA");
            assert!(source.is_absence(), "{error}");
            None
        }
    }
}

fn connect(client: &Node, server: &Node) -> Peer {
    let address = server.local_addr().expect("it listens");
    client.connect(address).expect("a session")
}

#[test]
fn messages_of_all_sizes_go_over_the_device_under_both_drivers() {
    for driver in [Driver::Threads, Driver::Caller] {
        let Some(server) = listening(driver) else {
            return;
        };
        let address = server.local_addr().expect("it listens");
        // A node without a thread makes progress in its own calls.
        let receiver = thread::spawn(move || receive_all(&server));
        // The other end leaves the choice to the end that requires something.
        let client = builder().driver(driver).build().expect("a node");
        let peer = client.connect(address).expect("a session");
        assert_over_verbs(&peer);
        let mut sender = peer.channel("x").codec::<Raw>().sender().expect("an end");
        let lengths = [1, 64, 100, 4000, 5000, 70_000, 3 << 20, 2];
        for length in lengths {
            sender.send(&vec![length as u8; length][..]).expect("sent");
        }
        sender.close().expect("delivered");
        assert_eq!(receiver.join().expect("no panic"), lengths);
        let frames = peer.stats().frames_sent;
        assert!(
            frames > lengths.len() as u64,
            "{frames} over the queue pair"
        );
    }
}

/// Accepts a peer, and receives everything that it sends. Returns the lengths.
fn receive_all(server: &Node) -> Vec<usize> {
    let peer = server.accept_timeout(PATIENCE).expect("a peer");
    assert_over_verbs(&peer);
    let mut receiver = peer
        .channel("x")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .expect("an end");
    let mut lengths = Vec::new();
    while let Some(message) = receiver.next().expect("an orderly end") {
        assert!(message.iter().all(|byte| *byte == message.len() as u8));
        lengths.push(message.len());
    }
    lengths
}

fn assert_over_verbs(peer: &Peer) {
    assert_eq!(peer.fabric(), Fabric::Verbs);
    let reason = peer.fabric_reason();
    assert_eq!(reason, "verbs: required by the listening node");
}

/// Pairs of threads, each with a session of its own, over nodes with two engines each.
#[test]
fn eight_pairs_over_two_engines_get_each_message_once() {
    let Some(server) = listening_as(builder().io_threads(ENGINES)) else {
        return;
    };
    let client = builder().io_threads(ENGINES).build().expect("a node");
    let sessions: Vec<_> = (0..PAIRS)
        .map(|_| {
            let dialed = connect(&client, &server);
            (dialed, server.accept_timeout(PATIENCE).expect("a peer"))
        })
        .collect();
    let dialed = sessions.iter().map(|(dialed, _)| dialed.engine());
    let accepted = sessions.iter().map(|(_, accepted)| accepted.engine());
    for mut engines in [Vec::from_iter(dialed), Vec::from_iter(accepted)] {
        engines.sort_unstable();
        let spread: Vec<_> = (0..PAIRS).map(|at| at * ENGINES / PAIRS).collect();
        assert_eq!(engines, spread);
    }
    thread::scope(|scope| {
        for (dialed, accepted) in &sessions {
            assert_over_verbs(dialed);
            scope.spawn(|| answer_each_number_once(accepted));
            scope.spawn(|| ask_each_number_once(dialed));
        }
    });
    for engine in [&client, &server]
        .iter()
        .flat_map(|node| node.stats().engines)
    {
        assert_eq!(engine.sessions, PAIRS / ENGINES);
        let payload = (PAIRS / ENGINES) as u64 * NUMBERS * size_of::<u64>() as u64;
        assert!(engine.bytes_sent > payload && engine.bytes_received > payload);
    }
    for node in [client, server] {
        assert!(node.close(PATIENCE).undelivered.is_empty());
    }
}

const ENGINES: usize = 2;
const PAIRS: usize = 8;
/// Messages each way over each session.
const NUMBERS: u64 = 200;

fn ask_each_number_once(peer: &Peer) {
    let mut sender = peer
        .channel("there")
        .codec::<Pod>()
        .sender()
        .expect("an end");
    let back = peer.channel("back").codec::<Pod>();
    let mut receiver = back.receiver::<u64>().expect("an end");
    for number in 0..NUMBERS {
        sender.send(&number).expect("sent");
        assert_eq!(*receiver.recv_timeout(PATIENCE).expect("an answer"), number);
    }
    sender.close().expect("delivered");
    assert!(receiver.next().expect("an orderly end").is_none());
}

fn answer_each_number_once(peer: &Peer) {
    let there = peer.channel("there").codec::<Pod>();
    let mut receiver = there.receiver::<u64>().expect("an end");
    let mut sender = peer
        .channel("back")
        .codec::<Pod>()
        .sender()
        .expect("an end");
    for number in 0..NUMBERS {
        assert_eq!(*receiver.recv_timeout(PATIENCE).expect("it comes"), number);
        sender.send(&number).expect("sent");
    }
    assert!(receiver.next().expect("an orderly end").is_none());
    sender.close().expect("delivered");
}

#[test]
fn a_software_device_is_left_alone_and_the_reason_says_so() {
    let software = |inventory: &ibex::rdma::Inventory| {
        let mut devices = inventory.devices.iter();
        devices.all(|device| device.kind == DeviceKind::Software)
    };
    if !ibex::rdma::discover().as_ref().is_ok_and(software) {
        return;
    }
    let server = builder().listen("127.0.0.1:0").build().expect("a node");
    let client = builder().build().expect("a node");
    let peer = connect(&client, &server);
    assert_eq!(peer.fabric(), Fabric::Tcp);
    let reason = peer.fabric_reason();
    assert!(reason.ends_with("is software, slower than tcp"), "{reason}");
    // A preferred software device serves; the wish of one of its two ends suffices.
    let asking = builder().fabric(Fabric::Verbs, Policy::Prefer);
    let asking = asking.build().expect("a node");
    let peer = connect(&asking, &server);
    assert_eq!(peer.fabric(), Fabric::Verbs);
    assert_eq!(
        peer.fabric_reason(),
        "verbs: preferred by the connecting node"
    );
}

#[test]
fn a_peer_that_forbids_verbs_is_named() {
    let Some(server) = listening(Driver::Threads) else {
        return;
    };
    let forbidding = builder().fabric(Fabric::Verbs, Policy::Forbid);
    let address = server.local_addr().expect("it listens");
    let error = forbidding.build().expect("a node").connect(address);
    let said = error.expect_err("it is required there").to_string();
    assert!(
        said.ends_with(
            "the listening node insists on verbs, which cannot be had: the connecting node's \
             policy forbids verbs; use `Prefer` in its program, or name a second fabric in its IBEX_FABRICS"
        ),
        "{said}"
    );
}
