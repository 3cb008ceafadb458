//! A listener in a process that has run out of descriptors. The test has a process of its own,
//! since it lowers the limit.

mod common;

use std::net::TcpStream;
use std::time::{Duration, Instant};

use common::{node, wait_readable};
use ibex_bootstrap::{Acceptor, Problem};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

#[test]
fn without_descriptors_a_listener_rests_and_recovers() {
    let mut acceptor = Acceptor::bind("127.0.0.1:0".parse().unwrap(), node(2)).unwrap();
    let client = TcpStream::connect(acceptor.local_addr()).unwrap();
    assert!(wait_readable(&acceptor, Duration::from_secs(60)));

    let limit = getrlimit(Resource::Nofile);
    setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(0),
            ..limit
        },
    )
    .unwrap();
    let now = Instant::now();
    acceptor.turn(now);
    setrlimit(Resource::Nofile, limit).unwrap();

    let failure = acceptor.poll_failure().unwrap();
    assert!(
        matches!(failure.problem, Problem::Environment { .. }),
        "{failure}"
    );
    assert!(failure.to_string().contains("ulimit -n"), "{failure}");
    // The listener does not keep its engine awake for a connection that it cannot take.
    assert!(!wait_readable(&acceptor, Duration::ZERO));
    let rest = acceptor.next_deadline().unwrap();
    assert!(rest > now);

    acceptor.turn(rest);
    let pending = acceptor.next_deadline().unwrap();
    assert!(
        pending > rest,
        "the connection was accepted and has its deadline"
    );
    drop(client);
}
