//! A sealed ping-pong while strangers connect to its listener, send a part of their Hello, and
//! stay.

use std::{
    collections::VecDeque,
    io::Write,
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

use ibex::{Driver, Fabric, Node, NodeBuilder, Policy, Raw, Security, SharedSecret, Wait};
use ibex_harness::cores::{self, Cores};

use crate::Outcome;

/// The median one-way time of a message, alone and in a flood of strangers.
pub(crate) struct Figures {
    pub(crate) alone: Duration,
    pub(crate) flooded: Duration,
    /// Strangers that connected during the flood.
    pub(crate) strangers: usize,
}

pub(crate) fn measure(rounds: usize, cores: Cores) -> Outcome<Figures> {
    let acceptor = builder()?.listen("127.0.0.1:0").build()?;
    let address = acceptor.local_addr().ok_or("it listens")?;
    let answering = thread::spawn(move || -> Outcome {
        cores::keep_to(&cores[1..])?;
        let peer = acceptor.accept()?;
        let mut receiver = peer.channel("there").codec::<Raw>().receiver::<[u8]>()?;
        let mut sender = peer.channel("back").codec::<Raw>().sender::<[u8]>()?;
        for _ in 0..2 * rounds {
            drop(receiver.recv()?);
            sender.send(&[1; 64][..])?;
        }
        let _ = acceptor.close(LONG);
        Ok(())
    });
    let node = builder()?.build()?;
    let peer = node.connect(address)?;
    let mut sender = peer.channel("there").codec::<Raw>().sender::<[u8]>()?;
    let mut receiver = peer.channel("back").codec::<Raw>().receiver::<[u8]>()?;
    let mut median = || -> Outcome<Duration> {
        let mut times = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            let begun = Instant::now();
            sender.send(&[1; 64][..])?;
            drop(receiver.recv()?);
            times.push(begun.elapsed() / 2);
        }
        times.sort_unstable();
        Ok(times[rounds / 2])
    };
    let alone = median()?;
    let is_over = AtomicBool::new(false);
    let (flooded, strangers) = thread::scope(|scope| {
        let flood = scope.spawn(|| flood(address.inet().expect("of TCP"), &is_over));
        let flooded = median();
        is_over.store(true, Ordering::Relaxed);
        (flooded, flood.join())
    });
    let _ = node.close(LONG);
    answering.join().map_err(|_| "the other end panicked")??;
    Ok(Figures {
        alone,
        flooded: flooded?,
        strangers: strangers.map_err(|_| "a stranger panicked")?,
    })
}

/// Connects once a millisecond, so that the flood itself takes little of a core, and keeps the last
/// [`HALF_OPEN`] connections. Returns the number of connections made.
fn flood(address: SocketAddr, is_over: &AtomicBool) -> usize {
    let mut open = VecDeque::new();
    let mut strangers = 0;
    while !is_over.load(Ordering::Relaxed) {
        if let Ok(mut stranger) = TcpStream::connect(address) {
            // These are the first bytes of a Hello: the listener waits for the rest.
            let _ = stranger.write_all(b"ibex");
            open.push_back(stranger);
            strangers += 1;
        }
        if open.len() > HALF_OPEN {
            open.pop_front();
        }
        thread::sleep(Duration::from_millis(1));
    }
    strangers
}

fn builder() -> Outcome<NodeBuilder> {
    let bytes = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(1));
    let builder = Node::builder()
        .fabric(Fabric::Tcp, Policy::Require)
        .driver(Driver::Caller)
        .wait(Wait::BusyPoll);
    Ok(builder.security(Security::shared_secret(SharedSecret::from_bytes(bytes)?)))
}

/// Connections that strangers keep: more than the listener has places for.
const HALF_OPEN: usize = 500;
const LONG: Duration = Duration::from_secs(60);
