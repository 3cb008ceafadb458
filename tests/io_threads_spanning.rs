//! Uses of a node that span its engines: groups and calls over sessions of each, waits that either
//! ends, a peer that restarts, and a close under load.
#![forbid(unsafe_code)]

#[path = "common/kernel.rs"]
#[allow(dead_code, reason = "threads are looked at here and nothing else")]
mod kernel;

use std::{collections::BTreeSet, sync::mpsc, thread, time::Duration};

use ibex::prelude::*;
use ibex::{
    EndCause, Event, Fabric, Node, NodeBuilder, Peer, Pod, Policy, Receiver, Select, Sender,
    calls::{Caller, Service},
    group::Group,
};
use ibex_harness::proxy::Proxy;

const FABRICS: [Fabric; 2] = [Fabric::Shm, Fabric::Tcp];
const LONG: Duration = Duration::from_secs(120);
const MESSAGES: u64 = 200;

fn builder(fabric: Fabric) -> NodeBuilder {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    let builder = builder
        .connect_timeout(Duration::MAX)
        .open_timeout(Duration::MAX);
    builder.io_threads(2)
}

/// A node with two engines, each with a session to a node that has one.
struct Hub {
    node: Node,
    /// The sessions, at the hub and at the other node.
    sessions: Vec<[Peer; 2]>,
    others: Vec<Node>,
}

impl Hub {
    fn new(fabric: Fabric, sessions: usize) -> Self {
        let node = builder(fabric).listen("127.0.0.1:0").build();
        let node = node.expect("a node");
        let address = node.local_addr().expect("it listens");
        let (mut both, mut others) = (Vec::new(), Vec::new());
        for _ in 0..sessions {
            let other = builder(fabric).io_threads(1).build().expect("a node");
            let there = other.connect(address).expect("a session");
            let here = node.accept_timeout(LONG).expect("a session");
            both.push([here, there]);
            others.push(other);
        }
        let engines: BTreeSet<_> = both.iter().map(|[here, _]| here.engine()).collect();
        assert_eq!(engines.len(), 2, "the sessions are on both engines");
        Self {
            node,
            sessions: both,
            others,
        }
    }
}

fn sender(peer: &Peer, name: &str) -> Sender<u64, Pod> {
    let sender = peer.channel(name).codec::<Pod>().sender();
    sender.expect("an end")
}

fn receiver(peer: &Peer, name: &str) -> Receiver<u64, Pod> {
    let receiver = peer.channel(name).codec::<Pod>().receiver();
    receiver.expect("an end")
}

#[test]
fn a_group_has_members_on_each_engine_and_waits_for_all_of_them() {
    for fabric in FABRICS {
        let hub = Hub::new(fabric, 4);
        let group = hub.node.channel("log").codec::<Pod>().group::<u64>();
        let mut group: Group<u64, Pod> = group.expect("a group");
        let mut members = Vec::new();
        for [here, there] in &hub.sessions {
            let mut receiver = receiver(there, "log");
            group.join(here).expect("a member");
            members.push(thread::spawn(move || {
                let mut next = 1;
                while let Some(message) = receiver.next().expect("an orderly end") {
                    assert_eq!(*message, next);
                    next += 1;
                    message.ack();
                }
                next - 1
            }));
        }
        for number in 1..=MESSAGES {
            let sequence = group.send(&number).expect("sent");
            // The slowest member of both engines ends the wait.
            group.wait_acked(sequence, 4).expect("all have it");
        }
        assert!(group.close().is_empty());
        for member in members {
            assert_eq!(member.join().expect("it ends"), MESSAGES);
        }
    }
}

