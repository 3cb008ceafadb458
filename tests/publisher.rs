//! A sender for all peers that subscribe: those present, those that come, and those that leave.

#[path = "common/over.rs"]
mod over;

mod counted;

use std::{
    net::SocketAddr,
    panic::{self, AssertUnwindSafe},
    pin::pin,
    task::{Context, Waker},
    thread,
    time::{Duration, Instant},
};

use counted::{Counted, Value};
use ibex::{
    CloseReason, Driver, EndCause, FanIn, FanInEvent, Node, OpenErrorKind, Peer, Pod, Publisher,
    Receiver, RecvErrorKind, SendErrorKind, group::WhenFull,
};
use over::Over;

/// How long the tests wait for what must come.
const LONG: Duration = Duration::from_secs(120);

/// A node that publishes numbers.
struct Newsroom {
    over: Over,
    address: SocketAddr,
    node: Node,
    numbers: Publisher<u64, Pod>,
}

/// A node that subscribes.
struct Reader {
    _node: Node,
    peer: Peer,
}

impl Newsroom {
    /// A newsroom over each fabric.
    fn each() -> impl Iterator<Item = Self> {
        Over::each().into_iter().map(|over| {
            let (node, address) = over.listener(Driver::Threads);
            let numbers = node
                .channel("numbers")
                .codec::<Pod>()
                .window_messages(WINDOW);
            let numbers = numbers.publisher().expect("a publisher");
            // No reader is dropped because this machine is slow.
            let numbers = numbers.when_full(WhenFull::Wait);
            Self {
                over,
                address,
                node,
                numbers,
            }
        })
    }

    fn reader(&self) -> Reader {
        let node = self.over.builder(Driver::Threads).build().expect("a node");
        let peer = node.connect(self.address).expect("a session");
        Reader { _node: node, peer }
    }

    /// Waits until there are so many subscribers.
    fn has_subscribers(&self, count: usize) {
        until(|| self.numbers.subscribers().len() == count);
    }
}

impl Reader {
    fn numbers(&self) -> Receiver<u64, Pod> {
        self.with_window(WINDOW)
    }

    fn with_window(&self, messages: u64) -> Receiver<u64, Pod> {
        let numbers = self.peer.channel("numbers").codec::<Pod>();
        let numbers = numbers.window_messages(messages).receiver();
        numbers.expect("a receiver")
    }
}

const WINDOW: u64 = 1024;

fn until(mut is_so: impl FnMut() -> bool) {
    let give_up = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < give_up, "it never comes to be so");
        thread::yield_now();
    }
}

/// Takes these messages, whose sequences begin with the receiver's first.
fn takes(receiver: &mut Receiver<u64, Pod>, numbers: impl IntoIterator<Item = u64>) {
    for number in numbers {
        let message = receiver.recv_timeout(LONG).expect("a message");
        assert_eq!(*message, number);
    }
}

fn ends(receiver: &mut Receiver<u64, Pod>) {
    let end = receiver.recv_timeout(LONG).expect_err("it is over");
    assert_eq!(end.kind(), RecvErrorKind::Ended, "{end}");
}

/// Checks that the publisher has closed the channel for this reason.
fn is_closed(receiver: &mut Receiver<u64, Pod>, reason: CloseReason) {
    let end = receiver.recv_timeout(LONG).expect_err("it is over");
    assert_eq!(end.kind(), RecvErrorKind::Disconnected, "{end}");
    assert_eq!(end.cause(), Some(&EndCause::PeerClosed(reason)), "{end}");
}

