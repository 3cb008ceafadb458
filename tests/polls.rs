//! Polls and futures that are abandoned: nothing is lost, nothing is sent twice, and no waker stays
//! behind.
#![forbid(unsafe_code)]

mod pair;

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::{SinkExt, StreamExt};
use ibex::{
    Driver, Fabric, FanInEvent, Node, Pod, Policy, Raw, Receiver, RecvErrorKind, SendErrorKind,
    Sender, Versions,
    asynchronous::{Messages, SendSink},
};
use pair::{FABRICS, Pair};

/// Messages that fit a narrow channel.
const WINDOW: u64 = 8;
/// A time-out that is longer than any call that ends.
const LONG: Duration = Duration::from_secs(120);

fn narrow(pair: &Pair) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
    let [there, here] = &pair.peers;
    let sender = there.channel("narrow").codec::<Pod>();
    let sender = sender.window_messages(WINDOW).sender();
    let receiver = here.channel("narrow").codec::<Pod>().receiver();
    let mut sender: Sender<u64, Pod> = sender.expect("a sender");
    let mut receiver: Receiver<u64, Pod> = receiver.expect("a receiver");
    sender.opened(LONG).expect("open");
    receiver.opened(LONG).expect("open");
    (sender, receiver)
}

// ---- Futures that are dropped --------------------------------------------------------

/// Polls a future once, up to its only await point, and drops it. The future had to wait, so it
/// left its waker somewhere; the waker must be gone afterwards.
#[track_caller]
fn give_up<F: Future>(future: F) {
    let (count, waker) = count();
    let mut future = Box::pin(future);
    assert!(poll(future.as_mut(), &waker).is_pending());
    assert!(count.was_kept_beside(&waker), "it left no waker");
    drop(future);
    count.is_nobodys_but(&waker);
}

#[test]
fn a_receive_that_is_given_up_loses_nothing() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        for number in 1..=3 {
            give_up(receiver.recv_async());
            give_up(receiver.stream().into_future());
            sender.send(&number).expect("sent");
            // The message may have arrived during the poll, which then returned it.
            let message = smol::block_on(receiver.recv_async()).expect("a message");
            assert_eq!((*message, message.sequence()), (number, number));
            message.ack();
        }
        // The waker belongs to the stream, and goes with it.
        let mut stream = receiver.into_stream();
        let (count, waker) = count();
        assert!(poll(pin!(stream.next()), &waker).is_pending());
        let mut receiver = stream.into_inner();
        count.is_nobodys_but(&waker);
        sender.send(&4).expect("sent");
        assert_eq!(*receiver.recv().expect("a message"), 4);
    }
}

#[test]
fn a_send_that_is_given_up_sends_nothing() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        for number in 1..=WINDOW {
            sender.send(&number).expect("sent");
        }
        give_up(sender.send_async(&100));
        give_up(sender.reserve_async());
        give_up(async { sender.sink::<u64>().send(101).await });
        // A permit was ready and is given up.
        for number in 1..=WINDOW {
            let message = receiver.recv().expect("a message");
            assert_eq!(*message, number);
        }
        receiver.try_recv().expect_err("nothing more");
        drop(smol::block_on(sender.reserve_async()).expect("room"));
        let last = smol::block_on(sender.send_async(&9)).expect("sent");
        assert_eq!(last, WINDOW + 1);
        assert_eq!(*receiver.recv().expect("a message"), 9);
        receiver.try_recv().expect_err("nothing more");
    }
}

#[test]
fn a_reservation_that_is_given_up_keeps_no_room() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [there, here] = &pair.peers;
        let sender = there.channel("bytes").codec::<Raw>().window_messages(1);
        let mut sender = sender.sender::<[u8]>().expect("a sender");
        let receiver = here.channel("bytes").codec::<Raw>();
        let mut receiver = receiver.receiver::<[u8]>().expect("a receiver");
        sender.opened(LONG).expect("open");
        // Short messages lie in the ring, long ones in memory of their own.
        for length in [8, 3 << 20] {
            drop(smol::block_on(sender.loan_async(length)).expect("room"));
            let mut reserved = smol::block_on(sender.loan_async(length)).expect("room");
            reserved.fill(1);
            reserved.send().expect("sent");
            give_up(sender.loan_async(length));
            let message = receiver.recv().expect("a message");
            assert_eq!((message.len(), message[length - 1]), (length, 1));
            drop(message);
            receiver.try_recv().expect_err("nothing more");
        }
    }
}

