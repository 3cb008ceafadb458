//! Nodes with several engines: the placement of sessions, and waits that the events of any engine
//! ends.
#![forbid(unsafe_code)]

use std::{
    collections::{BTreeMap, BTreeSet},
    thread,
    time::Duration,
};

use ibex::{
    ConnectErrorKind, Driver, Fabric, FanInEvent, ListenErrorKind, Node, NodeBuilder, Peer, Pod,
    Policy, Receiver, Select, Sender,
};
use ibex_harness::proxy::Proxy;

const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];
const LONG: Duration = Duration::from_secs(120);

fn builder(fabric: Fabric, io_threads: usize) -> NodeBuilder {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    let builder = builder
        .connect_timeout(Duration::MAX)
        .open_timeout(Duration::MAX);
    builder.io_threads(io_threads)
}

/// Creates a listening node with `io_threads` engines, and `clients` sessions between it and
/// another node. Returns both nodes, and the sessions as accepted and as dialed.
fn sessions(fabric: Fabric, io_threads: usize, clients: usize) -> ([Node; 2], [Vec<Peer>; 2]) {
    let server = builder(fabric, io_threads).listen("127.0.0.1:0");
    let server = server.build().expect("a node");
    let client = builder(fabric, io_threads).build().expect("a node");
    let address = server.local_addr().expect("it listens");
    let dialed = (0..clients).map(|_| client.connect(address).expect("a session"));
    let dialed = dialed.collect();
    let accepted = (0..clients).map(|_| server.accept_timeout(LONG).expect("a session"));
    let accepted = accepted.collect();
    ([server, client], [accepted, dialed])
}

fn channel(from: &Peer, to: &Peer, name: &str) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
    let sender = from.channel(name).codec::<Pod>().sender().expect("an end");
    let receiver = to.channel(name).codec::<Pod>().receiver().expect("an end");
    (sender, receiver)
}

/// Returns the name of the channel that the peer has opened, which tells a node's sessions apart.
fn incoming(peer: &Peer) -> String {
    loop {
        match &peer.incoming()[..] {
            [] => thread::yield_now(),
            [(name, _), ..] => break name.clone(),
        }
    }
}

#[test]
fn sessions_spread_over_the_engines_of_both_nodes_and_stay_there() {
    for fabric in FABRICS {
        let (nodes, sides) = sessions(fabric, 3, 9);
        for (node, peers) in nodes.iter().zip(&sides) {
            let stats = node.stats();
            let counts: Vec<_> = stats.engines.iter().map(|it| it.sessions).collect();
            assert_eq!(counts, [3, 3, 3], "{fabric:?}");
            let engines: BTreeSet<_> = peers.iter().map(Peer::engine).collect();
            assert_eq!(engines, BTreeSet::from([0, 1, 2]));
            for session in &stats.sessions {
                assert!(session.engine < 3);
            }
        }
        for node in &nodes {
            assert!(node.close(LONG).undelivered.is_empty());
        }
    }
}

#[test]
fn each_session_carries_messages_both_ways_and_its_engine_counts_them() {
    for fabric in FABRICS {
        let ([server, client], [accepted, dialed]) = sessions(fabric, 2, 4);
        let names: Vec<_> = (0..dialed.len()).map(|at| format!("up{at}")).collect();
        let ups = dialed.iter().zip(&names).map(|(peer, name)| {
            let sender = peer.channel(name).codec::<Pod>().sender();
            sender.expect("an end")
        });
        let ups: Vec<Sender<u64, Pod>> = ups.collect();
        // The names tell the sessions of one peer apart.
        let echoes: Vec<_> = accepted
            .into_iter()
            .map(|peer| {
                thread::spawn(move || {
                    let name = incoming(&peer);
                    let mut up = peer
                        .channel(&name)
                        .codec::<Pod>()
                        .receiver::<u64>()
                        .unwrap();
                    let down = name.replace("up", "down");
                    let mut down: Sender<u64, Pod> =
                        peer.channel(&down).codec::<Pod>().sender().unwrap();
                    for _ in 0..MESSAGES {
                        let number: u64 = *up.recv_timeout(LONG).expect("it comes");
                        down.send(&(number + 1)).expect("sent");
                    }
                    down.close().expect("delivered");
                })
            })
            .collect();
        let asking: Vec<_> = ups
            .into_iter()
            .zip(dialed.clone())
            .enumerate()
            .map(|(at, (mut up, peer))| {
                thread::spawn(move || {
                    let name = format!("down{at}");
                    let mut down: Receiver<u64, Pod> =
                        peer.channel(&name).codec::<Pod>().receiver().unwrap();
                    for number in 0..MESSAGES {
                        up.send(&number).expect("sent");
                        assert_eq!(*down.recv_timeout(LONG).expect("it comes"), number + 1);
                    }
                })
            })
            .collect();
        for thread in echoes.into_iter().chain(asking) {
            thread.join().expect("it ends");
        }
        let engines = client.stats().engines;
        assert_eq!(engines.len(), 2);
        for engine in &engines {
            assert!(engine.sessions == 2 && engine.turns > 0, "{engine}");
        }
        assert!(server.close(LONG).undelivered.is_empty());
        assert!(client.close(LONG).undelivered.is_empty());
    }
}

