//! Facts that a sender learns: the four counters, `flush`, and the receiving application's
//! acknowledgements.

use std::time::Duration;

use ibex::{Fabric, Raw, Wait, WaitErrorKind};

use crate::common::{
    kernel, payload,
    scenario::{Scenario, Side, Span},
    stage::{LONG, MOMENT, Stage, receiver, sender},
    stream::send_all,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("lone_message_acknowledged", lone_message),
    Scenario::new("each_message_acknowledged", each_message),
    Scenario::new("acknowledged_late", late),
    Scenario::new(
        "asked_behind_a_farther_question",
        asked_behind_a_farther_question,
    ),
    Scenario::new("told_unasked", told_unasked),
    Scenario::new("told_before_spinning", told_before_spinning).on(Span::EachFabric),
    Scenario::new("dropped_unacknowledged", dropped),
    Scenario::new("receiver_gone_unacknowledged", receiver_gone),
    Scenario::new("receiver_gone_acknowledged", receiver_gone_acknowledged),
    Scenario::new("flush", flush),
    Scenario::new("counters", counters),
];

/// A lone message: its acknowledgement has no other traffic to travel with.
fn lone_message(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "lone");
            sender.wait_acked(0).expect("nothing to wait for");
            let sequence = sender.send(b"lone").expect("sent");
            assert_eq!(sequence, 1);
            sender.wait_acked(sequence).expect("acknowledged");
            sender.wait_acked(sequence).expect("and it stays so");
            stage.tell("acknowledged");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "lone");
            receiver.recv().expect("a message").ack();
            // The receiver makes no other call.
            stage.hear("acknowledged", &node);
        }
    }
}

/// Every message waits for its acknowledgement before the next is sent.
fn each_message(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let last = stage.count(5_000);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "synchronous");
            for sequence in 1..=last {
                sender
                    .send(&payload::numbered(sequence, 100))
                    .expect("sent");
                sender.wait_acked(sequence).expect("acknowledged");
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "synchronous");
            while let Some(message) = receiver.next().expect("a message") {
                message.ack();
            }
        }
    }
}

/// The sender waits already when another thread acknowledges the messages, one by one.
fn late(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "late");
            send_all(&mut sender, 50, |_| 100);
            stage.tell("waiting");
            for sequence in 1..=50 {
                sender.wait_acked(sequence).expect("acknowledged");
            }
            stage.tell("acknowledged");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "late");
            let messages: Vec<_> = (0..50)
                .map(|_| receiver.recv().expect("a message"))
                .collect();
            stage.hear("waiting", &node);
            let acknowledge = || messages.into_iter().for_each(ibex::Message::ack);
            std::thread::spawn(acknowledge)
                .join()
                .expect("the thread returns");
            stage.hear("acknowledged", &node);
        }
    }
}

/// Each waiter learns of its message, even if others wait, or have waited, for later messages that
/// are not acknowledged.
fn asked_behind_a_farther_question(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "asked");
            send_all(&mut sender, 10, |_| 100);
            match sender.wait_acked_timeout(10, MOMENT) {
                Err(error)
                    if error.kind() == WaitErrorKind::Timeout && error.sequence() == Some(10) => {}
                other => panic!("nothing is acknowledged: {other:?}"),
            }
            stage.tell("timed out");
            sender.wait_acked(4).expect("acknowledged");
            let mut clones = [(10, sender.clone()), (8, sender.clone())];
            std::thread::scope(|scope| {
                let [ten, eight] = clones.each_mut().map(|(sequence, clone)| {
                    let (started, waiting) = std::sync::mpsc::channel();
                    let waiter = scope.spawn(move || {
                        started.send(kernel::this_thread()).expect("we wait");
                        clone.wait_acked(*sequence)
                    });
                    kernel::wait_until_asleep(waiting.recv().expect("it has begun"));
                    waiter
                });
                stage.tell("waiting");
                sender.wait_acked(6).expect("acknowledged");
                stage.tell("six");
                let answer = eight.join().expect("no panic");
                answer.expect("acknowledged");
                assert!(sender.acked() >= 8);
                stage.tell("eight");
                let answer = ten.join().expect("no panic");
                answer.expect("acknowledged");
            });
            stage.tell("ten");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "asked");
            let mut messages: Vec<_> = (0..10)
                .map(|_| receiver.recv().expect("a message"))
                .collect();
            let acknowledged = [("timed out", 4), ("waiting", 2), ("six", 2), ("eight", 2)];
            for (words, count) in acknowledged {
                stage.hear(words, &node);
                messages.drain(..count).for_each(ibex::Message::ack);
            }
            stage.hear("ten", &node);
        }
    }
}

/// A sender that never waits learns of each acknowledged message, far below half a window, if the
/// receiver is set to report them.
fn told_unasked(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "unasked");
            for sequence in 1..=100 {
                sender
                    .send(&payload::numbered(sequence, 100))
                    .expect("sent");
                while sender.acked() < sequence {
                    node.poll();
                    std::thread::yield_now();
                }
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let channel = peer.channel("unasked").codec::<Raw>().ack_every(1);
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            while let Some(message) = receiver.next().expect("a message") {
                message.ack();
            }
        }
    }
}