#[test]
fn a_wait_for_counters_that_is_given_up_changes_nothing() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        let last = sender.send(&1).expect("sent");
        give_up(sender.wait_acked_async(last));
        // The fabric decides whether the future must wait.
        let (count, waker) = count();
        let mut flushing = Box::pin(sender.flush_async());
        let _ = poll(flushing.as_mut(), &waker);
        drop(flushing);
        count.is_nobodys_but(&waker);
        receiver.recv().expect("a message").ack();
        receiver.try_recv().expect_err("nothing more");
        smol::block_on(sender.wait_acked_async(last)).expect("acknowledged");
        smol::block_on(sender.flush_async()).expect("delivered");
    }
}

#[test]
fn a_fan_in_an_opening_and_an_accept_that_are_given_up_lose_nothing() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let all = pair.nodes[1].channel("all").codec::<Pod>();
        let mut all = all.fan_in::<u64>().expect("a fan-in");
        give_up(all.next_async());
        give_up(all.stream().into_future());
        let sender = pair.peers[0].channel("all").codec::<Pod>();
        let mut sender = sender.sender::<u64>().expect("a sender");
        sender.send(&7).expect("sent");
        let joined = smol::block_on(all.next_async());
        assert!(matches!(joined, Some(FanInEvent::Joined(_))));
        match smol::block_on(all.into_stream().next()) {
            Some(FanInEvent::Message(_, message)) => assert_eq!(*message, 7),
            other => panic!("{other:?}"),
        }

        let [there, here] = &pair.peers;
        let both = there.channel("both").codec::<Pod>();
        let mut sender = both.versioned_sender::<u64, u32>().expect("a sender");
        give_up(sender.opened_async());
        let both = here.channel("both").codec::<Pod>();
        let mut receiver = both.versioned_receiver::<u64, u32>().expect("a receiver");
        give_up(receiver.recv_async());
        match smol::block_on(sender.opened_async()).expect("open") {
            Versions::Newer(sender) => sender.send(&7).expect("sent"),
            Versions::Older(_) => panic!("both know the newer"),
        };
        match smol::block_on(receiver.into_stream().next()) {
            Some(Ok(Versions::Newer(message))) => assert_eq!(*message, 7),
            other => panic!("{other:?}"),
        }
    }
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    give_up(listener.accept_async());
    let client = Node::client().expect("a node");
    let address = listener.local_addr().expect("it listens");
    let _there = client.connect(address).expect("a session");
    smol::block_on(listener.accept_async()).expect("a session");
}

// ---- Handles that are polled ---------------------------------------------------------

/// The last waker is woken, and the one before is released.
#[test]
fn another_waker_takes_the_place_of_the_one_before() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        let (before, waker_before) = count();
        let (after, waker) = count();
        assert!(poll_recv(&mut receiver, &waker_before).is_pending());
        assert!(poll_recv(&mut receiver, &waker).is_pending());
        assert!(poll_recv(&mut receiver, &waker).is_pending());
        before.is_nobodys_but(&waker_before);
        let woken_before = before.get();
        sender.send(&1).expect("sent");
        // Other events may wake the task as well.
        let message = loop {
            after.is_woken();
            after.forget();
            if let Poll::Ready(message) = poll_recv(&mut receiver, &waker) {
                break message.expect("a message");
            }
        };
        assert_eq!((*message, before.get()), (1, woken_before));
        after.is_nobodys_but(&waker);
    }
}