#[test]
fn a_thread_that_selects_is_woken_by_either_engine() {
    for fabric in FABRICS {
        let (_nodes, [accepted, dialed]) = sessions(fabric, 2, 2);
        let names = ["at0", "at1"];
        let mut senders: Vec<Sender<u64, Pod>> = dialed
            .iter()
            .zip(names)
            .map(|(peer, name)| peer.channel(name).codec::<Pod>().sender().unwrap())
            .collect();
        let mut receivers = BTreeMap::new();
        for peer in &accepted {
            let name = incoming(peer);
            let receiver: Receiver<u64, Pod> =
                peer.channel(&name).codec::<Pod>().receiver().unwrap();
            receivers.insert(name, receiver);
        }
        let engines: BTreeSet<_> = accepted.iter().map(Peer::engine).collect();
        assert_eq!(engines.len(), 2, "one on each");
        let mut receivers = receivers.into_values();
        let (mut one, mut other) = (receivers.next().unwrap(), receivers.next().unwrap());
        let mut select = Select::new();
        let mut seen = [0; 2];
        for round in 0..ROUNDS {
            // One of the two receives a message, and the thread waits for both.
            senders[round as usize % 2].send(&round).expect("sent");
            let found = select.ready_timeout(&mut [&mut one, &mut other], LONG);
            let found = found.expect("one has something");
            seen[found] += 1;
            let message = match found {
                0 => one.try_recv(),
                _ => other.try_recv(),
            };
            assert_eq!(*message.expect("it is there"), round);
        }
        assert_eq!(seen, [ROUNDS / 2; 2]);
    }
}

#[test]
fn a_fan_in_spans_engines() {
    for fabric in FABRICS {
        let server = builder(fabric, 2).listen("127.0.0.1:0");
        let server = server.build().expect("a node");
        let numbers = server.channel("numbers").codec::<Pod>().fan_in::<u64>();
        let mut numbers = numbers.expect("a fan-in");
        let address = server.local_addr().expect("it listens");
        let clients: Vec<_> = (0..4)
            .map(|_| {
                thread::spawn(move || {
                    let node = builder(fabric, 1).build().expect("a node");
                    let peer = node.connect(address).expect("a session");
                    let sender = peer.channel("numbers").codec::<Pod>().sender();
                    let mut sender: Sender<u64, Pod> = sender.expect("an end");
                    for number in 1..=MESSAGES {
                        sender.send(&number).expect("sent");
                    }
                    sender.close().expect("delivered");
                })
            })
            .collect();
        let (mut messages, mut ended) = (0, 0);
        while ended < clients.len() {
            match numbers.next_timeout(LONG).expect("something comes") {
                Some(FanInEvent::Message(..)) => messages += 1,
                Some(FanInEvent::Ended(_)) => ended += 1,
                Some(FanInEvent::Joined(_)) => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(messages, 4 * MESSAGES);
        for client in clients {
            client.join().expect("it ends");
        }
    }
}

/// Both ends close in the same call, so neither can ask the other what has arrived.
#[test]
fn a_node_that_is_connected_to_itself_closes_and_nothing_is_missing() {
    for (fabric, engines) in FABRICS.into_iter().flat_map(|it| [(it, 1), (it, 2)]) {
        let node = builder(fabric, engines).listen("127.0.0.1:0");
        let node = node.build().expect("a node");
        let address = node.local_addr().expect("it listens");
        let there = node.connect(address).expect("a session");
        let here = node.accept_timeout(LONG).expect("a session");
        if engines > 1 {
            assert_ne!(here.engine(), there.engine(), "the least loaded has it");
        }
        let mut channels = ["one", "two"].map(|name| channel(&there, &here, name));
        for (sender, receiver) in &mut channels {
            sender.send(&7).expect("sent");
            assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), 7);
        }
        let report = node.close(LONG);
        assert!(report.undelivered.is_empty(), "{fabric:?}: {report}");
        assert!(here.is_gone() && there.is_gone());
    }
}

#[test]
fn a_session_goes_on_over_another_connection_on_the_engine_that_it_has() {
    let server = builder(Fabric::Tcp, 2).listen("127.0.0.1:0");
    let server = server.build().expect("a node");
    let client = builder(Fabric::Tcp, 2).build().expect("a node");
    let proxy = Proxy::start(server.local_addr().expect("it listens").inet().unwrap()).unwrap();
    let dialed = [(); 2].map(|()| client.connect(proxy.address()).expect("a session"));
    let accepted = [(); 2].map(|()| server.accept_timeout(LONG).expect("a session"));
    let mut senders: Vec<Sender<u64, Pod>> = Vec::new();
    for (at, peer) in dialed.iter().enumerate() {
        let name = format!("at{at}");
        senders.push(peer.channel(&name).codec::<Pod>().sender().unwrap());
    }
    let mut receivers = BTreeMap::new();
    for peer in &accepted {
        let name = incoming(peer);
        let receiver: Receiver<u64, Pod> = peer.channel(&name).codec::<Pod>().receiver().unwrap();
        receivers.insert(name, receiver);
    }
    let engines = |peers: &[Peer]| peers.iter().map(Peer::engine).collect::<Vec<_>>();
    let before = (engines(&dialed), engines(&accepted));
    assert_eq!(before.1.iter().sum::<usize>(), 1, "one on each");
    for round in 0..3 {
        for (sender, receiver) in senders.iter_mut().zip(receivers.values_mut()) {
            sender.send(&round).expect("sent");
            assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), round);
        }
        proxy.cut();
    }
    for (sender, receiver) in senders.iter_mut().zip(receivers.values_mut()) {
        sender.send(&9).expect("sent");
        assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), 9);
    }
    for peer in accepted.iter().chain(&dialed) {
        assert!(peer.stats().resumes > 0 && !peer.is_gone());
    }
    assert_eq!((engines(&dialed), engines(&accepted)), before);
}

