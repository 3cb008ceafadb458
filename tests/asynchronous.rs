//! Futures on executors in common use.
#![forbid(unsafe_code)]

mod pair;

use ibex_harness::wait_until;
use std::{
    future::Future,
    net::TcpListener,
    pin::{Pin, pin},
    sync::mpsc,
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};

use futures_util::{
    SinkExt, StreamExt,
    future::{join, join_all, join3},
};
use ibex::{Event, Fabric, Message, Node, Pod, Raw, Receiver, Sender};
use ibex_harness::wakes::Wakes;
use pair::{FABRICS, Pair};

const MESSAGES: u64 = 2_000;

async fn send_all(mut sender: Sender<u64, Pod>) {
    for number in 1..=MESSAGES {
        sender.send_async(&number).await.expect("sent");
    }
    sender.wait_acked_async(MESSAGES).await.expect("all");
}

async fn receive_all(mut receiver: Receiver<u64, Pod>) -> u64 {
    let mut messages = receiver.stream();
    let mut sum = 0;
    while let Some(message) = messages.next().await {
        let message = message.expect("a message");
        sum += *message;
        message.ack();
    }
    sum
}

const SUM: u64 = MESSAGES * (MESSAGES + 1) / 2;

#[test]
fn on_tokio_with_one_thread_and_with_several() {
    let one = tokio::runtime::Builder::new_current_thread().build();
    let several = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build();
    for runtime in [one.expect("a runtime"), several.expect("a runtime")] {
        for fabric in FABRICS {
            let pair = Pair::over(fabric);
            let (sender, receiver) = pair.channel("numbers");
            let sum = runtime.block_on(async {
                let sending = tokio::spawn(send_all(sender));
                let receiving = tokio::spawn(receive_all(receiver));
                sending.await.expect("it ends");
                receiving.await.expect("it ends")
            });
            assert_eq!(sum, SUM);
        }
    }
}

#[test]
fn on_smol() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (sender, receiver) = pair.channel("numbers");
        let sum = smol::block_on(async {
            let sending = smol::spawn(send_all(sender));
            let receiving = smol::spawn(receive_all(receiver));
            sending.await;
            receiving.await
        });
        assert_eq!(sum, SUM);
    }
}

#[test]
fn a_batch_that_is_longer_than_the_window_is_sent_as_room_comes() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, receiver) = pair.channel("numbers");
        let numbers: Vec<_> = (1..=MESSAGES).collect();
        let send = async move {
            let last = sender.send_all_async(&numbers).await.expect("sent");
            assert_eq!(last, MESSAGES);
        };
        let (sum, ()) = smol::block_on(join(receive_all(receiver), send));
        assert_eq!(sum, SUM);
    }
}

/// Sends more than there is room for, from owners of bytes and as plain slices.
#[test]
fn a_sink_takes_owned_bytes_and_plain_slices() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let [here, there] = &pair.peers;
        let channel = here.channel("lines").codec::<Raw>().window_messages(8);
        let mut sender = channel.sender::<[u8]>().expect("a sender");
        let lines = there.channel("lines").codec::<Raw>();
        let mut receiver = lines.receiver::<[u8]>().expect("a receiver");
        let lines: Vec<String> = (0..100).map(|number| format!("line {number}")).collect();
        let sending = async {
            let mut sink = sender.sink();
            for line in &lines {
                sink.send(line.clone().into_bytes()).await.expect("sent");
            }
            sink.close().await.expect("sent");
        };
        let receiving = async {
            let mut messages = receiver.stream();
            for line in &lines {
                let message = messages.next().await.expect("a message").expect("valid");
                assert_eq!(&*message, line.as_bytes());
            }
        };
        smol::block_on(join(sending, receiving));
    }
}

#[test]
fn a_time_out_of_the_executor_loses_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let pair = Pair::over(Fabric::Tcp);
    let (mut sender, mut receiver) = pair.channel("numbers");
    runtime.block_on(async {
        let moment = Duration::from_millis(5);
        assert!(
            tokio::time::timeout(moment, receiver.recv_async())
                .await
                .is_err()
        );
        for number in 1..=3 {
            sender.send_async(&number).await.expect("sent");
        }
        for number in 1..=3 {
            let message = receiver.recv_async().await.expect("a message");
            assert_eq!((*message, message.sequence()), (number, number));
        }
    });
}