#[test]
fn a_service_answers_callers_of_each_engine() {
    for fabric in FABRICS {
        let hub = Hub::new(fabric, 4);
        let calls = hub.node.channel("double").codec::<Pod>();
        let mut service: Service<u64, u64, Pod> = calls.service().expect("a service");
        let mut callers = Vec::new();
        for (from, [_, there]) in hub.sessions.iter().enumerate() {
            let caller = there.channel("double").codec::<Pod>().caller();
            let caller: Caller<u64, u64, Pod> = caller.expect("a caller");
            callers.push(thread::spawn(move || {
                for number in 0..MESSAGES {
                    let asked = number << 8 | from as u64;
                    let reply = caller.call(&asked).expect("an answer");
                    assert_eq!(*reply, 2 * asked);
                }
            }));
        }
        let mut asked = BTreeSet::new();
        for _ in 0..4 * MESSAGES {
            let request = service.next().expect("a request").expect("one more");
            asked.insert(*request & 0xff);
            let answer = 2 * *request;
            request.reply(&answer).expect("sent");
        }
        assert_eq!(asked.len(), 4);
        for caller in callers {
            caller.join().expect("it ends");
        }
    }
}

/// The thread is known to sleep before each message, so a wake-up must end its wait.
#[test]
fn a_thread_asleep_over_two_engines_is_woken_by_either() {
    for fabric in FABRICS {
        let hub = Hub::new(fabric, 2);
        let mut senders = hub.sessions.iter().map(|[_, there]| sender(there, "wake"));
        let mut senders = [(); 2].map(|()| senders.next().expect("two sessions"));
        let [mut one, mut other] = [0, 1].map(|at: usize| receiver(&hub.sessions[at][0], "wake"));
        let (tell, told) = mpsc::channel();
        let selecting = thread::spawn(move || {
            tell.send(kernel::this_thread()).expect("it is awaited");
            let mut select = Select::new();
            for round in 0..MESSAGES {
                let found = select.ready_timeout(&mut [&mut one, &mut other], LONG);
                assert_eq!(found.expect("a message comes") as u64, round % 2);
                let message = match round % 2 {
                    0 => one.try_recv(),
                    _ => other.try_recv(),
                };
                assert_eq!(*message.expect("it is there"), round);
                tell.send(kernel::this_thread()).expect("it is awaited");
            }
        });
        for round in 0..MESSAGES {
            let thread = told.recv().expect("the thread waits next");
            kernel::wait_until_asleep(thread);
            senders[(round % 2) as usize].send(&round).expect("sent");
        }
        selecting.join().expect("it has all");
    }
}

/// A thread that waits for one engine turns it, and leaves it, while another waits for both: the
/// I/O threads take over for that one.
#[test]
fn a_thread_that_turns_one_engine_leaves_it_to_one_that_waits_for_both() {
    for fabric in FABRICS {
        let hub = Hub::new(fabric, 2);
        let [here, there] = &hub.sessions[0];
        let mut asking = (sender(here, "ask"), receiver(here, "answer"));
        let mut answering = (sender(there, "answer"), receiver(there, "ask"));
        let mut both = hub.sessions.iter().map(|[here, there]| {
            let (ticks, tocks) = (receiver(here, "tick"), sender(here, "tock"));
            let mut ends = (sender(there, "tick"), receiver(there, "tock"));
            let ticking = thread::spawn(move || {
                for tick in 0..MESSAGES {
                    ends.0.send(&tick).expect("sent");
                    assert_eq!(*ends.1.recv().expect("it comes"), tick);
                }
                // The ends are still open: the end of a channel is something to wake up for, too.
                ends
            });
            (ticks, tocks, ticking)
        });
        let [mut one, mut other] = [(); 2].map(|()| both.next().expect("two sessions"));
        let selecting = thread::spawn(move || {
            let mut select = Select::new();
            for _ in 0..2 * MESSAGES {
                let found = select.ready(&mut [&mut one.0, &mut other.0]);
                let (ticks, tocks, _) = match found {
                    0 => &mut one,
                    _ => &mut other,
                };
                let tick = *ticks.try_recv().expect("it is there");
                tocks.send(&tick).expect("sent");
            }
            [one.2, other.2].map(|ticking| ticking.join().expect("it has all"))
        });
        let echoing = thread::spawn(move || {
            for _ in 0..MESSAGES {
                let message = *answering.1.recv().expect("it comes");
                answering.0.send(&message).expect("sent");
            }
        });
        for message in 0..MESSAGES {
            asking.0.send(&message).expect("sent");
            assert_eq!(*asking.1.recv().expect("it comes"), message);
        }
        echoing.join().expect("it has answered all");
        selecting.join().expect("it has all");
    }
}