/// A waker is released by an answer, by a blocking call that waits, and by the drop of the handle.
#[test]
fn a_waker_that_is_left_is_taken_back() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        let (count, waker) = count();
        assert!(poll_recv(&mut receiver, &waker).is_pending());
        // The waker stays registered during calls that do not wait.
        assert!(matches!(receiver.try_recv(), Err(error) if error.kind() == RecvErrorKind::Empty));
        assert!(count.was_kept_beside(&waker));
        receiver
            .recv_timeout(Duration::from_millis(1))
            .expect_err("nothing comes");
        count.is_nobodys_but(&waker);

        assert!(poll_recv(&mut receiver, &waker).is_pending());
        let sending = thread::spawn(move || {
            for number in 1..=WINDOW {
                sender.send(&number).expect("sent");
            }
            sender
        });
        for number in 1..=WINDOW {
            let message = receiver.recv().expect("a message");
            assert_eq!(*message, number);
            message.ack();
        }
        let mut sender = sending.join().expect("it ends");
        let _held: Vec<_> = (0..WINDOW)
            .map(|number| {
                sender.send(&number).expect("sent");
                receiver.recv().expect("a message")
            })
            .collect();
        assert!(poll_recv(&mut receiver, &waker).is_pending());
        assert!(poll_reserve(&mut sender, &waker).is_pending());
        assert!(poll_acked(&mut sender, &waker, 2 * WINDOW).is_pending());
        drop(receiver);
        drop(sender);
        count.is_nobodys_but(&waker);
    }
}

/// A task waits for room and for an acknowledgement of one sender.
#[test]
fn room_and_acknowledgements_have_a_waker_each() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        for number in 1..=WINDOW {
            sender.send(&number).expect("sent");
        }
        let ((room, room_waker), (acks, acks_waker)) = (count(), count());
        assert!(poll_reserve(&mut sender, &room_waker).is_pending());
        assert!(poll_acked(&mut sender, &acks_waker, 1).is_pending());
        receiver.recv().expect("a message").ack();
        receiver.try_recv().ok();
        room.is_woken();
        acks.is_woken();
        smol::block_on(std::future::poll_fn(|context| {
            sender.poll_acked(context, 1)
        }))
        .expect("acknowledged");
        acks.is_nobodys_but(&acks_waker);
        smol::block_on(std::future::poll_fn(|context| {
            sender.poll_reserve(context).map(|permit| permit.map(drop))
        }))
        .expect("room");
        room.is_nobodys_but(&room_waker);
        smol::block_on(std::future::poll_fn(|context| sender.poll_flush(context)))
            .expect("delivered");
    }
}

// ---- Permits -------------------------------------------------------------------------

#[test]
fn a_permit_is_room_that_no_clone_takes() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        let mut clone = sender.clone();
        for number in 1..WINDOW {
            clone.send(&number).expect("sent");
        }
        let permit = smol::block_on(sender.reserve_async()).expect("room for one");
        assert!(permit.bytes() >= size_of::<u64>());
        // Another task of the same thread waits like any other.
        let full = clone.try_send(&100);
        assert!(
            matches!(&full, Err(error) if error.kind() == SendErrorKind::Full),
            "{full:?}"
        );
        give_up(clone.send_async(&100));
        let theirs = thread::spawn(move || {
            // The turn is not this handle's, so the last place is not either.
            let full = clone.try_send(&100);
            assert!(
                matches!(&full, Err(error) if error.kind() == SendErrorKind::Full),
                "{full:?}"
            );
            clone
        });
        let mut clone = theirs.join().expect("it ends");
        assert_eq!(permit.send(&WINDOW).expect("without waiting"), WINDOW);
        // A permit that is given up lets others in.
        for number in 1..=WINDOW {
            assert_eq!(*receiver.recv().expect("a message"), number);
        }
        receiver.try_recv().expect_err("nothing more");
        let permit = smol::block_on(sender.reserve_async()).expect("room");
        drop(permit);
        clone.send(&1).expect("sent");
        assert_eq!(receiver.recv().expect("a message").sequence(), WINDOW + 1);
    }
}

