//! A dialer in a process that has run out of descriptors. The test has a process of its own, since
//! it lowers the limit.

mod common;

use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use common::dialing::Turned;
use common::{has_bytes, node};
use ibex_bootstrap::{DialError, DialOutcome, HandshakeError, negotiate::Party};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes every descriptor that the process may still have, by lowering the limit to those that it
/// has.
fn exhaust(any: impl AsFd) -> Vec<OwnedFd> {
    let highest = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest = highest.filter_map(|fd| fd.unwrap().file_name().to_str()?.parse().ok());
    let highest: i32 = highest.max().unwrap();
    let mut taken = vec![any.as_fd().try_clone_to_owned().unwrap()];
    while taken.last().is_some_and(|last| last.as_raw_fd() < highest) {
        taken.push(any.as_fd().try_clone_to_owned().unwrap());
    }
    let last = taken.last().unwrap().as_raw_fd();
    let limit = getrlimit(Resource::Nofile);
    let current = Some(last as u64 + 1);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
    taken
}

#[test]
fn without_descriptors_a_dial_waits_and_a_silent_peer_makes_room() {
    let before = getrlimit(Resource::Nofile);
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let dead = silent.local_addr().unwrap();
    let mut here = Turned::new(node(1));

    // A dial that has none in all its time says so, and what to do.
    let taken = exhaust(&silent);
    let _in_vain = here.request(0, dead, Duration::from_millis(300), true);
    let (_, outcome) = here.outcome();
    let DialOutcome::Dialed(Err(error)) = outcome else {
        panic!("{outcome:?}");
    };
    let DialError::Handshake { source, .. } = &error else {
        panic!("{error:?}");
    };
    let (end, limit) = (Party::Dialer, getrlimit(Resource::Nofile).current);
    let limit = limit.unwrap().try_into().unwrap();
    assert_eq!(*source, HandshakeError::Descriptors { end, limit });
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    drop(taken);
    setrlimit(Resource::Nofile, before).unwrap();

    // Attempts at peers that are silent have all descriptors, more than a dialer keeps free.
    let dials: Vec<_> = (0..64).map(|_| here.dial(0, dead)).collect();
    let mut accepted = Vec::new();
    while accepted.len() < dials.len() {
        here.dialer.turn(Instant::now());
        if has_bytes(&silent) {
            accepted.push(silent.accept().unwrap());
        }
    }
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = exhaust(&silent);
    let live = here.dial(1, other.local_addr().unwrap());
    while !has_bytes(&other) {
        here.turn();
    }
    setrlimit(Resource::Nofile, before).unwrap();
    drop((live, dials, taken, accepted));
}
