//! Tasks do everything that threads do: futures, streams and sinks on a minimal executor, and
//! futures that are dropped in every state.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use futures_util::{SinkExt, StreamExt};
use ibex::{Driver, Node, Pod, Raw, RecvErrorKind};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, Stage, receiver, sender},
    stream::{assert_ended, receive_all},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("tasks_ping_pong", tasks_ping_pong),
    Scenario::new("tasks_wait_for_room", tasks_wait_for_room),
    Scenario::new("tasks_wait_quietly", tasks_wait_quietly),
    Scenario::new("tasks_waker_panics", tasks_waker_panics),
    Scenario::new("tasks_dropped", tasks_dropped),
    Scenario::new("tasks_acknowledged", tasks_acknowledged),
    Scenario::new("tasks_stream_and_sink", tasks_stream_and_sink),
    Scenario::new("tasks_end", tasks_end),
];

/// Each message waits for the answer to the one before; one side opens late.
fn tasks_ping_pong(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let last = stage.count(5_000);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let (mut ping, mut pong) = (sender(&peer, "ping"), receiver(&peer, "pong"));
            task::run(&node, driver, async {
                for sequence in 1..=last {
                    let message = payload::numbered(sequence, 64);
                    assert_eq!(ping.send_async(&message).await.expect("sent"), sequence);
                    let answer = pong.recv_async().await.expect("an answer");
                    payload::check(sequence, &answer);
                }
                ping.flush_async().await.expect("delivered");
            });
        }
        Side::Listener => {
            let mut ping = receiver(&peer, "ping");
            // The other side waits for this one to open, in `send_async` and `recv_async`.
            let mut pong = sender(&peer, "pong");
            task::run(&node, driver, async {
                for sequence in 1..=last {
                    let message = ping.recv_async().await.expect("a message");
                    payload::check(sequence, &message);
                    pong.send_async(&message).await.expect("sent");
                }
                assert!(
                    matches!(ping.recv_async().await, Err(error) if error.kind() == RecvErrorKind::Ended)
                );
            });
        }
    }
}

/// More messages than the window holds, to a receiver that begins late.
fn tasks_wait_for_room(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let length = |sequence| (sequence * 37 % 5000) as usize;
    let last = stage.count(5_000);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let channel = peer.channel("wal").codec::<Raw>().window_bytes(64 << 10);
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            let mut again = sender.clone();
            task::run(&node, driver, async {
                for sequence in 1..=last {
                    let message = payload::numbered(sequence, length(sequence));
                    // Handles take turns.
                    let sender = match sequence % 2 {
                        0 => &mut sender,
                        _ => &mut again,
                    };
                    assert_eq!(sender.send_async(&message).await.expect("sent"), sequence);
                }
                sender.wait_acked_async(last).await.expect("acknowledged");
            });
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "wal");
            receive_all(&mut receiver, last, length);
            stage.hear("done", &node);
            assert_ended(receiver);
        }
    }
}

/// A task that waits for room behind a cloned sender is polled when something has changed, and does
/// not wake itself.
fn tasks_wait_quietly(stage: &mut Stage) {
    const LIMIT: usize = 1_000;
    let (node, peer) = stage.meet();
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let channel = peer.channel("wal").codec::<Raw>().window_messages(8);
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            let mut again = sender.clone();
            sender.opened(LONG).expect("the peer opens");
            let mut sent = 0;
            while task::poll_once(&mut sender.send_async(&payload::numbered(sent + 1, 64)))
                .is_ready()
            {
                sent += 1;
            }
            let message = payload::numbered(sent + 1, 64);
            let mut pending = [&mut sender, &mut again].map(|one| one.send_async(&message));
            for future in &mut pending {
                let polls = task::polls_until_quiet(future, LIMIT);
                assert!(polls < LIMIT, "it wakes itself");
            }
            stage.tell("full");
            drop(pending);
            let waiting = sender.send_async(&message);
            assert_eq!(task::run(&node, driver, waiting).expect("sent"), sent + 1);
            task::run(&node, driver, sender.wait_acked_async(sent + 1)).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "wal");
            receiver.opened(LONG).expect("the peer opens");
            stage.hear("full", &node);
            for sequence in 1.. {
                match task::run(&node, driver, receiver.recv_async()) {
                    Ok(message) => {
                        payload::check(sequence, &message);
                        message.ack();
                    }
                    Err(error) if error.kind() == RecvErrorKind::Ended => break,
                    Err(error) => panic!("{error}"),
                }
            }
            stage.hear("done", &node);
        }
    }
}

/// A panicking waker harms only its own task: the node continues, and so does the channel.
fn tasks_waker_panics(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "wal");
            for sequence in 1..=20 {
                stage.hear("waiting", &node);
                sender.send(&payload::numbered(sequence, 64)).expect("sent");
                sender.flush().expect("received");
            }
            sender.wait_acked(20).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "wal");
            receiver.opened(LONG).expect("the peer opens");
            for sequence in 1..=20 {
                let panics = Arc::<task::Panics>::default();
                let waker = Waker::from(panics.clone());
                let mut pending = receiver.recv_async();
                let polled = Pin::new(&mut pending).poll(&mut Context::from_waker(&waker));
                assert!(polled.is_pending());
                stage.tell("waiting");
                while !panics.was_called() {
                    node.poll();
                    std::thread::yield_now();
                }
                drop(pending);
                let message = receiver.recv().expect("a message");
                payload::check(sequence, &message);
                message.ack();
            }
            stage.hear("done", &node);
        }
    }
}

