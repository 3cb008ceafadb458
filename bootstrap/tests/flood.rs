//! A listener under a flood of connections that say nothing. In a process of
//! its own, for it needs the descriptors.

mod common;

use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{LONG, Listening, dial_node_1, node};
use ibex_bootstrap::Problem;
use ibex_bootstrap::handshake::Step;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn an_honest_peer_gets_through_two_thousand_silent_ones() {
    let flood = 2000.min(room_for_descriptors());
    let mut local = node(2);
    local.max_pending = 256;
    let listening = Listening::with(local);
    let silent: Vec<TcpStream> = (0..flood)
        .map(|_| TcpStream::connect(&listening.address).unwrap())
        .collect();
    // With the flood standing, and its deadline far away.
    dial_node_1(&listening.address).unwrap();
    listening.established.recv_timeout(LONG).unwrap();
    let failure = listening.failures.recv_timeout(LONG).unwrap();
    assert!(
        matches!(
            failure.problem,
            Problem::Crowded {
                step: Step::Hello,
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