/// The engine that meets the peer's new incarnation tells the other, whose sessions are with the
/// old one. When their connections break, no engine waits for the old one.
#[test]
fn sessions_of_a_run_that_is_over_end_on_every_engine() {
    let server = builder(Fabric::Tcp).listen("127.0.0.1:0");
    let server = server.build().expect("a node");
    let address = server.local_addr().expect("it listens");
    let mut events = server.events();
    let run = || {
        let builder = builder(Fabric::Tcp).io_threads(1).identity([7; 16]);
        builder.build().expect("a node")
    };
    let (old, proxy) = (
        run(),
        Proxy::start(address.inet().expect("of TCP")).unwrap(),
    );
    let old_ends = [(); 4].map(|()| old.connect(proxy.address()).expect("a session"));
    let before = [(); 4].map(|()| server.accept_timeout(LONG).expect("a session"));
    let engines: BTreeSet<_> = before.iter().map(Peer::engine).collect();
    assert_eq!(engines.len(), 2);
    let new = run();
    let new_end = new.connect(address).expect("a session");
    let after = server.accept_timeout(LONG).expect("a session");
    proxy.cut_off();
    let mut gone = 0;
    while gone < before.len() {
        match events.next_timeout(LONG).expect("an event") {
            Event::Gone { peer, cause, .. } => {
                assert_eq!(peer, before[0].id());
                let is_certain = matches!(cause, EndCause::PeerGone { certain: true, .. });
                assert!(is_certain, "{cause}");
                gone += 1;
            }
            // The engine of this session has not learned of the new incarnation yet.
            Event::Suspended { .. } | Event::Connected { .. } => {}
            other => panic!("{other}"),
        }
    }
    assert!(before.iter().all(Peer::is_gone) && !after.is_gone());
    let (mut sender, mut receiver) = (sender(&after, "on"), receiver(&new_end, "on"));
    sender.send(&1).expect("sent");
    assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), 1);
    drop(old_ends);
}

/// Everything sent before the close is received: each receiver counts, and its sender reports the
/// number.
#[test]
fn a_node_closes_under_load_and_nothing_that_was_sent_is_missing() {
    for fabric in FABRICS {
        let Hub {
            node,
            sessions,
            others,
        } = Hub::new(fabric, 6);
        let (mut sending, mut receiving) = (Vec::new(), Vec::new());
        let (tell, told) = mpsc::channel();
        for [here, there] in &sessions {
            let (mut sender, mut receiver) = (sender(here, "load"), receiver(there, "load"));
            let tell = tell.clone();
            sending.push(thread::spawn(move || {
                let mut sent = 0;
                while sender.send(&sent).is_ok() {
                    sent += 1;
                    if sent == MESSAGES {
                        tell.send(()).expect("it is awaited");
                    }
                }
                sent
            }));
            receiving.push(thread::spawn(move || {
                let mut received = 0;
                while let Ok(Some(message)) = receiver.next() {
                    assert_eq!(*message, received);
                    received += 1;
                }
                received
            }));
        }
        for _ in &sessions {
            told.recv().expect("each sends");
        }
        let report = node.close(LONG);
        assert!(report.undelivered.is_empty(), "{fabric:?}: {report}");
        for (sending, receiving) in sending.into_iter().zip(receiving) {
            let sent = sending.join().expect("it ends");
            assert_eq!(receiving.join().expect("it ends"), sent, "{fabric:?}");
        }
        drop(others);
    }
}