#[test]
fn who_subscribes_gets_all_that_follows() {
    for mut room in Newsroom::each() {
        let early = [room.reader(), room.reader()];
        let mut early = early.each_ref().map(Reader::numbers);
        room.has_subscribers(2);
        for number in 1..=50 {
            assert_eq!(room.numbers.send(&number).expect("sent"), number);
        }
        let late_reader = room.reader();
        let mut late = late_reader.numbers();
        room.has_subscribers(3);
        assert_eq!(room.numbers.subscribers()[2].joined_after, 50);
        for number in 51..=100 {
            assert_eq!(room.numbers.send(&number).expect("sent"), number);
        }
        assert!(room.numbers.close().is_empty(), "nobody was lost");
        for receiver in &mut early {
            takes(receiver, 1..=100);
            ends(receiver);
        }
        let first = late.recv_timeout(LONG).expect("a message");
        assert_eq!((*first, first.sequence()), (51, 1));
        takes(&mut late, 52..=100);
        ends(&mut late);
    }
}

#[test]
fn without_subscribers_nothing_is_encoded() {
    let node = Node::client().expect("a node");
    let values = node.channel("values").codec::<Counted>();
    let mut values = values.publisher::<Value>().expect("a publisher");
    let sent = [Value::new(None, 1), Value::refused(), Value::panicking(8)];
    for (sequence, value) in (1..).zip(&sent) {
        assert_eq!(values.try_send(value).expect("sent"), sequence);
        assert_eq!(value.encodings(), 0);
    }
    assert_eq!(values.sent(), 3);
    drop(node.close(Duration::ZERO));
    let error = values.send(&Value::new(None, 4)).expect_err("it is closed");
    assert_eq!(error.kind(), SendErrorKind::Disconnected, "{error}");
    assert_eq!(error.cause(), Some(&EndCause::NodeClosed), "{error}");
}

#[test]
fn a_peer_may_leave_and_come_back_while_the_publisher_is_silent() {
    for mut room in Newsroom::each() {
        let reader = room.reader();
        let other = room.reader();
        let mut steady = other.numbers();
        steady.opened(LONG).expect("the publisher is there");
        for _ in 0..ROUNDS {
            // The publisher is not called meanwhile.
            let mut numbers = reader.numbers();
            numbers.opened(LONG).expect("the publisher is there");
        }
        let mut numbers = reader.numbers();
        numbers.opened(LONG).expect("the publisher is there");
        room.has_subscribers(2);
        let mut lost = 0;
        while let Some(one) = room.numbers.next_lost() {
            assert_eq!(one.reason.kind(), SendErrorKind::Disconnected, "{one}");
            lost += 1;
        }
        assert!(lost <= 64, "a list of {lost} grows with a peer's whims");
        room.numbers.send(&7).expect("sent");
        takes(&mut numbers, [7]);
        takes(&mut steady, [7]);
    }
}

const ROUNDS: usize = 300;

/// Each of the closed ends is paired with an end of the publisher, which is over at once.
#[test]
fn a_peer_may_have_come_and_gone_many_times_before_there_is_a_publisher() {
    for mut room in Newsroom::each() {
        let reader = room.reader();
        let later = || reader.peer.channel("later").codec::<Pod>().receiver();
        for _ in 0..ROUNDS {
            let receiver: Receiver<u64, Pod> = later().expect("a receiver");
            drop(receiver);
        }
        let mut numbers: Receiver<u64, Pod> = later().expect("a receiver");
        room.numbers.close();
        let published = room.node.channel("later").codec::<Pod>().publisher();
        room.numbers = published.expect("a publisher");
        numbers.opened(LONG).expect("the publisher is there");
        room.has_subscribers(1);
        room.numbers.send(&7).expect("sent");
        takes(&mut numbers, [7]);
    }
}

#[test]
fn a_slow_subscriber_is_dropped_and_may_come_back() {
    for mut room in Newsroom::each() {
        room.numbers = room.numbers.when_full(WhenFull::DropAfter(Duration::ZERO));
        let readers = [room.reader(), room.reader()];
        let mut quick = readers[0].numbers();
        room.has_subscribers(1);
        let mut slow = readers[1].with_window(8);
        room.has_subscribers(2);
        for number in 1..=100 {
            room.numbers.send(&number).expect("sent");
        }
        takes(&mut quick, 1..=100);
        takes(&mut slow, 1..=8);
        is_closed(&mut slow, CloseReason::NoRoom);
        let lost = room.numbers.next_lost().expect("one is lost");
        assert_eq!(lost.reason.kind(), SendErrorKind::Full, "{lost}");
        assert_eq!((lost.joined_after, lost.counts.sent), (0, 8));
        drop(slow);
        let mut slow = readers[1].with_window(8);
        room.has_subscribers(2);
        room.numbers.send(&101).expect("sent");
        takes(&mut quick, [101]);
        takes(&mut slow, [101]);
    }
}

