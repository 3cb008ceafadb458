//! Many sessions of one node over this machine's RDMA device, and sessions that come and go.
//! Without a device, nothing is tested.
//!
//! `IBEX_TEST_DEVICE` names the device, and makes its absence a failure. `IBEX_TEST_SESSIONS` is
//! the number of sessions that come and go. The tests read the port's counters, so they take turns.
#![cfg(feature = "verbs")]
#![forbid(unsafe_code)]

mod crowd;

use std::{
    env, fs,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use ibex::{Driver, Fabric, NodeBuilder, Policy, Raw};
use ibex_harness::{
    row::bytes,
    verbs_port::{DEVICE_VARIABLE, VerbsPort},
};

use crowd::{Crowd, PATIENCE, SESSIONS, Standstill};

/// Returns a builder of a node with this many places, and otherwise as little as possible.
fn builder(places: u32) -> NodeBuilder {
    crowd::builder(places)
}

/// Returns the device's port and the exclusive right to use it, or `None` if the machine has no
/// device.
fn port() -> Option<(VerbsPort, MutexGuard<'static, ()>)> {
    static TURN: Mutex<()> = Mutex::new(());
    match VerbsPort::choose() {
        Ok(port) => Some((port, TURN.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(error) => {
            assert!(env::var_os(DEVICE_VARIABLE).is_none(), "{error}");
            None
        }
    }
}

// ---- A crowd -------------------------------------------------------------------------

/// Messages that each session of the crowd carries.
const MESSAGES: u32 = 48;

#[test]
fn two_hundred_sessions_share_40_receive_buffers() {
    let Some((port, _turn)) = port() else {
        return;
    };
    let before = port.counters();
    let began = Instant::now();
    let mut crowd = Crowd::gather(SESSIONS);
    let gathered = began.elapsed();
    let carried = crowd.carry(MESSAGES);
    let rise = port.counters().since(before);
    println!(
        "{SESSIONS} sessions in {gathered:.1?}; {MESSAGES} messages of each, {}/s, when the \
         first was done {:.2} times as many of the richest as of the poorest; {rise:?}",
        bytes(carried.bytes_per_second()),
        carried.spread()
    );
    // Credit is lent in the order of requests. A session requests some when its sender's turn comes,
    // and on a busy machine turns are missed, so the shares are not the same.
    assert!(carried.spread() <= 2.0, "{carried:?}");
    assert!(!rise.was_not_ready(), "{rise:?}");
    let least_sends = u64::from(MESSAGES) * SESSIONS as u64;
    assert!(
        rise.sends.is_none_or(|sends| sends >= least_sends),
        "{rise:?}"
    );
}

// ---- Places --------------------------------------------------------------------------

#[test]
fn a_session_without_a_place_goes_over_tcp_or_says_why_it_cannot() {
    let Some(_turn) = port() else {
        return;
    };
    for policy in [Policy::Prefer, Policy::Require] {
        let server = builder(1)
            .listen("127.0.0.1:0")
            .fabric(Fabric::Verbs, policy)
            .build()
            .expect("a node");
        let address = server.local_addr().expect("it listens");
        let first = builder(2).build().expect("a node");
        let peer = first.connect(address).expect("a session");
        assert_eq!(peer.fabric(), Fabric::Verbs, "{}", peer.fabric_reason());
        let second = builder(2).build().expect("a node");
        let without = "1 session has the only place";
        let said = match (policy, second.connect(address)) {
            (Policy::Prefer, Ok(peer)) => {
                assert_eq!(peer.fabric(), Fabric::Tcp);
                peer.fabric_reason().to_owned()
            }
            (Policy::Require, Err(error)) => error.to_string(),
            (_, other) => panic!("{without}: {other:?}"),
        };
        assert!(
            said.contains("for another session") && said.contains("raise max_sessions"),
            "{said}"
        );
        println!("{policy:?}: {said}");
        // When the first session has gone, its place is free.
        let _ = first.close(PATIENCE);
        let mut standstill = Standstill::new();
        loop {
            let third = builder(2).build().expect("a node");
            match third.connect(address) {
                Ok(peer) if peer.fabric() == Fabric::Verbs => break,
                Ok(_) | Err(_) => standstill.looked(false, "the free place"),
            }
        }
    }
}

// ---- Coming and going ----------------------------------------------------------------

/// The node that stays has room for one session, so that a place that is not returned is missed at
/// once.
#[test]
fn nodes_that_come_and_go_leave_nothing_behind() {
    let Some(_turn) = port() else {
        return;
    };
    let rounds = env::var("IBEX_TEST_SESSIONS").map_or(40, |rounds| {
        rounds
            .parse()
            .expect("IBEX_TEST_SESSIONS: a number of rounds")
    });
    let server = builder(4)
        .driver(Driver::Threads)
        .listen("127.0.0.1:0")
        .build()
        .expect("a node");
    let address = server.local_addr().expect("it listens");
    let mut first = None;
    for round in 0..rounds {
        let client = builder(2).build().expect("a node");
        let peer = client.connect(address).expect("a session");
        assert_eq!(peer.fabric(), Fabric::Verbs, "{}", peer.fabric_reason());
        let theirs = server.accept_timeout(PATIENCE).expect("a peer");
        let mut sender = peer.channel("x").codec::<Raw>().sender().expect("an end");
        let receiver = theirs.channel("x").codec::<Raw>().receiver::<[u8]>();
        let mut receiver = receiver.expect("an end");
        sender.send(&[7; 100][..]).expect("sent");
        assert_eq!(
            receiver.recv_timeout(PATIENCE).expect("it comes").len(),
            100
        );
        drop((sender, receiver));
        let report = client.close(PATIENCE);
        assert_eq!(report.undelivered, []);
        drop((client, peer));
        let mut standstill = Standstill::new();
        while !theirs.is_gone() {
            standstill.looked(false, "the session's end");
        }
        // Memory that is kept for reuse exists after a few rounds.
        if round == rounds / 4 {
            first = Some(held());
        }
    }
    let (before, after) = (first.expect("some rounds"), held());
    println!("descriptors and pinned KiB after {rounds} sessions: {before:?}, {after:?}");
    // A session that is about to end may have some descriptors.
    assert!(after.0 <= before.0 + 8, "{before:?} {after:?}");
    assert!(after.1 <= before.1 + 1024, "{before:?} {after:?}");
}

/// Returns the descriptors of this process, and the KiB that its devices have pinned.
fn held() -> (usize, u64) {
    let descriptors = fs::read_dir("/proc/self/fd").expect("/proc").count();
    let status = fs::read_to_string("/proc/self/status").expect("/proc");
    let pinned = status.lines().find_map(|line| {
        let value = line.strip_prefix("VmPin:")?;
        value.trim().strip_suffix(" kB")?.parse().ok()
    });
    (descriptors, pinned.expect("a kernel that says it"))
}
