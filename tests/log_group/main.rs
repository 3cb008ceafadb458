//! One log for several far ends, which come, end and come back at different times.
#![forbid(unsafe_code)]

mod catching_up;
#[path = "../common/log_lines.rs"]
#[allow(dead_code, reason = "other tests use more of it")]
mod log_lines;
mod losses;
#[path = "../common/numbers.rs"]
mod numbers;
#[path = "../common/over.rs"]
mod over;
mod quorums;
mod until_acked;

use std::{error::Error, net::SocketAddr, thread, time::Duration};

use ibex::{
    Driver, Node, NodeBuilder, Peer, Pod, Receiver,
    log::{LogAnswer, LogGroup, LogMember, LogMemberState, LogSent, LogSource, LogTurn},
};
use numbers::{Disk, Numbers, SourceResult, await_next, numbers};
use over::Over;

/// The last message; each message is the number of its place.
const END: u64 = 3_000;
/// A time-out of calls that are to time out.
const SOON: Duration = Duration::from_millis(20);
/// The time after which a test that waits for an event fails.
const WATCHDOG: Duration = Duration::from_secs(120);

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

/// Takes what comes until the far end has the numbers up to `until`, or the channel ends.
fn follow(peer: &Peer, disk: &Disk, until: u64) {
    follow_after(peer, disk, until, || ());
}

/// Does the same, and calls `before` when it has told its position.
fn follow_after(peer: &Peer, disk: &Disk, until: u64, before: impl FnOnce()) {
    let channel = peer.channel("numbers").codec::<Pod>();
    let mut numbers: Receiver<u64, Pod> = channel.receiver().expect("a receiver");
    let positions = peer.channel("position").codec::<Pod>().sender::<u64>();
    let mut positions = positions.expect("a sender");
    positions.send(&disk.position()).expect("it is sent");
    before();
    while disk.position() < until
        && let Ok(Some(number)) = numbers.next()
    {
        disk.apply(*number);
        number.ack();
    }
    if until == END {
        // The group sees that everything is acknowledged, and ends the channel.
        assert!(numbers.next().expect("an orderly end").is_none());
    }
}

/// Takes and acknowledges the numbers up to `end`, behind which the group ends the channel.
fn take_to_the_end(mut numbers: Receiver<u64, Pod>, end: u64) {
    for expected in 1..=end {
        let number = await_next(&mut numbers);
        assert_eq!(*number, expected);
        number.ack();
    }
    assert!(numbers.next().expect("an orderly end").is_none());
}

/// Runs a far end that listens at `address`, for one session.
fn replica(over: &Over, address: SocketAddr, disk: &Disk, until: u64) {
    replica_after(over, address, disk, until, || ());
}

/// Does the same, and calls `before` when it has told its position.
fn replica_after(over: &Over, address: SocketAddr, disk: &Disk, until: u64, before: impl FnOnce()) {
    let node = over.builder(Driver::Threads).listen(address).build();
    let node = node.expect("a node");
    let peer = node.accept().expect("the group connects");
    follow_after(&peer, disk, until, before);
    let _ = node.close(Duration::MAX);
}

fn cells() -> impl Iterator<Item = (Over, Driver)> {
    let drivers = [Driver::Threads, Driver::Caller];
    let overs = Over::each().into_iter();
    overs.flat_map(move |over| drivers.map(|driver| (over.clone(), driver)))
}

/// A group's node, and nodes that have connected to it.
struct Star {
    node: Node,
    fars: Vec<Node>,
    /// The sessions at the group's node, and the same ones at the others.
    here: Vec<Peer>,
    there: Vec<Peer>,
}

impl Star {
    fn over(over: &Over, driver: Driver, count: usize) -> Star {
        Star::around(over, over.builder(driver), count)
    }

    fn around(over: &Over, builder: NodeBuilder, count: usize) -> Star {
        let node = builder.listen("127.0.0.1:0").build().expect("a node");
        let address = node.local_addr().expect("it listens");
        let mut star = Star {
            node,
            fars: Vec::new(),
            here: Vec::new(),
            there: Vec::new(),
        };
        for _ in 0..count {
            let far = over.builder(Driver::Threads).build().expect("a node");
            thread::scope(|scope| {
                let there = scope.spawn(|| far.connect(address).expect("it listens"));
                star.here.push(star.node.accept().expect("it connects"));
                star.there.push(there.join().expect("no panic"));
            });
            star.fars.push(far);
        }
        star
    }

    fn group(&self) -> LogGroup<u64, Pod> {
        let mut group = LogGroup::new();
        for peer in &self.here {
            group.join(peer.clone());
        }
        group
    }
}

fn in_state(group: &LogGroup<u64, Pod>, index: usize) -> LogMemberState {
    let LogMember { state, .. } = &group.members()[index];
    state.clone()
}

/// A log whose source answers by the place of the peer in a list.
struct ByPeer<A> {
    numbers: Numbers,
    peers: Vec<Peer>,
    answer: A,
}

impl<A: FnMut(usize) -> SourceResult<u64>> LogSource<u64, Pod> for ByPeer<A> {
    fn end(&self) -> u64 {
        self.numbers.end
    }

    fn resume(&mut self, peer: Peer) -> LogAnswer<u64, Pod> {
        let place = self.peers.iter().position(|one| one.id() == peer.id());
        let answer = (self.answer)(place.expect("it is listed"));
        Box::pin(async move {
            let position = answer?;
            Ok((numbers(&peer)?, position))
        })
    }

    fn send_next(&mut self, position: u64, turn: LogTurn<'_, u64, Pod>) -> SourceResult<LogSent> {
        self.numbers.send_next(position, turn)
    }
}