#[test]
fn a_task_is_not_held_up_by_a_subscriber_that_stops() {
    for mut room in Newsroom::each() {
        room.numbers = room.numbers.when_full(WhenFull::DropAfter(MOMENT));
        let readers = [room.reader(), room.reader()];
        let mut quick = readers[0].numbers();
        let mut stopped = readers[1].with_window(8);
        room.has_subscribers(2);
        smol::block_on(async {
            for number in 1..=100 {
                room.numbers.send_async(&number).await.expect("sent");
            }
        });
        takes(&mut quick, 1..=100);
        takes(&mut stopped, 1..=8);
        is_closed(&mut stopped, CloseReason::NoRoom);
    }
}

/// How long a publisher waits for room.
const MOMENT: Duration = Duration::from_millis(30);

#[test]
fn a_publisher_that_waits_sends_to_all_or_none() {
    for mut room in Newsroom::each() {
        let readers = [room.reader(), room.reader()];
        let mut quick = readers[0].numbers();
        let mut slow = readers[1].with_window(8);
        room.has_subscribers(2);
        for number in 1..=8 {
            room.numbers.send(&number).expect("sent");
        }
        let full = room.numbers.try_send(&9).expect_err("one is full");
        assert_eq!(full.kind(), SendErrorKind::Full, "{full}");
        assert!(full.is_transient() && full.member().is_some());
        // A future that is dropped has sent nothing to anyone.
        {
            let mut context = Context::from_waker(Waker::noop());
            let mut sending = pin!(room.numbers.send_async(&9));
            assert!(sending.as_mut().poll(&mut context).is_pending());
        }
        let releasing = thread::spawn(move || {
            takes(&mut slow, 1..=8);
            takes(&mut slow, 10..=30);
            ends(&mut slow);
        });
        smol::block_on(async {
            for number in 10..=30 {
                room.numbers.send_async(&number).await.expect("sent");
            }
            room.numbers.flush_async().await;
        });
        drop(room.numbers);
        releasing.join().expect("it has all of them");
        takes(&mut quick, (1..=8).chain(10..=30));
        ends(&mut quick);
    }
}

#[test]
fn a_subscriber_that_does_not_fit_hinders_no_other() {
    for mut room in Newsroom::each() {
        let readers = [room.reader(), room.reader(), room.reader()];
        let wrong = |peer: &Peer| {
            let letters = peer.channel("numbers").codec::<Pod>();
            letters.receiver::<u32>().expect("a receiver")
        };
        let mut mistaken = wrong(&readers[0].peer);
        let error = mistaken.opened(LONG).expect_err("another type");
        assert_eq!(error.kind(), RecvErrorKind::Mismatch, "{error}");
        let narrow = readers[1].peer.channel("numbers").codec::<Pod>();
        let mut narrow: Receiver<u64, Pod> =
            narrow.max_message_bytes(4).receiver().expect("a receiver");
        room.has_subscribers(1);
        let mut right = readers[2].numbers();
        room.has_subscribers(2);
        room.numbers.send(&1).expect("sent");
        takes(&mut right, [1]);
        is_closed(&mut narrow, CloseReason::NoRoom);
        let lost = room.numbers.next_lost().expect("one is lost");
        assert_eq!(lost.reason.kind(), SendErrorKind::TooLong, "{lost}");
        // Both come back as they should be.
        drop((mistaken, narrow));
        let mut corrected = [readers[0].numbers(), readers[1].numbers()];
        room.has_subscribers(3);
        room.numbers.send(&2).expect("sent");
        for receiver in &mut corrected {
            takes(receiver, [2]);
        }
        takes(&mut right, [2]);
    }
}