#[test]
fn peers_are_accepted_by_tasks() {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let address = listener.local_addr().expect("it listens");
    let mut accepting = pin!(listener.accept_async());
    assert!(poll(accepting.as_mut(), Waker::noop()).is_pending());
    let client = thread::spawn(move || {
        let node = Node::client().expect("a node");
        let peer = node.connect(address).expect("a session");
        (node, peer)
    });
    let here = smol::block_on(accepting).expect("a session");
    let (node, there) = client.join().expect("it ends");
    assert_eq!(here.fabric(), there.fabric());
    drop(node);
    // Closing the node ends the wait.
    let mut accepting = pin!(listener.accept_async());
    assert!(poll(accepting.as_mut(), Waker::noop()).is_pending());
    let _ = listener.close(Duration::ZERO);
    smol::block_on(accepting).expect_err("it is closed");
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

#[test]
fn tasks_connect_side_by_side() {
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let address = listener.local_addr().expect("it listens");
    let client = Node::client().expect("a node");
    smol::block_on(async {
        let connecting = (0..20).map(|_| client.connect_async(address));
        for connected in join_all(connecting).await {
            connected.expect("a session");
        }
    });
    for _ in 0..20 {
        listener.accept().expect("a session");
    }
    // An abandoned attempt ends, and so do those under way when the node is closed.
    let nobody = "127.0.0.1:1";
    let mut given_up = Box::pin(client.connect_async(nobody));
    assert!(poll(given_up.as_mut(), Waker::noop()).is_pending());
    drop(given_up);
    let mut waiting = Box::pin(client.connect_async(nobody));
    assert!(poll(waiting.as_mut(), Waker::noop()).is_pending());
    let _ = client.close(Duration::ZERO);
    smol::block_on(waiting).expect_err("the node is closed");
}

#[test]
fn waits_without_messages_end_at_once() {
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        // No peer opens the other end.
        let sender = pair.peers[0].channel("numbers").codec::<Pod>();
        let mut sender = sender.sender::<u64>().expect("a sender");
        smol::block_on(sender.flush_async()).expect("nothing to deliver");
        smol::block_on(sender.wait_acked_async(0)).expect("nothing to acknowledge");
        let group = pair.nodes[0].channel("group").codec::<Pod>();
        let mut group = group.group::<u64>().expect("a group");
        group.join(&pair.peers[0]).expect("a member");
        smol::block_on(group.flush_async());
        assert_eq!(group.members().len(), 1);
    }
}

#[test]
fn ends_are_opened_drained_and_closed_by_tasks() {
    for fabric in FABRICS {
        or_hangs(move || {
            let pair = Pair::over(fabric);
            let [there, here] = &pair.peers;
            let mut sender = there
                .channel("numbers")
                .codec::<Pod>()
                .sender::<u64>()
                .unwrap();
            let mut opening = Box::pin(sender.opened_async());
            let (count, waker) = Wakes::counted();
            assert!(poll(opening.as_mut(), &waker).is_pending());
            let mut receiver = here
                .channel("numbers")
                .codec::<Pod>()
                .receiver::<u64>()
                .unwrap();
            smol::block_on(opening).expect("the peer opens its end");
            smol::block_on(async {
                receiver.opened_async().await.expect("as the sender did");
                for number in 0..3 {
                    sender.send_async(&number).await.expect("sent");
                }
                sender.close_async().await.expect("all is delivered");
                for number in 0..3 {
                    let message = receiver.next_async().await.expect("no error");
                    assert_eq!(*message.expect("a message"), number);
                }
                assert!(receiver.next_async().await.expect("no error").is_none());
            });
            drop(count);
        });
    }
}

#[test]
fn a_task_awaits_events_until_the_node_is_closed() {
    or_hangs(|| {
        let pair = Pair::over(Fabric::Tcp);
        let [client, listener] = pair.nodes;
        let mut events = client.events();
        let mut other = events.clone();
        let watching = thread::spawn(move || {
            smol::block_on(async {
                let mut seen = Vec::new();
                while let Some(event) = events.next_async().await {
                    seen.push(event);
                }
                seen
            })
        });
        drop(listener);
        let gone = thread::spawn(move || {
            wait_until(|| pair.peers[0].is_gone());
        });
        gone.join().expect("it ends");
        let _report = client.close(Duration::from_secs(1));
        let seen = watching.join().expect("it ends");
        assert!(
            matches!(seen.first(), Some(Event::Connected { .. })),
            "{seen:?}"
        );
        assert!(matches!(seen.last(), Some(Event::Gone { .. })), "{seen:?}");
        assert!(
            smol::block_on(other.next_async()).is_none(),
            "each is handed out once"
        );
    });
}

