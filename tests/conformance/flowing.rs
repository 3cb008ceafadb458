//! Messages flow in order and exactly once, on many channels and sessions, and no channel waits for
//! another.

use std::{sync::mpsc, thread};

use ibex::{Fabric, Peer, Raw, RecvErrorKind, SendErrorKind, WaitErrorKind};

use crate::common::{
    kernel, payload,
    scenario::{Scenario, Side, Span},
    stage::{LONG, MOMENT, Stage, receiver, sender},
    stream::{assert_ended, receive_all, send_all},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("order", order),
    Scenario::new("exactly_once", exactly_once),
    Scenario::new("ping_pong", ping_pong),
    Scenario::new("both_ways_at_once", both_ways_at_once),
    Scenario::new("many_channels", many_channels),
    Scenario::new("cloned_senders", cloned_senders),
    Scenario::new("sixteen_sessions", sixteen_sessions),
    Scenario::new("two_hundred_sessions", two_hundred_sessions).on(Span::EachFabricButVerbs),
    Scenario::new("back_pressure", back_pressure),
    Scenario::new("large_stream", large_stream),
    Scenario::new("waiting_is_sleeping", waiting_is_sleeping),
    Scenario::new("forms", forms),
];

/// Messages of mixed sizes arrive in the order in which they were sent.
fn order(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let length = |sequence| (sequence * 37 % 3000) as usize;
    let last = stage.count(10_000);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "wal");
            send_all(&mut sender, last, length);
            sender.wait_acked(last).expect("all are acknowledged");
            assert_eq!(sender.acked(), last);
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "wal");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}

/// Many small messages arrive: none is lost, and none comes twice.
fn exactly_once(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let length = |sequence| 16 + (sequence % 64) as usize;
    let last = stage.count(100_000);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "small");
            send_all(&mut sender, last, length);
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "small");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}

/// A stream of messages longer than a frame. Over tcp the other side has to answer each
/// announcement, and sends hardly anything else: a few frames more on a slow machine.
fn large_stream(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let length = |sequence| (256 << 10) + (sequence % 3) as usize;
    let last = stage.count(1000);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "large");
            sender.opened(LONG).expect("open");
            let before = peer.stats().frames_received;
            send_all(&mut sender, last, length);
            let frames = peer.stats().frames_received - before;
            if stage.fabric() == Fabric::Tcp {
                assert!(
                    frames <= last + last / 10,
                    "{frames} frames came back for {last} messages"
                );
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "large");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}

/// Each message waits for the answer to the one before, so both sides sleep and wake.
fn ping_pong(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let last = stage.count(5_000);
    match stage.side {
        Side::Dialer => {
            let (mut ping, mut pong) = (sender(&peer, "ping"), receiver(&peer, "pong"));
            for sequence in 1..=last {
                ping.send(&payload::numbered(sequence, 64)).expect("sent");
                let answer = pong.recv().expect("an answer");
                payload::check(sequence, &answer);
            }
            ping.close().expect("delivered");
            assert_ended(pong);
        }
        Side::Listener => {
            let (mut ping, mut pong) = (receiver(&peer, "ping"), sender(&peer, "pong"));
            while let Some(message) = ping.next().expect("a ping") {
                pong.send(&message).expect("sent");
            }
        }
    }
}

/// Both sides send everything before they receive more than they must.
fn both_ways_at_once(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let (here, there) = match stage.side {
        Side::Dialer => ("east", "west"),
        Side::Listener => ("west", "east"),
    };
    let last = stage.count(50_000);
    let length = |sequence| (sequence % 500) as usize;
    let (mut sender, mut receiver) = (sender(&peer, here), receiver(&peer, there));
    thread::scope(|scope| {
        scope.spawn(|| {
            send_all(&mut sender, last, length);
            sender.flush().expect("delivered");
        });
        receive_all(&mut receiver, last, length);
    });
    drop(sender);
    assert_ended(receiver);
}

/// 64 channels at once are received in another order than they were sent.
fn many_channels(stage: &mut Stage) {
    const CHANNELS: usize = 64;
    let (_node, peer) = stage.meet();
    let last = stage.count(1_000);
    let length = |sequence| 32 + (sequence % 100) as usize;
    let name = |channel| format!("channel {channel}");
    match stage.side {
        Side::Dialer => {
            let mut senders: Vec<_> = (0..CHANNELS)
                .map(|channel| sender(&peer, &name(channel)))
                .collect();
            for sequence in 1..=last {
                let bytes = payload::numbered(sequence, length(sequence));
                for sender in &mut senders {
                    assert_eq!(sender.send(&bytes).expect("sent"), sequence);
                }
            }
            for mut sender in senders {
                sender.wait_acked(last).expect("acknowledged");
            }
        }
        Side::Listener => {
            let mut receivers: Vec<_> = (0..CHANNELS)
                .map(|channel| receiver(&peer, &name(channel)))
                .collect();
            for receiver in receivers.iter_mut().rev() {
                receive_all(receiver, last, length);
            }
            receivers.into_iter().for_each(assert_ended);
        }
    }
}

