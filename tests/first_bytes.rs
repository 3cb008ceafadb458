//! A connection is reset, ended or held up before each of its first bytes, in each direction:
//! through the whole handshake and the first frames of both fabrics.
//!
//! A connecting node gets a session or an error. A session carries a message or ends by an error;
//! one that is only held up continues. The listener serves everyone afterwards.
#![forbid(unsafe_code)]

mod extent;

use std::{
    net::SocketAddr,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use ibex::{Event, Fabric, FanInEvent, Node, Policy, Raw, WaitErrorKind};
use ibex_harness::proxy::{HARMS, Harm, Proxy};

#[test]
fn over_shm() {
    each_of_the_first_bytes(Fabric::Shm);
}

#[test]
fn over_tcp() {
    each_of_the_first_bytes(Fabric::Tcp);
}

fn each_of_the_first_bytes(fabric: Fabric) {
    let server = Node::builder().handshake_timeout(PATIENCE);
    let server = server.listen("127.0.0.1:0").build().expect("a node");
    let address = server.local_addr().expect("it listens");
    let events = server.events();
    let numbers = server.channel("numbers").codec::<Raw>();
    let mut numbers = numbers.fan_in::<[u8]>().expect("a fan-in");
    let serving = thread::spawn(move || {
        while let Some(event) = numbers.next() {
            if let FanInEvent::Message(_, message) = event {
                message.ack();
            }
        }
    });
    let places = (0..FIRST_BYTES)
        .flat_map(|at| HARMS.map(|harm| [(harm, false, at), (harm, true, at)]))
        .flatten();
    // In turn, each harm of a direction is played at every third byte.
    let is_its_turn = |&(number, (_, _, at)): &(usize, (Harm, bool, u64))| {
        extent::is_whole() || (number / 2 + at as usize).is_multiple_of(HARMS.len())
    };
    let places = places.enumerate().filter(is_its_turn);
    let places: Vec<_> = places.map(|(_, place)| place).collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(&place) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let was_harmed = meet(fabric, address.inet().expect("of TCP"), place);
                    done.fetch_add(usize::from(was_harmed), Ordering::Relaxed);
                }
            });
        }
    });
    let done = done.into_inner();
    println!("{fabric}: harmed at {done} places of {}", places.len());
    // The handshake alone has more than a hundred bytes each way.
    let least = if extent::is_whole() { 600 } else { 200 };
    assert!(done > least, "{done} places");
    // Nothing is to be delivered to sessions whose clients are gone.
    assert!(server.close(PATIENCE).undelivered.is_empty());
    serving.join().expect("it ends with the node");
    let (mut came, mut gone) = (0, 0);
    for event in events {
        came += u32::from(matches!(event, Event::Connected { .. }));
        gone += u32::from(matches!(event, Event::Gone { .. }));
    }
    // The oldest events are dropped; every session that appears at all appears with its end.
    assert!(gone >= came, "{came} sessions came and {gone} ended");
}

/// Runs one session, whose first connection is harmed. Returns whether the connection reached that
/// byte.
fn meet(fabric: Fabric, address: SocketAddr, place: (Harm, bool, u64)) -> bool {
    let (harm, is_back, at) = place;
    let proxy = Proxy::at_byte(address, harm, is_back, at).expect("a proxy");
    let node = Node::builder()
        .fabric(fabric, Policy::Require)
        .connect_timeout(PATIENCE)
        .handshake_timeout(PATIENCE)
        .open_timeout(PATIENCE)
        .window_messages(16)
        .window_bytes(64 << 10)
        .build();
    let node = node.expect("a node");
    let conversed = converse(&node, proxy.address());
    if harm == Harm::Stall {
        assert_eq!(conversed, Ok(()), "{place:?}");
    }
    drop(node);
    proxy.harmed(harm) > 0
}

fn converse(node: &Node, proxy: SocketAddr) -> Result<(), String> {
    let peer = node.connect(proxy).map_err(|error| error.to_string())?;
    let numbers = peer.channel("numbers").codec::<Raw>();
    let numbers = numbers.sender::<[u8]>().map_err(|error| error.to_string());
    let mut numbers = numbers?;
    let last = numbers.send(b"one").map_err(|error| error.to_string())?;
    match numbers.wait_acked_timeout(last, PATIENCE) {
        Err(error) if error.kind() == WaitErrorKind::Timeout => {
            panic!("neither acknowledged nor over")
        }
        answer => answer.map_err(|error| error.to_string()),
    }
}

/// More bytes than the handshake and the first frames have, in either direction.
const FIRST_BYTES: u64 = 500;
/// Connections at a time, most of which wait.
const AT_ONCE: usize = 64;
/// A watchdog's time: nothing takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(300);