/// Room appears and releases the last message at once. After that, only the acknowledgement, for
/// which the same task waits through a clone, can wake the task again.
#[test]
fn a_wait_for_acknowledgements_is_woken_behind_a_send_of_its_task() {
    for fabric in FABRICS {
        let (woken, waker) = Wakes::counted();
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        let mut acks = sender.clone();
        for number in 1..=WINDOW {
            sender.send(&number).expect("sent");
        }
        let mut acknowledged = pin!(acks.wait_acked_async(WINDOW + 1));
        let mut sending = pin!(sender.send_async(&0));
        assert!(poll(acknowledged.as_mut(), &waker).is_pending());
        assert!(poll(sending.as_mut(), &waker).is_pending());
        let mut held: Vec<_> = (0..WINDOW)
            .map(|_| receiver.recv().expect("a message"))
            .collect();
        let before = woken.get();
        held.remove(0).ack();
        // The receiver reports the room when it finds nothing more.
        receiver.try_recv().expect_err("nothing more");
        woken.wait_beyond(before);
        // The future is polled once, however often it was woken.
        thread::sleep(WHILE);
        assert!(poll(acknowledged.as_mut(), &waker).is_pending());
        let Poll::Ready(Ok(_)) = poll(sending.as_mut(), &waker) else {
            panic!("there is room");
        };
        let before = woken.get();
        held.push(receiver.recv().expect("a message"));
        held.into_iter().for_each(Message::ack);
        receiver.try_recv().expect_err("nothing more");
        woken.wait_beyond(before);
        smol::block_on(acknowledged).expect("all");
    }
}

/// The event for the second wait comes first; the other, polled before it, keeps waiting.
#[test]
fn each_of_several_waits_of_a_task_is_woken() {
    for fabric in FABRICS {
        or_hangs(move || {
            let pair = Pair::over(fabric);
            let (mut sender, mut receiver) = narrow(&pair);
            let (mut one, mut two) = (sender.clone(), sender.clone());
            for number in 1..=WINDOW {
                sender.send(&number).expect("sent");
            }
            let receiving = thread::spawn(move || {
                for number in 1..=WINDOW {
                    let message = receiver.recv().expect("a message");
                    if number == WINDOW / 2 + 1 || number == WINDOW {
                        thread::sleep(WHILE);
                    }
                    message.ack();
                }
                receiver
            });
            let (all, half, flushed) = smol::block_on(join3(
                one.wait_acked_async(WINDOW),
                two.wait_acked_async(WINDOW / 2),
                sender.flush_async(),
            ));
            all.expect("acknowledged");
            half.expect("acknowledged");
            flushed.expect("delivered");
            receiving.join().expect("it ends");
        });
    }
}

#[test]
fn a_future_that_is_dropped_takes_no_other_of_its_task_along() {
    let (woken, waker) = Wakes::counted();
    for fabric in FABRICS {
        let pair = Pair::over(fabric);
        let (mut sender, mut receiver) = narrow(&pair);
        let mut acks = sender.clone();
        let mut others = sender.clone();
        for number in 1..=WINDOW {
            sender.send(&number).expect("sent");
        }
        let mut waiting = pin!(acks.wait_acked_async(WINDOW));
        assert!(poll(waiting.as_mut(), &waker).is_pending());
        let mut other = Box::pin(others.wait_acked_async(WINDOW));
        assert!(poll(other.as_mut(), &waker).is_pending());
        let mut sending = Box::pin(sender.send_async(&0));
        assert!(poll(sending.as_mut(), &waker).is_pending());
        drop((other, sending));
        let before = woken.get();
        for _ in 1..=WINDOW {
            receiver.recv().expect("a message").ack();
        }
        // The receiver reports its counters when it finds nothing more.
        receiver.try_recv().expect_err("nothing more");
        woken.wait_beyond(before);
    }
    let listener = Node::listen("127.0.0.1:0").expect("a node");
    let address = listener.local_addr().expect("it listens");
    let mut accepting = pin!(listener.accept_async());
    assert!(poll(accepting.as_mut(), &waker).is_pending());
    let mut other = Box::pin(listener.accept_async());
    assert!(poll(other.as_mut(), &waker).is_pending());
    drop(other);
    let before = woken.get();
    let client = Node::client().expect("a node");
    let _there = client.connect(address).expect("a session");
    woken.wait_beyond(before);
}