#[test]
fn the_program_places_sessions_at_both_ends() {
    for fabric in FABRICS {
        let server = builder(fabric, 3).place_accepted(|_, address| {
            assert!(address.is_loopback());
            Some(2)
        });
        let server = server.listen("127.0.0.1:0").build().expect("a node");
        let client = builder(fabric, 2).build().expect("a node");
        let address = server.local_addr().expect("it listens");
        for wanted in [1, 1, 0] {
            let there = client.connect_on(wanted, address);
            let there = there.expect("a session");
            let here = server.accept_timeout(LONG).expect("a session");
            assert_eq!((there.engine(), here.engine()), (wanted, 2));
            let (mut sender, mut receiver) = channel(&there, &here, "placed");
            sender.send(&3).expect("sent");
            assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), 3);
        }
        let beyond = client.connect_on(2, address);
        let refused = beyond.expect_err("there are two");
        assert_eq!(refused.kind(), ConnectErrorKind::NoSuchEngine);
        let says = "is to be on engine 2, and this node has 2, numbered from 0";
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

/// A wish that cannot be met is ignored.
#[test]
fn an_engine_that_no_node_has_leaves_the_choice_to_the_node() {
    for fabric in FABRICS {
        let server = builder(fabric, 2).place_accepted(|_, _| Some(usize::MAX));
        let server = server.listen("127.0.0.1:0").build().expect("a node");
        let client = builder(fabric, 1).build().expect("a node");
        let address = server.local_addr().expect("it listens");
        let dialed = [(); 2].map(|()| client.connect(address).expect("a session"));
        let accepted = [(); 2].map(|()| server.accept_timeout(LONG).expect("a session"));
        let engines: BTreeSet<_> = accepted.iter().map(Peer::engine).collect();
        assert_eq!(engines.len(), 2);
        assert!(dialed.iter().all(|peer| peer.engine() == 0));
    }
}

/// The last engines of a node close with their sessions, whichever end is first.
#[test]
fn a_node_closes_with_sessions_on_every_engine() {
    for fabric in FABRICS {
        for first in [0, 1] {
            let (nodes, [accepted, dialed]) = sessions(fabric, 4, 8);
            assert!(nodes[first].close(LONG).undelivered.is_empty());
            assert!(nodes[1 - first].close(LONG).undelivered.is_empty());
            assert!(accepted.iter().chain(&dialed).all(Peer::is_gone));
        }
    }
}

#[test]
fn tasks_drive_each_engine() {
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    for fabric in FABRICS {
        runtime.block_on(async {
            let tasks = || builder(fabric, 2).driver(Driver::Tasks);
            let server = tasks().listen("127.0.0.1:0").build().expect("a node");
            let client = tasks().build().expect("a node");
            let address = server.local_addr().expect("it listens");
            let mut ends = Vec::new();
            for at in 0..4 {
                let there = client.connect_on_async(at % 2, address).await;
                let there = there.expect("a session");
                assert_eq!(there.engine(), at % 2);
                let here = server.accept_async().await.expect("a session");
                ends.push(channel(&there, &here, &format!("at{at}")));
            }
            assert_eq!(server.stats().engines.len(), 2);
            for number in 0..MESSAGES {
                for (sender, receiver) in &mut ends {
                    sender.send_async(&number).await.expect("sent");
                    assert_eq!(*receiver.recv_async().await.expect("it comes"), number);
                }
            }
            for (sender, _) in ends {
                sender.close().expect("delivered");
            }
            let _ = client.close_async(LONG).await;
            let _ = server.close_async(LONG).await;
        });
    }
}

#[test]
fn callers_turn_one_engine_and_there_is_a_range() {
    let two = Node::builder().driver(Driver::Caller).io_threads(2).build();
    let refused = two.expect_err("callers turn one engine");
    assert!(refused.kind() == ListenErrorKind::Setting, "{refused:?}");
    for count in [0, 65] {
        let refused = Node::builder().io_threads(count).build();
        let refused = refused.expect_err("out of its range").to_string();
        assert!(refused.contains("io_threads"), "{refused}");
    }
}

const MESSAGES: u64 = 200;
const ROUNDS: u64 = 200;
