//! Nodes that stay connected to a service whose processes replace each other on one socket, over
//! each fabric and under each driver.

use std::{net::TcpListener, thread, time::Duration};

use ibex::prelude::*;
use ibex::{
    Driver, Event, Fabric, Node, PeerId,
    calls::Service,
    discovery::{Peers, PeersEvent, PeersEvents},
};

use super::{LOOPBACK, over::Over};

/// The time-out of events that must come.
const WATCHDOG: Duration = Duration::from_secs(120);

/// Takes the events by which all sessions leave the node `from`, if there is one, and the program
/// is notified of those with `to`.
#[track_caller]
fn expect_move(events: &mut PeersEvents, sessions: usize, from: Option<PeerId>, to: &Node) {
    let (mut draining, mut connected) = (0, 0);
    while draining < sessions * usize::from(from.is_some()) || connected < sessions {
        match events.next_timeout(WATCHDOG).expect("an event in time") {
            PeersEvent::Connected { peer, .. } if peer.id() == to.id() => connected += 1,
            PeersEvent::Draining { peer, .. } if Some(peer.id()) == from => draining += 1,
            other => panic!("another event: {other}"),
        }
    }
    assert!(connected == sessions && draining <= sessions);
}

/// Waits until both addresses of the service lead to `node`, and to no other, over this many
/// sessions.
fn assert_lead_to(node: &Node, peers: &Peers, addresses: &[String; 2], sessions: usize) {
    for address in addresses {
        let peer = peers.wait_for_timeout(address.as_str(), WATCHDOG);
        assert_eq!(peer.expect("it is reached").id(), node.id());
    }
    let connected: Vec<_> = peers.connected().iter().map(ibex::Peer::id).collect();
    assert_eq!(connected, vec![node.id(); sessions]);
}

fn answer_one(service: &mut Service<u64, u64>) {
    let request = service.next().expect("it serves").expect("a request");
    let doubled = 2 * u64::from(*request);
    request.reply(&doubled).expect("it goes out");
}

#[test]
fn a_peer_that_drains_is_left_for_its_successor_and_the_call_that_it_has_is_answered() {
    let runtime = crate::runtime();
    let _entered = runtime.enter();
    for driver in [Driver::Threads, Driver::Caller, Driver::Tasks] {
        for over in Over::each() {
            eprintln!("{}: {driver:?}", over.fabric);
            replace_twice(&over, driver);
        }
    }
}

fn replace_twice(over: &Over, driver: Driver) {
    let socket = TcpListener::bind(LOOPBACK).expect("a port");
    let address = socket.local_addr().expect("it is bound");
    let serve = || {
        let socket = socket.try_clone().expect("a descriptor");
        let node = over.builder(Driver::Threads).listen_on(socket).build();
        node.expect("a node")
    };
    let both = [address.to_string(), format!("localhost:{}", address.port())];
    // Over shared memory the kernel proves that both addresses lead to one process.
    let sessions = match over.fabric {
        Fabric::Shm => 1,
        _ => 2,
    };

    let first = serve();
    let mut service = first.service::<u64, u64>("double").expect("a service");
    let node = over.builder(driver).build();
    let node = node.expect("a node");
    let mut of_node = node.events();
    let peers = node.keep_connected(both.clone()).expect("threads");
    let mut events = peers.events();
    expect_move(&mut events, sessions, None, &first);
    assert_lead_to(&first, &peers, &both, sessions);

    let peer = peers.wait_for(address).expect("it is connected");
    let caller = peer.caller::<u64, u64>("double").expect("a caller");
    let second = serve();
    thread::scope(|scope| {
        let call = scope.spawn(|| caller.call(&21).map(|reply| u64::from(*reply)));
        let request = service.next().expect("it serves").expect("a request");
        let draining = scope.spawn(|| first.drain(Duration::MAX));
        // The handler has yet to answer.
        expect_move(&mut events, sessions, Some(first.id()), &second);
        assert_lead_to(&second, &peers, &both, sessions);
        request.reply(&42).expect("it goes out");
        assert_eq!(call.join().expect("no panic").expect("an answer"), 42);
        // If calls alone turn the node, it answers its new connections in turns.
        while !draining.is_finished() {
            node.poll();
            thread::yield_now();
        }
        let report = draining.join().expect("no panic");
        assert!(report.is_complete(), "{report}");
        assert_eq!(report.finished, 1);
    });
    let mut service = second.service::<u64, u64>("double").expect("a service");
    let peer = peers.wait_for(address).expect("it is connected");
    let caller = peer.caller::<u64, u64>("double").expect("a caller");
    thread::scope(|scope| {
        let call = scope.spawn(|| caller.call(&4).map(|reply| u64::from(*reply)));
        answer_one(&mut service);
        assert_eq!(call.join().expect("no panic").expect("an answer"), 8);
    });

    // The end of the abandoned session is an event of the node, and not of the kept peers.
    let old = first.id();
    let _ = first.close(Duration::ZERO);
    loop {
        let event = of_node.next_timeout(WATCHDOG).expect("an event in time");
        if matches!(event, Event::Gone { peer, .. } if peer == old) {
            break;
        }
    }
    let third = serve();
    // A service that closes at once is left in the same way.
    let old = second.id();
    second.drain(Duration::ZERO);
    drop(second);
    expect_move(&mut events, sessions, Some(old), &third);
    assert_lead_to(&third, &peers, &both, sessions);
}
