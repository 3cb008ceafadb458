//! Places of sessions that have lost their connections, when a node has no free place.

use ibex_harness::wait_until;
use std::{
    net::{SocketAddr, TcpListener},
    time::{Duration, Instant},
};

use ibex::{ConnectError, ConnectErrorKind, Event, Events, Fabric, Node, Peer, PeerId, Security};
use ibex_harness::{
    authority::Request,
    proxy::{Harm, Proxy},
};

use super::{A, B, Folder, address, builder, certificate, talk};

const PLACES: u32 = 4;
/// A time far longer than anything here takes.
const LONG: Duration = Duration::from_secs(600);

fn server(security: Security) -> Node {
    let builder = builder(Fabric::Tcp).listen("127.0.0.1:0");
    let builder = builder.security(security).session_timeout(LONG);
    builder.max_node_sessions(PLACES).build().unwrap()
}

fn client(security: Security) -> Node {
    let builder = builder(Fabric::Tcp).security(security);
    builder.session_timeout(LONG).build().unwrap()
}

/// Breaks all connections through the proxy, and lets none through.
fn suspend(proxy: &Proxy, sessions: u64, events: &mut Events) {
    proxy.set_target(nobody());
    (0..sessions).for_each(|_| assert!(proxy.harm_one(Harm::Reset, Duration::ZERO)));
    let mut suspended = 0;
    while suspended < sessions {
        let event = events.next_timeout(LONG).expect("a session is suspended");
        suspended += u64::from(matches!(event, Event::Suspended { .. }));
    }
}

/// Returns an address at which nobody listens.
fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap()
}

#[track_caller]
fn assert_full(error: &ConnectError) {
    assert_eq!(error.kind(), ConnectErrorKind::Refused);
    assert!(error.to_string().contains("max_node_sessions"), "{error}");
}

/// Returns the peer whose session is gone next, and why.
fn next_gone(events: &mut Events) -> (PeerId, String) {
    loop {
        let event = events.next_timeout(LONG).expect("a session is gone");
        if let Event::Gone { peer, cause, .. } = event {
            return (peer, cause.to_string());
        }
    }
}

/// It takes all places, and leaves its sessions behind without a connection.
#[test]
fn a_certificate_whose_sessions_are_suspended_keeps_nobody_out() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let server = server(issue("server", "spiffe://test/server"));
    let mut events = server.events();
    let proxy = Proxy::start(address(&server)).unwrap();
    let (a, b) = (client(issue("a", A)), client(issue("b", B)));
    let of_b: Vec<Peer> = (0..PLACES)
        .map(|_| b.connect(proxy.address()).unwrap())
        .collect();
    let here: Vec<Peer> = (0..PLACES).map(|_| server.accept().unwrap()).collect();
    assert_full(&a.connect(address(&server)).expect_err("all are connected"));
    suspend(&proxy, u64::from(PLACES), &mut events);

    // Refused for as long as the sessions of b had a connection.
    let to_server = loop {
        match a.connect(address(&server)) {
            Ok(peer) => break peer,
            Err(error) => assert_full(&error),
        }
    };
    talk(&to_server, &server.accept().unwrap(), "a");
    let (gone, why) = next_gone(&mut events);
    assert_eq!(gone, b.id());
    assert!(why.contains("max_node_sessions"), "{why}");

    // The others go on.
    proxy.set_target(address(&server));
    let resumed = || here.iter().filter(|peer| peer.stats().resumes > 0).count();
    wait_until(|| resumed() >= here.len() - 1);
    wait_until(|| of_b.iter().any(Peer::is_gone));
    assert_full(&a.connect(address(&server)).expect_err("no place is free"));
}

/// The session of an honest peer waits, and another certificate dials and dials.
#[test]
fn a_certificate_does_not_end_the_suspended_session_of_another() {
    let folder = Folder::new();
    let authority = folder.authority();
    let issue = |name, uri| certificate(&authority.issue(&Request::new(name, &[uri])).unwrap());
    let server = server(issue("server", "spiffe://test/server"));
    let mut events = server.events();
    let proxy = Proxy::start(address(&server)).unwrap();
    let (a, b) = (client(issue("a", A)), client(issue("b", B)));
    let began = Instant::now();
    let to_server = a.connect(proxy.address()).unwrap();
    let of_a = server.accept().unwrap();
    talk(&to_server, &of_a, "before");
    suspend(&proxy, 1, &mut events);
    let connected = began.elapsed();

    let suspended = Instant::now();
    let mut of_b = Vec::new();
    while of_b.len() < PLACES as usize || suspended.elapsed() < 2 * connected {
        match b.connect(address(&server)) {
            Ok(peer) => of_b.push(peer),
            Err(error) => {
                assert_full(&error);
                assert_eq!(of_b.len(), PLACES as usize - 1);
                if suspended.elapsed() > 2 * connected {
                    break;
                }
            }
        }
    }
    assert!(!of_a.is_gone());
    proxy.set_target(address(&server));
    talk(&to_server, &of_a, "after");
    assert!(of_a.stats().resumes > 0);
}
