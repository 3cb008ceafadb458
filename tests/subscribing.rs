//! When a peer is a subscriber, and what it costs a publisher to take one in again.

#[path = "common/over.rs"]
mod over;

use std::{
    thread,
    time::{Duration, Instant},
};

use ibex::{
    CloseReason, Driver, EndCause, FanIn, FanInEvent, Node, Peer, Pod, Publisher, Receiver,
    SendErrorKind, group::WhenFull,
};
use over::Over;

/// How long the tests wait for what must come.
const LONG: Duration = Duration::from_secs(120);

/// A node that publishes numbers, and one that subscribes.
struct Pair {
    nodes: [Node; 2],
    numbers: Publisher<u64, Pod>,
    peer: Peer,
}

impl Pair {
    /// A pair over each fabric.
    fn each(when_full: WhenFull) -> impl Iterator<Item = Self> {
        Over::each().into_iter().map(move |over| {
            let (node, address) = over.listener(Driver::Threads);
            let numbers = node.channel("numbers").codec::<Pod>().publisher();
            let reader = over.builder(Driver::Threads).build().expect("a node");
            let peer = reader.connect(address).expect("a session");
            Self {
                nodes: [node, reader],
                numbers: numbers.expect("a publisher").when_full(when_full),
                peer,
            }
        })
    }

    fn subscribe(&self, window: u64) -> Receiver<u64, Pod> {
        let numbers = self.peer.channel("numbers").codec::<Pod>();
        let numbers = numbers.window_messages(window).receiver();
        numbers.expect("a receiver")
    }
}

/// Sends `number`, and then zeros until the subscriber has a message. Returns the message.
fn first_behind(
    numbers: &mut Publisher<u64, Pod>,
    received: &mut Receiver<u64, Pod>,
    number: u64,
) -> u64 {
    numbers.send(&number).expect("sent");
    let give_up = Instant::now() + LONG;
    loop {
        if let Ok(message) = received.try_recv() {
            return *message;
        }
        assert!(Instant::now() < give_up, "nothing comes");
        // The window may be full of zeros that are still under way.
        let _ = numbers.try_send(&0);
        thread::yield_now();
    }
}

/// Each round is a subscription of its own, which begins while the one before it ends.
#[test]
fn what_is_sent_behind_opened_reaches_the_subscriber() {
    for mut pair in Pair::each(WhenFull::Wait) {
        let missed = (1..=ROUNDS).filter(|&number| {
            let mut received = pair.subscribe(1024);
            received.opened(LONG).expect("the publisher is there");
            first_behind(&mut pair.numbers, &mut received, number) != number
        });
        assert_eq!(missed.count(), 0, "of {ROUNDS} messages");
    }
}

const ROUNDS: u64 = 200;

#[test]
fn an_end_that_waited_for_its_publisher_is_a_subscriber_once_it_is_open() {
    for mut pair in Pair::each(WhenFull::Wait) {
        let later = pair.peer.channel("later").codec::<Pod>().receiver();
        let mut received: Receiver<u64, Pod> = later.expect("a receiver");
        let opening = thread::spawn(move || {
            received.opened(LONG).expect("the publisher is there");
            received
        });
        let [node, _] = &pair.nodes;
        let later = node.channel("later").codec::<Pod>().publisher();
        pair.numbers = later.expect("a publisher");
        let mut received = opening.join().expect("it is open");
        assert_eq!(first_behind(&mut pair.numbers, &mut received, 1), 1);
    }
}

/// A fan-in that is notified of a publisher is its subscriber.
#[test]
fn what_is_sent_behind_joined_reaches_the_fan_in() {
    for mut pair in Pair::each(WhenFull::Wait) {
        let [_, reader] = &pair.nodes;
        for number in 1..=ROUNDS {
            let received = reader.channel("numbers").codec::<Pod>().fan_in();
            let mut received: FanIn<u64, Pod> = received.expect("a fan-in");
            let joined = received.next_timeout(LONG).expect("it comes");
            assert!(matches!(joined, Some(FanInEvent::Joined(_))), "{joined:?}");
            pair.numbers.send(&number).expect("sent");
            // The next number tells whether this one was missed.
            let next = loop {
                match received.try_next() {
                    Ok(Some(FanInEvent::Message(_, message))) => break *message,
                    Err(_) => drop(pair.numbers.try_send(&0)),
                    other => panic!("{other:?}"),
                }
            };
            assert_eq!(next, number);
        }
    }
}

#[test]
fn who_stopped_a_publisher_waits_before_it_is_a_subscriber_again() {
    for mut pair in Pair::each(WhenFull::DropAfter(PATIENCE)) {
        let mut stopped = pair.subscribe(1);
        stopped.opened(LONG).expect("the publisher is there");
        for number in 1..=2 {
            pair.numbers.send(&number).expect("sent");
        }
        let lost = pair.numbers.next_lost().expect("it is lost");
        assert_eq!(lost.reason.kind(), SendErrorKind::Full, "{lost}");
        let lost_at = Instant::now();
        assert_eq!(*stopped.recv_timeout(LONG).expect("the first"), 1);
        let end = stopped.recv_timeout(LONG).expect_err("it was dropped");
        let no_room = EndCause::PeerClosed(CloseReason::NoRoom);
        assert_eq!(end.cause(), Some(&no_room), "{end}");
        drop(stopped);
        let mut again = pair.subscribe(1);
        let opening = thread::spawn(move || {
            again.opened(LONG).expect("the publisher is there");
            (again, Instant::now())
        });
        // Nothing that the peer does meanwhile keeps the publisher.
        while !opening.is_finished() && pair.numbers.subscribers().is_empty() {
            pair.numbers.try_send(&0).expect("sent");
            thread::yield_now();
        }
        let (mut again, opened_at) = opening.join().expect("it is open");
        let waited = opened_at - lost_at;
        assert!(waited >= PATIENCE * 20, "it is back after {waited:?}");
        let _ = pair.numbers.try_send(&3);
        assert_eq!(*again.recv_timeout(LONG).expect("a message") % 3, 0);
    }
}

/// How long the publisher waits for room.
const PATIENCE: Duration = Duration::from_millis(20);
