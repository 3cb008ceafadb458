//! Sessions whose port, address or MTU changes under them.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use ibex::Fabric;

use crate::{
    PATIENCE,
    guest::{Changed, guest, place_of_the_address},
    met::Met,
};

#[test]
fn a_port_that_goes_down_under_a_session_is_why_it_goes_over_tcp_and_the_next_one_works() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    let changed = Changed::by("ip link set v0 down", "ip link set v0 up");
    let cause = met.why_moved();
    assert!(cause.contains("rxe0"), "{cause}");
    // The reason is the error of the port itself, or that of the next attempt to use it.
    assert!(
        cause.contains("port 1: Error") || cause.contains(" is DOWN"),
        "{cause}"
    );
    drop(changed);
    met.carry();
    assert!(met.peers.iter().all(|peer| peer.fabric() == Fabric::Tcp));
    met.meet_again().carry();
}

#[test]
fn an_idle_session_outlives_a_port_that_was_down() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    drop(Changed::by("ip link set v0 down", "ip link set v0 up"));
    // The port becomes active a moment later.
    let state = "/sys/class/infiniband/rxe0/ports/1/state";
    let start = Instant::now();
    while !fs::read_to_string(state).is_ok_and(|state| state.contains("ACTIVE")) {
        assert!(start.elapsed() < PATIENCE, "the port stays down");
        thread::sleep(Duration::from_millis(10));
    }
    met.carry();
}

#[test]
fn an_address_that_goes_and_comes_back_at_another_index() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    let before = place_of_the_address().expect("the device has it");
    // Another address takes its place in the table.
    let _changed = Changed::by(
        "ip address del 192.0.2.1/24 dev v0; ip address add 198.51.100.9/24 dev v0; \
         ip address add 192.0.2.1/24 dev v0",
        "ip address del 198.51.100.9/24 dev v0",
    );
    let start = Instant::now();
    let after = loop {
        // The table follows a moment later.
        match place_of_the_address() {
            Some(place) if place != before => break place,
            place => assert!(start.elapsed() < PATIENCE, "{place:?} as {before}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    for _ in 0..10 {
        met.carry();
        thread::sleep(Duration::from_millis(100));
    }
    for peer in &met.peers {
        let stats = peer.stats();
        let (broke, went_on) = (stats.suspensions, stats.resumes);
        assert_eq!(broke, went_on, "from place {before} to {after}");
        assert!(!peer.is_gone());
    }
    met.meet_again().carry();
}

#[test]
fn another_mtu_under_a_session() {
    let Some(_guest) = guest() else { return };
    let mut met = Met::new();
    let _changed = Changed::by("ip link set v0 mtu 4200", "ip link set v0 mtu 1500");
    met.carry();
    met.meet_again().carry();
}
