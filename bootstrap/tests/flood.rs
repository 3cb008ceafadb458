//! A listener under a flood of connections that send nothing. The test has a process of its own,
//! since it needs the descriptors.

mod common;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use common::secured::{first_flights, secured};
use common::{LONG, Listening, dial_node_1, has_bytes, is_readable, node};
use ibex_bootstrap::handshake::HandshakeStep;
use ibex_bootstrap::{Acceptor, Problem};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};

#[test]
fn an_honest_peer_gets_through_two_thousand_silent_ones() {
    let flood = 2000.min(room_for_descriptors());
    let mut local = node(2);
    local.max_pending = 256;
    let listening = Listening::with(local);
    let silent: Vec<TcpStream> = (0..flood)
        .map(|_| TcpStream::connect(&listening.address).unwrap())
        .collect();
    // The flood stands, and its deadline is far away.
    dial_node_1(&listening.address).unwrap();
    listening.established.recv_timeout(LONG).unwrap();
    let failure = listening.failures.recv_timeout(LONG).unwrap();
    assert!(
        matches!(
            failure.problem,
            Problem::Crowded {
                step: HandshakeStep::Hello,
                max_pending: 256
            }
        ),
        "{failure}"
    );
    drop(silent);
}

#[test]
fn honest_peers_get_through_while_the_flood_goes_on() {
    let mut local = node(2);
    local.max_pending = 8;
    let listening = Listening::with(local);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut silent = std::collections::VecDeque::new();
            while !over.load(Ordering::Relaxed) {
                // A refusal would mean that the listener has gone.
                silent.push_back(TcpStream::connect(&listening.address).unwrap());
                if silent.len() > 100 {
                    silent.pop_front();
                }
            }
        });
        let dialed: Vec<_> = (0..20).map(|_| dial_node_1(&listening.address)).collect();
        over.store(true, Ordering::Relaxed);
        for result in dialed {
            result.unwrap();
        }
    });
}

#[test]
fn a_turn_answers_only_a_few_strangers_that_make_it_compute() {
    let flights = first_flights(&secured(node(1)));
    let address = "127.0.0.1:0".parse().unwrap();
    let mut acceptor = Acceptor::bind(address, secured(node(2))).unwrap();
    let strangers: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stranger = TcpStream::connect(acceptor.local_addr()).unwrap();
            stranger.write_all(&flights).unwrap();
            stranger
        })
        .collect();
    let answered = || strangers.iter().filter(|one| has_bytes(one)).count();
    let (mut before, mut turns) = (0, 0);
    while before < strangers.len() {
        assert!(is_readable(&acceptor), "it forgets who waits");
        acceptor.turn(Instant::now());
        turns += 1;
        let now = answered();
        // The count covers the connections that were there and those that came.
        assert!(now - before <= 16, "{} in one turn", now - before);
        before = now;
    }
    assert!(turns >= 4, "{turns} turns");
}

#[test]
fn one_address_has_half_of_the_places() {
    let mut local = node(2);
    local.max_pending = 8;
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), local).unwrap();
    let address = acceptor.local_addr();
    let connect_from = |source: [u8; 4]| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        let source: SocketAddr = (source, 0).into();
        socket.bind(&source.into()).unwrap();
        socket.connect(&address.inet().unwrap().into()).unwrap();
        TcpStream::from(socket)
    };
    let mut turn = || {
        while is_readable(&acceptor) {
            acceptor.turn(Instant::now());
        }
        std::iter::from_fn(|| acceptor.poll_failure()).collect::<Vec<_>>()
    };
    let others: Vec<_> = (0..3).map(|_| connect_from([127, 0, 0, 2])).collect();
    assert!(turn().is_empty());
    // However many connections come, they displace each other and none of another address.
    let flood: Vec<_> = (0..20).map(|_| connect_from([127, 0, 0, 3])).collect();
    let displaced = turn();
    assert_eq!(displaced.len(), 16);
    for failure in displaced {
        assert!(
            matches!(failure.problem, Problem::Crowded { .. }),
            "{failure}"
        );
        let source = failure.address.unwrap().ip().unwrap();
        assert_eq!(source.to_string(), "127.0.0.3");
    }
    assert!(
        others.iter().all(|one| !has_bytes(one)),
        "they are connected"
    );
    drop(flood);
}

/// Returns the number of connections to itself that this process may hold, after raising its limit
/// as far as the system lets it.
fn room_for_descriptors() -> usize {
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: limit.maximum,
            ..limit
        },
    );
    let allowed = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(allowed)
        .unwrap_or(usize::MAX)
        .saturating_sub(600)
}
