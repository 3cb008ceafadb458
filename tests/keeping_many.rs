//! A node that keeps thousands of addresses connected at which nobody answers.
#![forbid(unsafe_code)]

use std::{
    error::Error,
    fmt,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, channel},
    },
    thread,
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Node,
    discovery::{Discovery, Found, PeersEvent},
};
use ibex_harness::events::Each;
use tracing::{
    Event, Level,
    field::{Field, Visit},
};

/// The time-out of events that must come.
const WATCHDOG: Duration = Duration::from_secs(300);
const DEAD: u64 = 20_000;

/// The warnings that this process has logged, and the number of others that they tell.
#[derive(Default)]
struct Warnings {
    lines: AtomicU64,
    told: AtomicU64,
}

struct Reading<'a>(&'a Warnings);

impl Visit for Reading<'_> {
    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "count" {
            // Such a line tells of others and of none itself.
            self.0.told.fetch_add(value, Ordering::Relaxed);
            self.0.told.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}

/// The addresses as the test tells them.
struct Told(Receiver<Vec<SocketAddr>>);

impl Discovery for Told {
    fn find(&mut self) -> Result<Found, Box<dyn Error + Send + Sync>> {
        Ok(Found::new(self.0.recv()?).again_in(Duration::ZERO))
    }
}

#[test]
fn thousands_of_dead_addresses_are_a_few_warnings_and_hold_up_no_living_one() {
    let warnings = Arc::<Warnings>::default();
    let kept = warnings.clone();
    let log = Each(move |event: &Event<'_>| {
        if *event.metadata().level() == Level::WARN {
            kept.lines.fetch_add(1, Ordering::Relaxed);
            event.record(&mut Reading(&kept));
        }
    });
    log.take_over();
    let none: [(&str, &str); 0] = [];
    let builder = || Node::builder().environment(none);
    let replica = builder().listen("127.0.0.1:0").build().expect("a node");
    let living = replica.local_addr().and_then(ibex::Address::inet);
    let living = living.expect("it listens");
    // Every address of the loopback network refuses connections to this port.
    let vacant = TcpListener::bind("0.0.0.0:0").expect("a port");
    let port = vacant.local_addr().expect("it is bound").port();
    drop(vacant);
    let dead = (0..DEAD).map(|number| {
        let [.., high, low] = number.to_be_bytes();
        SocketAddr::from(([127, 9, high, low], port))
    });
    let dead: Vec<_> = dead.collect();

    let start = Instant::now();
    let node = builder().build().expect("a node");
    let (tell, told) = channel();
    let peers = node.keep_connected(Told(told)).expect("threads");
    tell.send(dead.clone()).expect("it is asked");
    let mut events = peers.events();
    let mut not_reached = 0;
    while not_reached + events.dropped() < DEAD {
        match events.next_timeout(WATCHDOG).expect("an event in time") {
            PeersEvent::NotReached { .. } => not_reached += 1,
            other => panic!("another event: {other}"),
        }
    }
    // The dead ones are dialed again and again by now.
    tell.send(dead.into_iter().chain([living]).collect())
        .expect("it is asked");
    let peer = peers.wait_for_timeout(living, WATCHDOG);
    assert_eq!(peer.expect("it answers").id(), replica.id());

    drop((peers, events));
    let _ = node.close(Duration::ZERO);
    drop(node);
    // The last number comes when the node's threads have ended.
    let count = || {
        let [lines, told] = [&warnings.lines, &warnings.told];
        let lines = lines.load(Ordering::Relaxed);
        (lines, lines + told.load(Ordering::Relaxed))
    };
    while count().1 < DEAD {
        assert!(start.elapsed() < WATCHDOG, "{:?}", count());
        thread::sleep(Duration::from_millis(1));
    }
    let periods = start.elapsed().as_secs() / 10 + 1;
    let (lines, _) = count();
    // Five of a period, and the number of the others.
    assert!(lines <= 6 * periods + 1, "{lines} lines");
}