#[test]
fn a_name_has_one_publisher() {
    let over = Over::each().swap_remove(0);
    let (node, address) = over.listener(Driver::Threads);
    let publisher = |name: &str| node.channel(name).codec::<Pod>().publisher::<u64>();
    let first = publisher("numbers").expect("a publisher");
    let error = publisher("numbers").expect_err("the first has the name");
    assert_eq!(error.kind(), OpenErrorKind::AlreadyOpen, "{error}");
    assert_eq!(error.channel(), Some("numbers"));
    let client = over.builder(Driver::Threads).build().expect("a node");
    let there = client.connect(address).expect("a session");
    let here = node.accept().expect("a session");
    let mut numbers: Receiver<u64, Pod> = there
        .channel("numbers")
        .codec()
        .receiver()
        .expect("a receiver");
    numbers.opened(LONG).expect("the publisher is there");
    let sender = here.channel("numbers").codec::<Pod>().sender::<u64>();
    let error = sender.expect_err("the publisher has the name");
    assert_eq!(error.kind(), OpenErrorKind::AlreadyOpen, "{error}");
    drop(first);
    ends(&mut numbers);
    drop(publisher("numbers").expect("the name is free"));

    let nameless = publisher("").expect_err("no name");
    assert_eq!(nameless.kind(), OpenErrorKind::Name, "{nameless}");
    let none = node.channel("x").codec::<Pod>().window_messages(0);
    let none = none.publisher::<u64>().expect_err("no window");
    assert_eq!(none.kind(), OpenErrorKind::Setting, "{none}");
}

#[test]
fn a_subscriber_finds_the_next_publisher_of_the_name() {
    for mut room in Newsroom::each() {
        let readers = [room.reader(), room.reader()];
        let mut first = readers[0].numbers();
        room.has_subscribers(1);
        drop(room.numbers);
        let numbers = room.node.channel("numbers").codec::<Pod>().publisher();
        room.numbers = numbers.expect("the name is free");
        ends(&mut first);
        drop(first);
        let mut second = readers[1].numbers();
        let mut first = readers[0].numbers();
        room.has_subscribers(2);
        room.numbers.send(&1).expect("sent");
        takes(&mut first, [1]);
        takes(&mut second, [1]);
    }
}

#[test]
fn a_publisher_that_gives_up_is_not_taken_for_one_that_ends() {
    for panics in [true, false] {
        for mut room in Newsroom::each() {
            let reader = room.reader();
            let mut numbers = reader.numbers();
            room.has_subscribers(1);
            room.numbers.send(&1).expect("sent");
            match panics {
                true => {
                    let mut published = room.numbers;
                    let panicked = panic::catch_unwind(AssertUnwindSafe(move || {
                        published.send(&2).expect("sent");
                        panic!("in the middle of its work")
                    }));
                    panicked.expect_err("it panics");
                    takes(&mut numbers, [1, 2]);
                }
                false => {
                    room.numbers.abort();
                    takes(&mut numbers, [1]);
                }
            }
            is_closed(&mut numbers, CloseReason::Aborted);
        }
    }
}

#[test]
fn the_end_of_a_session_is_the_end_of_its_subscription() {
    for mut room in Newsroom::each() {
        let stays = room.reader();
        let mut numbers = stays.numbers();
        for _ in 0..3 {
            let leaves = room.reader();
            let mut left = leaves.numbers();
            left.opened(LONG).expect("the publisher is there");
            drop((leaves, left));
        }
        room.has_subscribers(1);
        room.numbers.send(&1).expect("sent");
        takes(&mut numbers, [1]);
        drop(room.node.close(Duration::from_secs(1)));
        let error = room.numbers.send(&2).expect_err("its node is closed");
        assert_eq!(error.kind(), SendErrorKind::Disconnected, "{error}");
    }
}