/// Futures are repeatedly dropped in every state: nothing is lost or doubled.
fn tasks_dropped(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let last = stage.count(5_000);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let channel = peer.channel("wal").codec::<Raw>().window_messages(8);
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            let mut sequence = 1;
            while sequence <= last {
                let message = payload::numbered(sequence, 64);
                let future = sender.send_async(&message);
                let polled = poll_and_drop(&node, driver, future, sequence);
                let sent = match polled {
                    Poll::Ready(sent) => sent.expect("sent"),
                    // The dropped future sent nothing, and this one does.
                    Poll::Pending => {
                        task::run(&node, driver, sender.send_async(&message)).expect("sent")
                    }
                };
                assert_eq!(sent, sequence);
                sequence += 1;
                let _ = task::poll_once(&mut sender.wait_acked_async(sequence));
            }
            task::run(&node, driver, sender.flush_async()).expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "wal");
            for sequence in 1..=last {
                let polled = poll_and_drop(&node, driver, receiver.recv_async(), sequence);
                let received = match polled {
                    Poll::Ready(received) => received,
                    Poll::Pending => task::run(&node, driver, receiver.recv_async()),
                };
                let message = received.expect("a message");
                assert_eq!(message.sequence(), sequence);
                payload::check(sequence, &message);
            }
            assert!(matches!(
                task::run(&node, driver, receiver.recv_async()),
                Err(error) if error.kind() == RecvErrorKind::Ended
            ));
        }
    }
}

/// Polls a future up to one of three states, chosen by `turn`, and drops it. Returns the last
/// poll's result.
fn poll_and_drop<F: Future + Unpin>(
    node: &Node,
    driver: Driver,
    mut future: F,
    turn: u64,
) -> Poll<F::Output> {
    match turn % 3 {
        // The future is never polled.
        0 => Poll::Pending,
        // The future is polled once, so that its waker is registered.
        1 => task::poll_once(&mut future),
        // The future is polled until the event has come.
        _ => task::poll_until_woken(node, driver, &mut future),
    }
}

/// Messages are acknowledged one after the other, and each acknowledgement is waited for.
fn tasks_acknowledged(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let last = stage.count(1_000);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "wal");
            task::run(&node, driver, async {
                for sequence in 1..=last {
                    let message = payload::numbered(sequence, 64);
                    sender.send_async(&message).await.expect("sent");
                    sender
                        .wait_acked_async(sequence)
                        .await
                        .expect("acknowledged");
                    assert!(sender.acked() >= sequence);
                }
            });
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "wal");
            task::run(&node, driver, async {
                let mut messages = receiver.stream();
                while let Some(message) = messages.next().await {
                    message.expect("a message").ack();
                }
            });
        }
    }
}

/// A sink gets more than it has room for, and a stream is read to the end.
fn tasks_stream_and_sink(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let last = stage.count(20_000);
    let driver = stage.driver();
    match stage.side {
        Side::Dialer => {
            let channel = peer.channel("numbers").codec::<Pod>().window_messages(64);
            let mut sender = channel.sender::<u64>().expect("a sender");
            task::run(&node, driver, async {
                let mut sink = sender.sink();
                for number in 1..=last {
                    sink.feed(number).await.expect("taken");
                }
                sink.close().await.expect("sent");
            });
            sender.flush_timeout(LONG).expect("delivered");
        }
        Side::Listener => {
            let channel = peer.channel("numbers").codec::<Pod>();
            let mut receiver = channel.receiver::<u64>().expect("a receiver");
            let sum = task::run(&node, driver, async {
                let mut messages = receiver.stream();
                let mut expected = 1;
                while let Some(message) = messages.next().await {
                    assert_eq!(*message.expect("a message"), expected);
                    expected += 1;
                }
                // The end is permanent.
                assert!(messages.next().await.is_none());
                expected
            });
            assert_eq!(sum, last + 1);
        }
    }
}

/// A pending future learns of the end of its channel, and of its node's.
fn tasks_end(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let driver = stage.driver();
    let mut receiver = receiver(&peer, "silent");
    match stage.side {
        Side::Dialer => {
            let mut pending = receiver.recv_async();
            assert!(task::poll_once(&mut pending).is_pending());
            stage.tell("pending");
            // The other side closes its node.
            let ended = task::run(
                &node,
                driver,
                poll_fn(|context| Future::poll(Pin::new(&mut pending), context)),
            );
            assert!(
                matches!(&ended, Err(error) if error.kind() == RecvErrorKind::Disconnected),
                "{ended:?}"
            );
        }
        Side::Listener => {
            stage.hear("pending", &node);
            let _ = node.close(LONG);
            let ended = task::run(&node, driver, receiver.recv_async());
            assert!(
                matches!(&ended, Err(error) if error.kind() == RecvErrorKind::Disconnected),
                "{ended:?}"
            );
        }
    }
}
