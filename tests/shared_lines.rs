//! Engines write no cache line that another engine writes, and only an engine's own thread writes
//! its arrivals. The test needs a build that records the writes:
//! `RUSTFLAGS="--cfg record_writes" cargo test --test shared_lines` (stage `lines` of `cargo xtask
//! torture`).
#![cfg(record_writes)]
#![forbid(unsafe_code)]

use std::{collections::BTreeSet, sync::Barrier, thread, time::Duration};

use ibex::{Fabric, Node, NodeBuilder, Peer, Pod, Policy, Receiver, Sender};
use ibex_base::sync::{AtomicU64, Ordering, recorded};

const ENGINES: usize = 4;
const LONG: Duration = Duration::from_secs(120);
/// Messages in each direction over each session, before writes are recorded and during it.
const WARM_UP: u64 = 1_000;
const MESSAGES: u64 = 10_000;

fn builder(fabric: Fabric) -> NodeBuilder {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    builder.io_threads(ENGINES)
}

type Ends = (Sender<u64, Pod>, Receiver<u64, Pod>);

fn ends(peer: &Peer, [out, back]: [&str; 2]) -> Ends {
    let sender = peer.channel(out).codec::<Pod>().sender();
    let receiver = peer.channel(back).codec::<Pod>().receiver();
    (sender.expect("an end"), receiver.expect("an end"))
}

/// Echoes until the other end closes.
fn echo((mut sender, mut receiver): Ends) {
    while let Some(message) = receiver.next().expect("an orderly end") {
        sender.send(&*message).expect("sent");
    }
}

fn ask((sender, receiver): &mut Ends, messages: u64) {
    for number in 0..messages {
        sender.send(&number).expect("sent");
        assert_eq!(*receiver.recv_timeout(LONG).expect("it comes"), number);
    }
}

/// Lets each engine of two nodes carry messages of its own session. Returns the number of lines
/// that engines wrote, and the places in the source that write lines of several writers.
fn written(fabric: Fabric) -> (usize, Vec<BTreeSet<String>>) {
    let server = builder(fabric).listen("127.0.0.1:0").build();
    let server = server.expect("a node");
    let client = builder(fabric).build().expect("a node");
    let address = server.local_addr().expect("it listens");
    let sessions: Vec<[Peer; 2]> = (0..ENGINES)
        .map(|_| {
            let there = client.connect(address).expect("a session");
            [there, server.accept_timeout(LONG).expect("a session")]
        })
        .collect();
    for side in [0, 1] {
        let engines: BTreeSet<_> = sessions.iter().map(|ends| ends[side].engine()).collect();
        assert_eq!(engines.len(), ENGINES);
    }
    let all = Barrier::new(ENGINES + 1);
    thread::scope(|scope| {
        for [there, here] in &sessions {
            let mut asking = ends(there, ["ask", "answer"]);
            let echoing = ends(here, ["answer", "ask"]);
            scope.spawn(move || echo(echoing));
            let all = &all;
            scope.spawn(move || {
                ask(&mut asking, WARM_UP);
                all.wait();
                all.wait();
                ask(&mut asking, MESSAGES);
                all.wait();
            });
        }
        all.wait();
        recorded::begin();
        all.wait();
        all.wait();
        recorded::end()
    })
}

/// A line that two engine-turning threads write is found, with both places.
fn recorder_finds_a_line_of_two() {
    let (engines, word) = ([0_u32; 2], AtomicU64::new(0));
    recorded::begin();
    thread::scope(|scope| {
        scope.spawn(|| {
            let _turning = recorded::turning(&engines[0]);
            word.store(1, Ordering::Relaxed);
        });
        scope.spawn(|| {
            let _turning = recorded::turning(&engines[1]);
            word.fetch_add(1, Ordering::Relaxed);
        });
    });
    let (lines, shared) = recorded::end();
    assert_eq!((lines, shared.len()), (1, 1));
    assert_eq!(shared[0].len(), 2, "{shared:?}");
}

#[test]
fn no_two_engines_write_a_line() {
    recorder_finds_a_line_of_two();
    for fabric in [Fabric::Tcp, Fabric::Shm] {
        let (lines, shared) = written(fabric);
        eprintln!("{fabric:?}: engines wrote {lines} lines");
        assert!(lines >= 2 * ENGINES, "{fabric:?}: {lines} lines");
        assert!(shared.is_empty(), "{fabric:?}: {shared:#?}");
    }
    // The thread of each engine writes all of its arrivals, from the first byte behind a handshake
    // on. So it also touches its arrival memory first.
    let (arrivals, foreign) = recorded::arrivals();
    eprintln!("bytes arrived {arrivals} times");
    assert!(arrivals >= 2 * ENGINES as u64 * MESSAGES, "{arrivals}");
    assert_eq!(foreign, 0, "of {arrivals}");
}
