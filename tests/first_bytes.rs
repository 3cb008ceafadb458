//! A connection is reset, ended or held up before each of its first bytes, in each direction:
//! through the whole handshake and the first frames of both fabrics.
//!
//! A connecting node gets a session or an error. A session carries a message or ends by an error;
//! one that is only held up continues. The listener serves everyone afterwards.
#![forbid(unsafe_code)]

use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use ibex::{Event, Fabric, FanInEvent, Node, Policy, Raw, WaitErrorKind};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::connect_unspec,
};

/// A harm to a connection, before a given byte of a direction.
#[derive(Clone, Copy, Debug)]
struct Harm {
    kind: Kind,
    is_back: bool,
    before: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Reset,
    End,
    Hold,
}

#[test]
fn over_shm() {
    each_of_the_first_bytes(Fabric::Shm);
}

#[test]
fn over_tcp() {
    each_of_the_first_bytes(Fabric::Tcp);
}

fn each_of_the_first_bytes(fabric: Fabric) {
    let server = Node::listen("127.0.0.1:0").expect("a node");
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
    let places: Vec<Harm> = (0..FIRST_BYTES).flat_map(harms_before).collect();
    let next = AtomicUsize::new(0);
    let done = AtomicUsize::new(0);
    thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                while let Some(harm) = places.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let was_harmed = meet(fabric, address, *harm);
                    done.fetch_add(usize::from(was_harmed), Ordering::Relaxed);
                }
            });
        }
    });
    let done = done.into_inner();
    println!("{fabric}: harmed at {done} places of {}", places.len());
    // The handshake alone has more than a hundred bytes each way.
    assert!(done > 600, "{done} places");
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

fn harms_before(before: u64) -> impl Iterator<Item = Harm> {
    let harms = move |kind| {
        [false, true].map(|is_back| Harm {
            kind,
            is_back,
            before,
        })
    };
    [Kind::Reset, Kind::End, Kind::Hold]
        .into_iter()
        .flat_map(harms)
}

/// Runs one session, whose first connection is harmed. Returns whether the connection reached that
/// byte.
fn meet(fabric: Fabric, address: SocketAddr, harm: Harm) -> bool {
    let (relay, was_harmed) = relay(address, harm).expect("a relay");
    // A connection that is only held up succeeds; after other harms, the listener may be lost to
    // the client.
    let connect_timeout = match harm.kind {
        Kind::Hold => PATIENCE,
        Kind::Reset | Kind::End => HOPELESS,
    };
    let node = Node::builder()
        .fabric(fabric, Policy::Require)
        .connect_timeout(connect_timeout)
        .window_messages(16)
        .window_bytes(64 << 10)
        .build();
    let node = node.expect("a node");
    let conversed = converse(&node, relay);
    if harm.kind == Kind::Hold {
        assert_eq!(conversed, Ok(()), "{harm:?}");
    }
    drop(node);
    was_harmed.load(Ordering::Relaxed)
}

fn converse(node: &Node, relay: SocketAddr) -> Result<(), String> {
    let peer = node.connect(relay).map_err(|error| error.to_string())?;
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

/// Returns an address that leads `there`, and harms the first connection; later ones are unharmed.
fn relay(there: SocketAddr, harm: Harm) -> io::Result<(SocketAddr, Arc<AtomicBool>)> {
    let listener = TcpListener::bind((RELAYS, 0))?;
    let address = listener.local_addr()?;
    let was_harmed = Arc::new(AtomicBool::new(false));
    let tell = was_harmed.clone();
    thread::spawn(move || {
        for connection in 0..2 {
            // A client that dials again does so soon.
            let soon = if connection == 0 { PATIENCE } else { SOON };
            let soon = Timespec::try_from(soon).expect("a short time");
            let mut knocks = [PollFd::new(&listener, PollFlags::IN)];
            if poll(&mut knocks, Some(&soon))? == 0 {
                break;
            }
            let (client, _) = listener.accept()?;
            let server = TcpStream::connect(there)?;
            for is_back in [false, true] {
                let (from, to) = match is_back {
                    false => (client.try_clone()?, server.try_clone()?),
                    true => (server.try_clone()?, client.try_clone()?),
                };
                let harm = (connection == 0 && harm.is_back == is_back).then_some(harm);
                let tell = tell.clone();
                thread::spawn(move || pass_on(from, to, harm, &tell));
            }
        }
        Ok::<_, io::Error>(())
    });
    Ok((address, was_harmed))
}

fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    harm: Option<Harm>,
    was_harmed: &AtomicBool,
) -> io::Result<()> {
    if let Some(Harm { kind, before, .. }) = harm {
        let passed = io::copy(&mut (&from).take(before), &mut to)?;
        if passed == before {
            // The next byte has arrived.
            let mut next = [0];
            from.read_exact(&mut next)?;
            was_harmed.store(true, Ordering::Relaxed);
            match kind {
                Kind::Reset => [&from, &to].into_iter().try_for_each(connect_unspec)?,
                Kind::End => [&from, &to]
                    .into_iter()
                    .try_for_each(|end| end.shutdown(Shutdown::Both))?,
                Kind::Hold => thread::sleep(HELD),
            }
            to.write_all(&next)?;
        }
    }
    io::copy(&mut from, &mut to)?;
    to.shutdown(Shutdown::Write)
}

/// More bytes than the handshake and the first frames have, in either direction.
const FIRST_BYTES: u64 = 500;
/// The relays' address on loopback, where they use thousands of ports. Other tests, which need
/// their ports again, listen at another address.
const RELAYS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// Connections at a time, most of which wait.
const AT_ONCE: usize = 64;
const SOON: Duration = Duration::from_millis(200);
const HELD: Duration = Duration::from_millis(20);
/// The time after which a node stops dialing an address without a listener.
const HOPELESS: Duration = Duration::from_secs(5);
/// A watchdog's time: nothing takes so long on any machine.
const PATIENCE: Duration = Duration::from_secs(300);
