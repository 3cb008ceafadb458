//! Devices that are removed under nodes in use, and come back.

use std::{
    collections::VecDeque,
    mem,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use ibex::{
    Event, Events, Fabric, Message, Node, Peer, Policy, Raw, Receiver, Sender, rdma::RdmaSettings,
};
use ibex_harness::{
    process::{Process, wait_for_any},
    proxy::Proxy,
};

use crate::{
    PATIENCE, builder,
    guest::{Changed, guest, shell},
    met::Met,
};

/// Runs a command that removes a device, and waits until every process has closed it. Returns the
/// time that this took.
fn remove(command: &str) -> Duration {
    let begun = Instant::now();
    let mut shell = Command::new("sh");
    let mut shell = Process::start(command, shell.args(["-e", "-c", command])).expect("a shell");
    wait_for_any([&shell], begun + PATIENCE).expect("a descriptor");
    if shell.ended().expect("its status").is_none() {
        // A removal that waits forever cannot be ended, nor can its waiting parent.
        mem::forget(shell);
        panic!("`{command}` waits for us");
    }
    shell.finish().expect("it succeeds");
    begun.elapsed()
}

type Held = VecDeque<Message<[u8], Raw>>;

/// Receives messages until the channel is over, and keeps the last ones. Returns the number
/// received.
fn take_all(mut receiver: Receiver<[u8], Raw>) -> (Held, u64) {
    let (mut held, mut count) = (Held::new(), 0);
    while let Some(message) = receiver.next().expect("nothing fails") {
        count += 1;
        // One message came before, when the nodes met.
        assert_eq!(message.sequence(), count + 1);
        held.push_back(message);
        if held.len() > 100 {
            held.pop_front();
        }
    }
    (held, count)
}

/// Waits until the stream has sent some thousand messages more.
fn wait_for_more(sent: &AtomicU64) {
    let enough = sent.load(Ordering::Relaxed) + 2000;
    while sent.load(Ordering::Relaxed) < enough {
        thread::sleep(Duration::from_millis(1));
    }
}

/// Removes the device under two nodes in the middle of a stream, with every kind of handle kept. It
/// is closed at once, the session continues over tcp, so does the next one, and one uses the device
/// again when it is back.
fn removed_in_use(removes: &'static str, brings_back: &'static str) {
    let idle = builder(Policy::Require).listen("127.0.0.1:0").build();
    let idle = idle.expect("a node without sessions");
    let server = builder(Policy::Prefer).listen("127.0.0.1:0").build();
    let client = builder(Policy::Prefer).build();
    let met = Met::of([server.expect("a node"), client.expect("a node")]);
    let (mut sender, receiver) = (met.sender, met.receiver);
    assert!(met.peers.iter().all(|peer| peer.fabric() == Fabric::Verbs));

    let taken = thread::spawn(|| take_all(receiver));
    let is_enough = Arc::new(AtomicBool::new(false));
    let has_enough = is_enough.clone();
    let flowing = Arc::new(AtomicU64::new(0));
    let count = flowing.clone();
    let sends = thread::spawn(move || {
        let mut sent = 0_u64;
        while !has_enough.load(Ordering::Relaxed) {
            sender.send(&[7; 64]).expect("sent");
            sent += 1;
            count.store(sent, Ordering::Relaxed);
        }
        sender.close().expect("delivered");
        sent
    });
    wait_for_more(&flowing);
    let took = remove(removes);
    // Every kept handle still exists. The time limit is tested elsewhere, over a device made of
    // memory and with a clock that stops when the machine does.
    println!("`{removes}` took {took:?}");
    let start = Instant::now();
    while met.peers.iter().any(|peer| peer.fabric() != Fabric::Tcp) {
        assert!(start.elapsed() < PATIENCE, "the session goes on as before");
        thread::sleep(Duration::from_millis(10));
    }
    wait_for_more(&flowing);
    is_enough.store(true, Ordering::Relaxed);
    let sent = sends.join().expect("all are sent");
    let (held, received) = taken.join().expect("all are there");
    assert_eq!(sent, received);
    assert!(held.iter().all(|message| message[..] == [7; 64]));

    let address = met.nodes[0].local_addr().expect("it listens");
    let without = met.nodes[1].connect(address).expect("a session");
    assert_eq!(without.fabric(), Fabric::Tcp);
    let reason = without.fabric_reason();
    assert!(
        reason.contains("this machine has no RDMA device"),
        "{reason}"
    );
    let idle = idle.local_addr().expect("it listens");
    let refused = met.nodes[1].connect(idle).expect_err("it insists");
    assert!(refused.to_string().contains("no RDMA device"), "{refused}");

    shell(brings_back);
    let _accepted = met.nodes[0].accept().expect("the session without");
    let again = Met::of(met.nodes);
    let is_back = |peer: &Peer| peer.fabric() == Fabric::Verbs;
    assert!(again.peers.iter().all(is_back));
    drop(held);
}

#[test]
fn a_device_that_is_removed_in_use_is_closed_at_once() {
    let Some(_guest) = guest() else { return };
    removed_in_use(
        "rdma link delete rxe0",
        "rdma link add rxe0 type rxe netdev v0",
    );
}

#[test]
fn a_network_interface_that_is_removed_in_use_takes_the_device_with_it() {
    let Some(_guest) = guest() else { return };
    removed_in_use(
        "ip link delete v0",
        "ip link add v0 type veth peer name v1; ip address add 192.0.2.1/24 dev v0; \
         ip link set v0 up; ip link set v1 up; rdma link add rxe0 type rxe netdev v0",
    );
}

/// Returns message `number`, of a length that fits one receive buffer, or several, or none.
fn numbered(number: u64) -> Vec<u8> {
    let length = 8 + match number % 50 {
        0 => 200_000,
        1..10 => 20_000,
        _ => number as usize * 31 % 3000,
    };
    let mut bytes = vec![number as u8; length];
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns the changes of fabric that an end of a session reports, up to one to `last`.
fn changes_until(events: &mut Events, last: Fabric) -> Vec<(Fabric, Fabric)> {
    let mut changes = Vec::new();
    let until = Instant::now() + PATIENCE;
    while let Some(event) = events.next_timeout(until.saturating_duration_since(Instant::now())) {
        println!("{event}");
        if let Event::FabricChanged { from, to, .. } = event {
            changes.push((from, to));
            if to == last {
                return changes;
            }
        }
    }
    panic!("the session does not go over {last}: {changes:?}");
}

#[test]
fn a_session_whose_device_was_away_stays_over_tcp_and_a_new_one_takes_the_device() {
    let Some(_guest) = guest() else { return };
    let fails_over = || {
        // There are few buffers, so that they are registered quickly.
        let settings = RdmaSettings::new().receive_buffers(512).held_buffers(512);
        let builder = builder(Policy::Prefer).rdma(settings.max_sessions(64));
        builder.fail_over_after(Duration::ZERO)
    };
    let server = fails_over().listen("127.0.0.1:0").build();
    let server = server.expect("a node");
    let client = fails_over().build().expect("a node");
    let mut events = [&server, &client].map(Node::events);
    let proxy =
        Proxy::start(server.local_addr().expect("it listens").inet().unwrap()).expect("a proxy");
    let dialed = client.connect(proxy.address()).expect("a session");
    let accepted = server.accept().expect("a peer");
    let peers = [&accepted, &dialed];
    assert!(peers.iter().all(|peer| peer.fabric() == Fabric::Verbs));
    let sender = dialed.channel("said").codec::<Raw>().sender();
    let receiver = accepted.channel("said").codec::<Raw>().receiver();
    let mut sender: Sender<[u8], Raw> = sender.expect("an end");
    let mut receiver: Receiver<[u8], Raw> = receiver.expect("an end");

    let takes = thread::spawn(move || {
        let mut count = 0;
        while let Some(message) = receiver.next().expect("nothing fails") {
            count += 1;
            assert!(message[..] == numbered(count)[..], "message {count}");
        }
        count
    });
    let is_enough = Arc::new(AtomicBool::new(false));
    let has_enough = is_enough.clone();
    let sends = thread::spawn(move || {
        let mut sent = 0;
        while !has_enough.load(Ordering::Relaxed) {
            sender.send(&numbered(sent + 1)).expect("sent");
            sent += 1;
            // The guest's other tasks need time, too.
            thread::sleep(Duration::from_millis(1));
        }
        sender.close().expect("delivered");
        sent
    });
    let a_while = || thread::sleep(Duration::from_millis(200));

    a_while();
    let changed = Changed::by(
        "rdma link delete rxe0",
        "rdma link show rxe0/1 > /dev/null 2>&1 || rdma link add rxe0 type rxe netdev v0",
    );
    for events in &mut events {
        let changes = changes_until(events, Fabric::Tcp);
        assert_eq!(changes, [(Fabric::Verbs, Fabric::Tcp)]);
    }
    drop(changed);
    // The device is back, as a new session shows, and the old session continues as it is.
    let address = server.local_addr().expect("it listens");
    let other = client.connect(address).expect("another session");
    let _accepted = server.accept().expect("the same");
    assert_eq!(other.fabric(), Fabric::Verbs);
    a_while();
    assert!(peers.iter().all(|peer| peer.fabric() == Fabric::Tcp));
    proxy.cut();
    for events in &mut events {
        let resumed = events.find(|event| matches!(event, Event::Resumed { .. }));
        println!("{}", resumed.expect("the node runs"));
    }
    a_while();
    is_enough.store(true, Ordering::Relaxed);
    let sent: u64 = sends.join().expect("all are sent");
    assert_eq!(takes.join().expect("all are there"), sent);
    assert!(peers.iter().all(|peer| peer.fabric() == Fabric::Tcp));
    println!("{sent} messages");
}
