//! After `kill -9` of the peer in mid-stream, nothing of the session is left in this process once
//! its handles are dropped: no descriptor, thread, mapping or file, and over verbs no queue pair,
//! memory region or other object of the device. The kernel also has nothing left of the killed
//! process's objects there.
//!
//! One node lives through all rounds, as a server does. In each round a process connects, or is
//! connected to, streams both ways and is killed. A node keeps some objects for itself after the
//! first rounds; from then on the counts must not change.
//!
//! `crashed.rs` lets a thousand clients die, in every phase of a session's life. `outlived.rs` ends
//! handles, sessions and nodes before the messages that came from them. `orders.rs` drops handles,
//! messages, the peer and the node in every order.

mod belongings;
mod crashed;
mod orders;
mod outlived;
#[path = "../processes/mod.rs"]
mod processes;

use std::{net::TcpListener, process::ExitCode, thread};

use belongings::{Belongings, shared_files};
use ibex::{Fabric, Message, Node, Raw, RecvErrorKind, SendErrorKind};
use processes::{Party, Proof, Setup};

fn main() -> ExitCode {
    let killed = |setup| Proof::new("killed", setup, survive, stream_until_killed);
    let crashed = |setup| {
        let crash = crashed::be_in_every_phase;
        Proof::new("crashed", setup, crashed::go_on_serving, crash)
    };
    let outlived = |setup| {
        let here = outlived::give_everything_back;
        Proof::new("outlived", setup, here, |_| ())
    };
    let ordered = |setup| Proof::new("orders", setup, orders::give_everything_back, |_| ());
    let killed = Setup::all().map(killed);
    let others = Setup::all().map(crashed);
    let others = others.chain(Setup::with_threads().map(outlived));
    // These are up to 1,500 sessions, too many for an emulated device.
    let without_device = |setup: &Setup| setup.fabric != Fabric::Verbs;
    let in_orders = Setup::with_threads().filter(without_device);
    let others = others.chain(in_orders.map(ordered));
    processes::run(killed.chain(others).collect())
}

fn survive(party: &mut Party) {
    let before = shared_files();
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = listener.local_addr().expect("its address");
    let mut settled = None;
    for round in 0..party.setup.count(ROUNDS, 5) {
        match round {
            0 => {}
            _ if round.is_multiple_of(2) => party.meet_the_next(),
            _ => party.call_on_the_next(),
        }
        // A message that outlives its handles and its session keeps its memory until it is dropped.
        drop(one_session(party));
        drop(Node::listen(taken).expect_err("somebody else listens there"));
        let left = Belongings::settle(party, settled.as_ref());
        let of_the_killed = left.on_devices.iter().find(|line| line.contains("killed"));
        assert_eq!(of_the_killed, None, "round {round}: the kernel keeps it");
        match &settled {
            Some(settled) => assert!(
                left.is_within(settled),
                "round {round} left something behind: {left:?}, beside {settled:?}"
            ),
            None if round + 1 == WARM_UP => settled = Some(left),
            None => {}
        }
    }
    let after = shared_files();
    let left: Vec<_> = after.difference(&before).collect();
    assert!(left.is_empty(), "files are left in /dev/shm: {left:?}");
}

/// Streams both ways, kills the peer, and drops everything except the last message.
fn one_session(party: &mut Party) -> Message<[u8], Raw> {
    let mut sender = party
        .peer
        .channel("back")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = party
        .peer
        .channel("there")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    let mut last = None;
    for _ in 0..MESSAGES {
        last = Some(receiver.recv().unwrap());
        sender.send(&[7; 64]).unwrap();
    }
    party.other.kill();
    loop {
        match receiver.recv() {
            Ok(message) => last = Some(message),
            Err(error) if error.kind() == RecvErrorKind::Disconnected => break,
            Err(error) => panic!("{error}"),
        }
    }
    loop {
        match sender.send(&[7; 64]) {
            Ok(_) => {}
            Err(error) if error.kind() == SendErrorKind::Disconnected => break,
            Err(error) => panic!("{error}"),
        }
    }
    last.expect("messages came before the end")
}

fn stream_until_killed(party: &mut Party) {
    let mut sender = party
        .peer
        .channel("there")
        .codec::<Raw>()
        .sender::<[u8]>()
        .unwrap();
    let mut receiver = party
        .peer
        .channel("back")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .unwrap();
    thread::spawn(move || while receiver.next().is_ok_and(|message| message.is_some()) {});
    while sender.send(&[7; 64]).is_ok() {}
}

const ROUNDS: u64 = 50;
/// Rounds after which a node has everything that it keeps.
const WARM_UP: u64 = 4;
const MESSAGES: usize = 1000;