/// Messages that fit a narrow channel.
const WINDOW: u64 = 8;
/// Time in which a task falls asleep.
const WHILE: Duration = Duration::from_millis(50);
/// A time-out that is longer than any call that ends.
const LONG: Duration = Duration::from_secs(120);

fn narrow(pair: &Pair) -> (Sender<u64, Pod>, Receiver<u64, Pod>) {
    let [there, here] = &pair.peers;
    let sender = there.channel("narrow").codec::<Pod>();
    let sender = sender.window_messages(WINDOW).sender();
    let receiver = here.channel("narrow").codec::<Pod>().receiver();
    (sender.expect("a sender"), receiver.expect("a receiver"))
}

/// Runs `work` on a thread of its own, and fails if it hangs. (A time-out within the task would
/// poll it again, and so hide a missing wake-up.)
fn or_hangs(work: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match is_done.recv_timeout(LONG) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("nobody wakes it"),
        _ => worker.join().expect("it ends well"),
    }
}

#[test]
fn futures_can_move_to_other_threads() {
    fn is_send<T: Send>(_: &T) {}
    let pair = Pair::over(Fabric::Shm);
    let [there, here] = &pair.peers;
    let mut sender = there
        .channel("bytes")
        .codec::<Raw>()
        .sender::<[u8]>()
        .expect("a sender");
    let mut receiver = here
        .channel("bytes")
        .codec::<Raw>()
        .receiver::<[u8]>()
        .expect("a receiver");
    is_send(&sender.send_async(b"bytes"));
    is_send(&sender.flush_async());
    is_send(&sender.wait_acked_async(1));
    is_send(&receiver.recv_async());
    is_send(&receiver.next_async());
    is_send(&receiver.opened_async());
    is_send(&sender.opened_async());
    is_send(&pair.nodes[0].events().next_async());
    is_send(&receiver.stream());
    is_send(&pair.nodes[1].accept_async());
    is_send(&pair.nodes[0].connect_async("localhost:1"));
    let (mut numbers, _receiver) = pair.channel("numbers");
    is_send(&numbers.sink::<u64>());
    let numbers = pair.nodes[1].channel("all").codec::<Pod>();
    let mut numbers = numbers.fan_in::<u64>().expect("a fan-in");
    is_send(&numbers.next_async());
    is_send(&numbers.stream());
    let group = pair.nodes[0].channel("all").codec::<Pod>();
    let mut group = group.group::<u64>().expect("a group");
    is_send(&group.flush_async());
    let both = there.channel("both").codec::<Pod>();
    let mut both = both.versioned_sender::<u64, u32>().expect("a sender");
    is_send(&both.opened_async());
    let both = here.channel("both").codec::<Pod>();
    let mut both = both.versioned_receiver::<u64, u32>().expect("a receiver");
    is_send(&both.recv_async());
    is_send(&both.stream());
}

/// Peers that do not answer hold up no connect to one that does. Each of the others is still on its
/// way when that has its session.
#[test]
fn a_connect_does_not_wait_for_others_to_peers_that_are_silent() {
    const SILENT: usize = 100;
    const HOUR: Duration = Duration::from_secs(3600);
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().map(|address| (silent, address));
    let (_held, dead) = silent.expect("its address");
    let there = Node::listen("127.0.0.1:0").expect("a node");
    let live = there.local_addr().expect("it listens");
    let none: [(&str, &str); 0] = [];
    let here = Node::builder().environment(none);
    let here = here.connect_timeout(Duration::MAX).handshake_timeout(HOUR);
    let here = here.build().expect("a node");
    let waker = Waker::noop();
    let mut context = Context::from_waker(waker);
    let mut waiting: Vec<_> = (0..SILENT)
        .map(|_| Box::pin(here.connect_async(dead)))
        .collect();
    for connecting in &mut waiting {
        assert!(connecting.as_mut().poll(&mut context).is_pending());
    }
    let peer = smol::block_on(here.connect_async(live)).expect("a session");
    assert_eq!(peer.id(), there.id());
    let peer = here.connect(live).expect("another");
    assert_eq!(peer.id(), there.id());
    for connecting in &mut waiting {
        assert!(connecting.as_mut().poll(&mut context).is_pending());
    }
}