/// A message longer than its permit finds room, or is refused and not sent.
#[test]
fn a_permit_for_less_than_the_message_is_an_attempt() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [there, here] = &pair.peers;
        let sender = there.channel("bytes").codec::<Raw>().window_bytes(64 << 10);
        let mut sender = sender.sender::<[u8]>().expect("a sender");
        let receiver = here.channel("bytes").codec::<Raw>();
        let mut receiver = receiver.receiver::<[u8]>().expect("a receiver");
        sender.send(&[1; 8]).expect("sent");
        let permit = smol::block_on(sender.reserve_async()).expect("room");
        assert!((8..1000).contains(&permit.bytes()), "{permit:?}");
        assert_eq!(permit.send(&[2; 1000]).expect("there is room"), 2);
        // Fill the ring completely.
        let mut sent = 2;
        while sender.try_send(&[3; 1000]).is_ok() {
            sent += 1;
        }
        sender.try_send(&[4; 8]).expect("a short one fits");
        sent += 1;
        let permit = smol::block_on(sender.reserve_async()).expect("another fits");
        let full = permit.send(&[5; 1000]);
        assert!(
            matches!(&full, Err(error) if error.kind() == SendErrorKind::Full),
            "{full:?}"
        );
        drop(sender);
        let lengths: Vec<_> = receiver
            .iter()
            .map(|message| message.expect("a message").len())
            .collect();
        assert_eq!(lengths.len(), sent);
        assert_eq!(&lengths[..2], [8, 1000]);
        assert_eq!(lengths.last(), Some(&8));
    }
}

// ---- Streams and sinks of their own --------------------------------------------------

/// A stream and a sink that a program keeps in a struct of its own.
struct Echo {
    requests: Messages<Receiver<u64, Pod>>,
    answers: SendSink<Sender<u64, Pod>, u64>,
}

#[test]
fn streams_and_sinks_own_their_ends() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (requests, receiver) = pair.channel("requests");
        let (answers_there, answers) = pair.channel("answers");
        let echo = Echo {
            requests: receiver.into_stream(),
            answers: answers_there.into_sink(),
        };
        runtime.block_on(async {
            let serving = tokio::spawn(async move {
                let Echo {
                    mut requests,
                    mut answers,
                } = echo;
                while let Some(request) = requests.next().await {
                    let request = request.expect("a message");
                    answers.send(*request + 1).await.expect("sent");
                }
                let (sender, kept) = answers.into_inner();
                assert_eq!(kept, None);
                sender.close().expect("delivered");
            });
            let asking = tokio::spawn(async move {
                let mut sink = requests.into_sink::<u64>();
                for number in 0..1000 {
                    sink.send(number).await.expect("sent");
                }
            });
            let answers: Vec<u64> = answers
                .into_stream()
                .map(|answer| *answer.expect("an answer"))
                .collect()
                .await;
            assert_eq!(answers, (1..=1000).collect::<Vec<_>>());
            asking.await.expect("it ends");
            serving.await.expect("it ends");
        });
    }
}

// ---- Turns ---------------------------------------------------------------------------