/// Both sides spin for a second before they sleep and ask. A receiver that waits must report its
/// last acknowledgement before it spins, or each message takes a second.
fn told_before_spinning(stage: &mut Stage) {
    const MESSAGES: u64 = 200;
    let spin = Duration::from_secs(1);
    let (_node, peer) = stage.meet_as(|builder| builder.wait(Wait::Adaptive { spin }));
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "spun");
            for sequence in 1..=MESSAGES {
                let bytes = payload::numbered(sequence, 100);
                sender.send(&bytes).expect("sent");
                sender.wait_acked(sequence).expect("acknowledged");
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "spun");
            while let Some(message) = receiver.next().expect("a message") {
                message.ack();
            }
        }
    }
}

/// Acknowledgement ends at the first message that is dropped without it.
fn dropped(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "dropped");
            send_all(&mut sender, 10, |_| 100);
            match sender.wait_acked(10) {
                Err(error)
                    if error.kind() == WaitErrorKind::Unacknowledged
                        && error.sequence() == Some(6) => {}
                other => panic!("message 6 was dropped: {other:?}"),
            }
            sender
                .wait_acked(5)
                .expect("the first five are acknowledged");
            assert_eq!(sender.acked(), 5);
            // The channel itself continues.
            sender.send(b"more").expect("sent");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "dropped");
            for sequence in 1..=10 {
                let message = receiver.recv().expect("a message");
                if sequence == 6 {
                    drop(message);
                } else {
                    message.ack();
                }
            }
            assert_eq!(&receiver.recv().expect("a message")[..], b"more");
            stage.hear("done", &node);
        }
    }
}

/// The receiver is dropped without acknowledging: a waiting sender gets an error with the counts.
fn receiver_gone(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "gone");
            send_all(&mut sender, 10, |_| 100);
            stage.tell("sent");
            match sender.wait_acked(10) {
                Err(error) if error.kind() == WaitErrorKind::Disconnected => {
                    let counts = error.counts().expect("how far it came");
                    assert_eq!((counts.sent, counts.acknowledged), (10, 3));
                }
                other => panic!("three were acknowledged: {other:?}"),
            }
            sender.wait_acked(3).expect("acknowledged before the end");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "gone");
            for _ in 1..=3 {
                receiver.recv().expect("a message").ack();
            }
            stage.hear("sent", &node);
            drop(receiver);
            stage.hear("done", &node);
        }
    }
}

/// After `flush` the peer's engine holds all messages, whether or not they are read.
fn flush(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "flushed");
            sender.opened(LONG).expect("the peer opens");
            for sequence in 1..=100 {
                sender
                    .send(&payload::numbered(sequence, 100))
                    .expect("sent");
                sender.flush().expect("delivered");
                if stage.fabric() != Fabric::Shm {
                    // Over shared memory, publishing is delivery, and `received` counts what the
                    // receiver has taken.
                    assert_eq!(sender.counts().received, sequence);
                }
            }
            assert_eq!(sender.counts().released, 0);
            stage.tell("flushed");
            sender.wait_acked(100).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "flushed");
            stage.hear("flushed", &node);
            for sequence in 1..=100 {
                let message = match stage.fabric() {
                    // The message is published, and this side has yet to find it.
                    Fabric::Shm => receiver.recv().expect("a message"),
                    // The message has arrived already, so no call has to wait.
                    _ => receiver.try_recv().expect("a message that was flushed"),
                };
                payload::check(sequence, &message);
                message.ack();
            }
            stage.hear("done", &node);
        }
    }
}

/// Published ≥ received ≥ released and acknowledged, and each has the right value.
fn counters(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "counted");
            for sequence in 1..=20 {
                assert_eq!(
                    sender
                        .send(&payload::numbered(sequence, 100))
                        .expect("sent"),
                    sequence
                );
                let counts = sender.counts();
                assert_eq!(counts.sent, sequence);
                assert!(counts.received <= counts.sent);
                assert!(
                    counts.released <= counts.received && counts.acknowledged <= counts.received
                );
            }
            stage.hear("received", &node);
            sender.flush().expect("delivered");
            let counts = sender.counts();
            assert_eq!(counts.sent, 20);
            if stage.fabric() != Fabric::Shm {
                assert_eq!(counts.received, 20);
            }
            assert_eq!((counts.released, counts.acknowledged), (0, 0));
            stage.tell("held");
            sender.wait_acked(15).expect("acknowledged");
            assert_eq!((sender.acked(), sender.released()), (15, 15));
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "counted");
            let mut messages: Vec<_> = (0..20)
                .map(|_| receiver.recv().expect("a message"))
                .collect();
            assert_eq!((receiver.received(), receiver.released()), (20, 0));
            stage.tell("received");
            stage.hear("held", &node);
            messages.drain(..15).for_each(ibex::Message::ack);
            assert_eq!(receiver.released(), 15);
            stage.hear("done", &node);
            messages.into_iter().for_each(drop);
            assert_eq!(receiver.released(), 20);
        }
    }
}

/// The sender learns the receiver's last acknowledgement with its end, whatever channel is opened
/// after it.
fn receiver_gone_acknowledged(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    for round in 0..stage.count(200) {
        let name = format!("round {round}");
        match stage.side {
            Side::Dialer => {
                let mut sender = sender(&peer, &name);
                sender.send(b"one").expect("sent");
                sender.wait_acked(1).expect("acknowledged");
            }
            Side::Listener => {
                let mut first = receiver(&peer, &name);
                first.recv().expect("a message").ack();
                drop(first);
                let _others = [0, 1].map(|other| receiver(&peer, &format!("{other} of {name}")));
            }
        }
    }
    stage.rendezvous("all rounds are over", &node);
}