/// Takes the next message of any publisher.
fn next(numbers: &mut FanIn<u64, Pod>) -> u64 {
    loop {
        match numbers.next_timeout(LONG).expect("something comes") {
            Some(FanInEvent::Message(_, message)) => return *message,
            Some(FanInEvent::Joined(_)) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn fan_ins_receive_from_all_publishers_that_they_meet() {
    for mut room in Newsroom::each() {
        let (other, address) = room.over.listener(Driver::Threads);
        room.node.connect(address).expect("a session");
        let published = other.channel("numbers").codec::<Pod>().publisher();
        let mut published: Publisher<u64, Pod> = published.expect("a publisher");
        let third = room.over.builder(Driver::Threads).build().expect("a node");
        third.connect(room.address).expect("a session");
        third.connect(address).expect("a session");
        // Each of the three receives from all others.
        let fan_in = |node: &Node| {
            let numbers = node.channel("numbers").codec::<Pod>().fan_in();
            numbers.expect("a fan-in")
        };
        let (mut first, mut second) = (fan_in(&room.node), fan_in(&other));
        let mut third_end = fan_in(&third);
        // A fan-in takes peers in while it is called.
        until(|| {
            for numbers in [&mut first, &mut second, &mut third_end] {
                let _joined = numbers.try_next();
            }
            room.numbers.subscribers().len() == 2 && published.subscribers().len() == 2
        });
        room.numbers.send(&1).expect("sent");
        published.send(&2).expect("sent");
        assert_eq!((next(&mut first), next(&mut second)), (2, 1));
        let mut both = [next(&mut third_end), next(&mut third_end)];
        both.sort_unstable();
        assert_eq!(both, [1, 2]);
    }
}

#[test]
fn callers_that_turn_the_engine_publish_as_well() {
    for over in Over::each() {
        let (node, address) = over.listener(Driver::Caller);
        let numbers = node.channel("numbers").codec::<Pod>().publisher();
        let mut numbers: Publisher<u64, Pod> = numbers.expect("a publisher");
        let reader = over.builder(Driver::Threads).build().expect("a node");
        let connecting = thread::spawn(move || {
            let peer = reader.connect(address).expect("a session");
            (reader, peer)
        });
        until(|| {
            node.poll();
            connecting.is_finished()
        });
        let (_reader, peer) = connecting.join().expect("it connects");
        for round in 1..=3 {
            let received = peer.channel("numbers").codec::<Pod>().receiver();
            let mut received: Receiver<u64, Pod> = received.expect("a receiver");
            until(|| {
                node.poll();
                numbers.subscribers().len() == 1
            });
            numbers.send(&round).expect("sent");
            let receiving = thread::spawn(move || takes(&mut received, [round]));
            until(|| {
                node.poll();
                receiving.is_finished()
            });
            receiving.join().expect("it came");
            until(|| {
                node.poll();
                numbers.subscribers().is_empty()
            });
        }
    }
}

#[test]
fn tasks_that_drive_a_node_publish_as_well() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime");
    for over in Over::each() {
        runtime.block_on(async {
            let (node, address) = over.listener(Driver::Tasks);
            let numbers = node.channel("numbers").codec::<Pod>().publisher();
            let mut numbers: Publisher<u64, Pod> = numbers.expect("a publisher");
            let reader = over.builder(Driver::Tasks).build().expect("a node");
            let peer = reader.connect_async(address).await.expect("a session");
            let received = peer.channel("numbers").codec::<Pod>().receiver();
            let mut received: Receiver<u64, Pod> = received.expect("a receiver");
            while numbers.subscribers().is_empty() {
                tokio::task::yield_now().await;
            }
            for number in 1..=100 {
                numbers.send_async(&number).await.expect("sent");
                let message = received.recv_async().await.expect("a message");
                assert_eq!(*message, number);
            }
            numbers.flush_async().await;
            drop(numbers);
            let end = received.recv_async().await.expect_err("it is over");
            assert_eq!(end.kind(), RecvErrorKind::Ended, "{end}");
        });
    }
}