/// If callers turn the engine, a poll that finds nothing runs one turn, and one that finds a
/// message runs none.
#[test]
fn a_poll_that_finds_nothing_turns_the_engine_once() {
    for fabric in FABRICS {
        let listener = Node::builder().fabric(fabric, Policy::Require);
        let listener = listener.listen("127.0.0.1:0").build().expect("a node");
        let client = Node::builder().fabric(fabric, Policy::Require);
        let client = client.driver(Driver::Caller).build().expect("a node");
        let address = listener.local_addr().expect("it listens");
        let here = client.connect(address).expect("a session");
        let there = listener.accept().expect("a session");
        let sender = there.channel("numbers").codec::<Pod>();
        let mut sender = sender.sender::<u64>().expect("a sender");
        let receiver = here.channel("numbers").codec::<Pod>();
        let mut receiver = receiver.receiver::<u64>().expect("a receiver");
        receiver.opened(LONG).expect("open");
        let (_count, waker) = count();
        for _ in 0..10 {
            let before = client.stats().turns;
            assert!(poll_recv(&mut receiver, &waker).is_pending());
            assert_eq!(client.stats().turns - before, 1);
            let before = client.stats().turns;
            give_up(receiver.recv_async());
            assert_eq!(client.stats().turns - before, 1);
        }
        for number in 1..=2 {
            sender.send(&number).expect("sent");
        }
        let begun = Instant::now();
        let mut expected = 1;
        while expected <= 2 {
            assert!(begun.elapsed() < LONG, "it does not come");
            let before = client.stats().turns;
            let polled = poll_recv(&mut receiver, &waker);
            let turns = client.stats().turns - before;
            match polled {
                Poll::Pending => assert_eq!(turns, 1),
                Poll::Ready(message) => {
                    assert_eq!(*message.expect("a message"), expected);
                    assert!(turns <= 1, "{turns}");
                    // The second message lies in the ring behind the first.
                    assert!(fabric == Fabric::Tcp || expected == 1 || turns == 0);
                    expected += 1;
                }
            }
        }
    }
}

// ---- Tools ---------------------------------------------------------------------------

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

fn poll_recv(
    receiver: &mut Receiver<u64, Pod>,
    waker: &Waker,
) -> Poll<Result<ibex::Message<u64, Pod>, ibex::RecvError>> {
    receiver.poll_recv(&mut Context::from_waker(waker))
}

fn poll_reserve(sender: &mut Sender<u64, Pod>, waker: &Waker) -> Poll<()> {
    let permit = sender.poll_reserve(&mut Context::from_waker(waker));
    permit.map(|permit| drop(permit.expect("the channel goes on")))
}

fn poll_acked(sender: &mut Sender<u64, Pod>, waker: &Waker, sequence: u64) -> Poll<()> {
    let acked = sender.poll_acked(&mut Context::from_waker(waker), sequence);
    acked.map(|acked| acked.expect("acknowledged"))
}

/// Counts its wake-ups, and knows by its reference count whether its waker is kept.
#[derive(Default)]
struct Count(AtomicU32);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// Returns a counter and its waker.
fn count() -> (Counted, Waker) {
    let count = Arc::<Count>::default();
    (Counted(count.clone()), count.into())
}

struct Counted(Arc<Count>);

impl Counted {
    fn get(&self) -> u32 {
        self.0.0.load(Ordering::Relaxed)
    }

    fn forget(&self) {
        self.0.0.store(0, Ordering::Relaxed);
    }

    /// Returns whether a clone of its waker exists.
    fn is_kept_beside(&self, _waker: &Waker) -> bool {
        Arc::strong_count(&self.0) > 2
    }

    /// Returns whether a clone exists, or existed and was woken.
    fn was_kept_beside(&self, waker: &Waker) -> bool {
        self.is_kept_beside(waker) || self.get() > 0
    }

    /// A waker that was taken in order to be woken still exists for a moment.
    #[track_caller]
    fn is_nobodys_but(&self, waker: &Waker) {
        let begun = Instant::now();
        while self.is_kept_beside(waker) {
            assert!(begun.elapsed() < LONG, "a waker stayed behind");
            thread::yield_now();
        }
    }

    #[track_caller]
    fn is_woken(&self) {
        let begun = Instant::now();
        while self.get() == 0 {
            assert!(begun.elapsed() < LONG, "nobody wakes it");
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn owned_ends_and_permits_can_move_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let pair = Pair::over(Fabric::Shm);
    let (mut sender, receiver) = pair.channel("numbers");
    is_send(&sender.reserve_async());
    is_send(&receiver.into_stream());
    is_send(&sender.into_sink::<u64>());
    let bytes = pair.peers[0].channel("bytes").codec::<Raw>();
    let mut bytes = bytes.sender::<[u8]>().expect("a sender");
    is_send(&bytes.loan_async(1));
}