/// Eight threads send through clones of one sender; the messages of each keep their order.
fn cloned_senders(stage: &mut Stage) {
    const THREADS: u64 = 8;
    let (_node, peer) = stage.meet();
    let each = stage.count(5_000);
    match stage.side {
        Side::Dialer => {
            let sender = sender(&peer, "shared");
            thread::scope(|scope| {
                for thread in 0..THREADS {
                    let mut sender = sender.clone();
                    scope.spawn(move || {
                        let mut before = 0;
                        for number in 1..=each {
                            let bytes = [thread.to_le_bytes(), number.to_le_bytes()].concat();
                            let sequence = sender.send(&bytes).expect("sent");
                            assert!(sequence > before);
                            before = sequence;
                        }
                    });
                }
            });
            let mut sender = sender;
            sender.wait_acked(THREADS * each).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "shared");
            let mut seen = [0; THREADS as usize];
            for sequence in 1..=THREADS * each {
                let message = receiver.recv().expect("a message");
                assert_eq!(message.sequence(), sequence);
                let (thread, number) = message.split_at(8);
                let thread = u64::from_le_bytes(thread.try_into().expect("8 bytes"));
                let number = u64::from_le_bytes(number.try_into().expect("8 bytes"));
                assert_eq!(number, seen[thread as usize] + 1, "of thread {thread}");
                seen[thread as usize] = number;
                message.ack();
            }
            assert_ended(receiver);
        }
    }
}

/// Sixteen sessions between two nodes, each with channels of the same names.
fn sixteen_sessions(stage: &mut Stage) {
    let last = stage.count(1_000);
    many_sessions(stage, 16, last);
}

/// Two hundred sessions are open at once. Over verbs `tests/rdma_crowd.rs` has as many, with
/// settings that suit a device emulated by the kernel.
fn two_hundred_sessions(stage: &mut Stage) {
    kernel::allow_descriptors();
    many_sessions(stage, 200, 10);
}

/// Each session carries messages 1 to `last` there and back, in turns with the others, and ends.
fn many_sessions(stage: &mut Stage, sessions: usize, last: u64) {
    let length = |sequence| (sequence % 200) as usize;
    match stage.side {
        Side::Dialer => {
            let node = stage.builder().build().expect("a node");
            let address = stage.hear_any();
            let peers: Vec<_> = (0..sessions)
                .map(|_| node.connect(&address).expect("a session"))
                .collect();
            check_some(stage, &peers);
            let mut senders: Vec<_> = peers.iter().map(|peer| sender(peer, "up")).collect();
            let receivers: Vec<_> = peers.iter().map(|peer| receiver(peer, "down")).collect();
            for sequence in 1..=last {
                let bytes = payload::numbered(sequence, length(sequence));
                for sender in &mut senders {
                    sender.send(&bytes).expect("sent");
                }
            }
            senders
                .into_iter()
                .for_each(|sender| sender.close().expect("delivered"));
            for mut receiver in receivers {
                receive_all(&mut receiver, last, length);
                assert_ended(receiver);
            }
        }
        Side::Listener => {
            let node = stage.listen();
            let peers: Vec<_> = (0..sessions)
                .map(|_| node.accept().expect("a peer"))
                .collect();
            check_some(stage, &peers);
            let mut ends: Vec<_> = peers
                .iter()
                .map(|peer| (receiver(peer, "up"), sender(peer, "down")))
                .collect();
            for sequence in 1..=last {
                for (up, down) in &mut ends {
                    let message = up.recv().expect("a message");
                    assert_eq!(message.sequence(), sequence);
                    down.send(&message).expect("sent");
                    message.ack();
                }
            }
            for (up, down) in ends {
                assert_ended(up);
                down.close().expect("delivered");
            }
        }
    }
}

/// Checks about sixteen of the peers, since each check asks the kernel about every descriptor.
fn check_some(stage: &Stage, peers: &[Peer]) {
    let some = peers.iter().step_by(peers.len() / 16);
    some.for_each(|peer| stage.check_peer(peer));
}

/// An unread channel fills up and stops; the channel beside it continues.
fn back_pressure(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let stalled = peer
        .channel("stalled")
        .codec::<Raw>()
        .window_bytes(64 << 10);
    let length = |_| 500;
    let last = stage.count(10_000);
    match stage.side {
        Side::Dialer => {
            let mut stalled = stalled.sender::<[u8]>().expect("a sender");
            let mut flowing = sender(&peer, "flowing");
            stalled.opened(LONG).expect("open");
            let mut sent = 0;
            let full = loop {
                match stalled.try_send(&payload::numbered(sent + 1, 500)) {
                    Ok(sequence) => sent = sequence,
                    Err(full) => break full,
                }
            };
            assert!(
                full.kind() == SendErrorKind::Full && full.is_transient(),
                "{full}"
            );
            assert!((100..=128).contains(&sent), "{sent} messages fit 64 KiB");
            send_all(&mut flowing, last, length);
            flowing.wait_acked(last).expect("acknowledged");
            flowing.close().expect("delivered");
            assert!(
                stalled
                    .send_timeout(&payload::numbered(sent + 1, 500), MOMENT)
                    .is_err()
            );
            stage.tell(&sent.to_string());
            // There is room again.
            assert_eq!(
                stalled
                    .send(&payload::numbered(sent + 1, 500))
                    .expect("sent"),
                sent + 1
            );
            stalled.wait_acked(sent + 1).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut stalled = stalled.receiver::<[u8]>().expect("a receiver");
            let mut flowing = receiver(&peer, "flowing");
            receive_all(&mut flowing, last, length);
            // No thread drives this node until the sender has finished with its full channel.
            assert_ended(flowing);
            let sent: u64 = stage.hear_any().parse().expect("a number");
            receive_all(&mut stalled, sent + 1, length);
            stage.hear("done", &node);
        }
    }
}

/// A waiting thread sleeps in the kernel, whatever was sent and released before, and is woken.
fn waiting_is_sleeping(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let (here, there) = match stage.side {
        Side::Dialer => ("east", "west"),
        Side::Listener => ("west", "east"),
    };
    let (mut out, mut back) = (sender(&peer, here), receiver(&peer, there));
    for round in 0..20 {
        for sequence in 4 * round + 1..=4 * round + 3 {
            out.send(&payload::numbered(sequence, 100)).expect("sent");
        }
        out.flush().expect("delivered");
        thread::scope(|scope| {
            let (started, waiter) = mpsc::channel();
            let back = &mut back;
            scope.spawn(move || {
                for sequence in 4 * round + 1..=4 * round + 3 {
                    payload::check(sequence, &back.recv().expect("a message"));
                }
                started.send(kernel::this_thread()).expect("somebody waits");
                payload::check(4 * round + 4, &back.recv().expect("a message"));
            });
            kernel::wait_until_asleep(waiter.recv().expect("the thread lives"));
            stage.rendezvous("asleep", &node);
            out.send(&payload::numbered(4 * round + 4, 100))
                .expect("sent");
            out.flush().expect("delivered");
        });
    }
}

/// The results of calls that do not wait, or wait for a limited time.
fn forms(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "forms");
            let refused = sender
                .try_send(b"early")
                .expect_err("the peer has not opened");
            assert!(refused.kind() == SendErrorKind::NotOpened && refused.is_transient());
            assert!(sender.opened(MOMENT).is_err());
            stage.tell("closed");
            sender.opened(LONG).expect("the peer opens");
            stage.hear("empty", &node);
            assert_eq!(sender.try_send(b"one").expect("sent"), 1);
            assert_eq!(sender.send_timeout(b"two", LONG).expect("sent"), 2);
            sender.flush_timeout(LONG).expect("delivered");
            sender.send(b"three").expect("sent");
            sender.send(b"four").expect("sent");
            let unanswered = sender
                .wait_acked_timeout(4, MOMENT)
                .expect_err("nobody acknowledges");
            assert_eq!(unanswered.kind(), WaitErrorKind::Timeout);
            let (channel, sequence) = (unanswered.channel(), unanswered.sequence());
            assert_eq!((channel, sequence), (Some("forms"), Some(4)));
            assert_eq!(unanswered.peer(), Some(&*peer.address().to_string()));
            let counts = unanswered.counts().expect("how far it is");
            assert_eq!((counts.sent, counts.acknowledged), (4, 0));
            stage.hear("done", &node);
        }
        Side::Listener => {
            stage.hear("closed", &node);
            let mut receiver = receiver(&peer, "forms");
            receiver.opened(LONG).expect("the peer has opened");
            let empty = receiver.try_recv().expect_err("nothing was sent");
            assert!(empty.kind() == RecvErrorKind::Empty && empty.is_transient());
            assert!(receiver.recv_timeout(MOMENT).is_err());
            stage.tell("empty");
            let one = receiver.recv_timeout(LONG).expect("a message");
            assert_eq!(&one[..], b"one");
            let two = receiver.next().expect("a message").expect("not the end");
            assert_eq!(
                (&two[..], two.sequence(), two.bytes()),
                (&b"two"[..], 2, &b"two"[..])
            );
            let mut rest = receiver.iter();
            assert_eq!(
                &rest.next().expect("a message").expect("valid")[..],
                b"three"
            );
            assert_eq!(
                &rest.next().expect("a message").expect("valid")[..],
                b"four"
            );
            stage.tell("done");
            assert!(rest.next().is_none(), "the sender is gone in order");
        }
    }
}
