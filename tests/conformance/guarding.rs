//! Guards: messages may be held for long, dropped in any order, on any thread and after everything
//! else is gone. A held message blocks its own channel and no other.

use ibex_harness::wait_until;
use std::{
    mem,
    panic::{self, AssertUnwindSafe},
    sync::mpsc,
    thread,
};

use ibex::{Message, Raw, RecvErrorKind, WaitErrorKind};

use crate::common::{
    kernel, payload,
    scenario::{Scenario, Side},
    stage::{BytesReceiver, BytesSender, LONG, MOMENT, Stage, receiver, sender},
    stream::send_all,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("guards_out_of_order", out_of_order),
    Scenario::new("guards_on_other_threads", on_other_threads),
    Scenario::new("guard_held_for_long", held_for_long),
    Scenario::new("guard_detached", detached),
    Scenario::new("all_guards_detached", all_detached),
    Scenario::new("large_guards_held", large_held),
    Scenario::new("guards_outlive_the_node", outlive_the_node),
    Scenario::new("guard_dropped_by_unwinding", unwinding),
    Scenario::new("guards_leaked", leaked),
];

type Guard = Message<[u8], Raw>;

/// Guards are dropped and acknowledged in a mixed order: the counters follow the prefix.
fn out_of_order(stage: &mut Stage) {
    const BATCH: u64 = 100;
    let (node, peer) = stage.meet();
    let rounds = stage.count(100);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "guards");
            for round in 0..rounds {
                for number in 1..=BATCH {
                    let sequence = round * BATCH + number;
                    sender
                        .send(&payload::numbered(sequence, 300))
                        .expect("sent");
                }
                sender
                    .wait_acked((round + 1) * BATCH)
                    .expect("acknowledged");
                assert_eq!(sender.released(), (round + 1) * BATCH);
            }
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "guards");
            for round in 0..rounds {
                let first = round * BATCH + 1;
                let mut guards: Vec<Option<Guard>> = (0..BATCH)
                    .map(|_| Some(receiver.recv().expect("a message")))
                    .collect();
                // 37 shares no factor with 100, so every guard occurs once.
                for turn in 0..BATCH {
                    let place = (turn * 37 + 50) % BATCH;
                    let guard = guards[place as usize].take().expect("not yet released");
                    assert_eq!(guard.sequence(), first + place);
                    payload::check(first + place, &guard);
                    guard.ack();
                    // The prefix ends before the first guard that is still held.
                    let held = guards
                        .iter()
                        .position(Option::is_some)
                        .unwrap_or(BATCH as usize);
                    await_released(&receiver, round * BATCH + held as u64);
                }
            }
            stage.hear("done", &node);
        }
    }
}

/// Waits until everything up to `last` is released, and checks that no more is. The engine may be
/// summing at this moment, and is then slightly ahead of its report.
fn await_released(receiver: &BytesReceiver, last: u64) {
    wait_until(|| receiver.released() >= last);
    assert_eq!(receiver.released(), last);
}

/// Guards move to four threads, which read and finish them there.
fn on_other_threads(stage: &mut Stage) {
    const THREADS: u64 = 4;
    let (_node, peer) = stage.meet();
    let last = stage.count(40_000);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "guards");
            send_all(&mut sender, last, |_| 200);
            sender.wait_acked(last).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "guards");
            thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| {
                        let (to, from) = mpsc::sync_channel::<Guard>(100);
                        scope.spawn(move || {
                            for guard in from {
                                payload::check(guard.sequence(), &guard);
                                guard.ack();
                            }
                        });
                        to
                    })
                    .collect();
                for sequence in 1..=last {
                    let guard = receiver.recv().expect("a message");
                    assert_eq!(guard.sequence(), sequence);
                    threads[(sequence % THREADS) as usize]
                        .send(guard)
                        .expect("the thread lives");
                }
            });
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// A guard is held throughout: its channel stops after one window, and another continues. When the
/// guard is dropped, its channel continues as well.
fn held_for_long(stage: &mut Stage) {
    const WINDOW: u64 = 16;
    let (node, peer) = stage.meet();
    let channel = peer.channel("held").codec::<Raw>().window_messages(WINDOW);
    let last = stage.count(20_000);
    match stage.side {
        Side::Dialer => {
            let mut held = channel.sender::<[u8]>().expect("a sender");
            let mut flowing = sender(&peer, "flowing");
            for sequence in 1..=WINDOW {
                held.send(&payload::numbered(sequence, 64))
                    .expect("in the window");
            }
            assert!(held.send_timeout(b"one too many", MOMENT).is_err());
            send_all(&mut flowing, last, |_| 1000);
            flowing.wait_acked(last).expect("acknowledged");
            assert!(held.send_timeout(b"one too many", MOMENT).is_err());
            assert_eq!(held.released(), 0);
            stage.tell("stalled");
            for sequence in WINDOW + 1..=4 * WINDOW {
                assert_eq!(
                    held.send(&payload::numbered(sequence, 64)).expect("sent"),
                    sequence
                );
            }
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut held = channel.receiver::<[u8]>().expect("a receiver");
            let mut flowing = receiver(&peer, "flowing");
            let oldest = held.recv().expect("a message");
            for sequence in 2..=WINDOW {
                payload::check(sequence, &held.recv().expect("a message"));
            }
            for sequence in 1..=last {
                let message = flowing.recv().expect("a message");
                payload::check(sequence, &message);
                message.ack();
            }
            stage.hear("stalled", &node);
            assert!(matches!(held.try_recv(), Err(error) if error.kind() == RecvErrorKind::Empty));
            payload::check(1, &oldest);
            drop(oldest);
            for sequence in WINDOW + 1..=4 * WINDOW {
                payload::check(sequence, &held.recv().expect("a message"));
            }
            stage.tell("done");
        }
    }
}

/// A held message stops its channel once the ring is full. After `into_owned`, the message is kept and
/// the channel continues. It can still be acknowledged.
fn detached(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    // The ring holds about 120 messages; the receiver may have 1024 unfinished.
    let channel = peer
        .channel("detached")
        .codec::<Raw>()
        .window_bytes(64 << 10)
        .window_messages(1024);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            let fill = |sender: &mut BytesSender| loop {
                let next = sender.counts().sent + 1;
                if sender
                    .send_timeout(&payload::numbered(next, 500), MOMENT)
                    .is_err()
                {
                    return next - 1;
                }
            };
            let full = fill(&mut sender);
            assert!(
                full < 130 && sender.released() == 0,
                "{full} messages in 64 KiB"
            );
            stage.tell("stalled");
            for sequence in full + 1..=900 {
                assert_eq!(
                    sender
                        .send(&payload::numbered(sequence, 500))
                        .expect("sent"),
                    sequence
                );
            }
            stage.tell("flowing");
            match sender.wait_acked(3) {
                Err(error)
                    if error.kind() == WaitErrorKind::Unacknowledged
                        && error.sequence() == Some(3) => {}
                other => panic!("message 3 was dropped: {other:?}"),
            }
            assert_eq!(sender.acked(), 2);
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            let first = receiver.recv().expect("a message");
            let second = receiver.recv().expect("a message").into_owned();
            stage.hear("stalled", &node);
            let first = first.into_owned();
            for sequence in 3..=900 {
                payload::check(sequence, &receiver.recv().expect("a message"));
            }
            stage.hear("flowing", &node);
            assert_eq!((first.sequence(), second.sequence()), (1, 2));
            payload::check(1, &first);
            payload::check(2, &second);
            second.ack();
            first.ack();
            stage.hear("done", &node);
        }
    }
}

/// All messages that may be unfinished are detached: the receiver waits, and continues when another
/// thread finishes them.
fn all_detached(stage: &mut Stage) {
    const WINDOW: u64 = 16;
    let (node, peer) = stage.meet();
    let channel = peer
        .channel("detached")
        .codec::<Raw>()
        .window_messages(WINDOW);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            send_all(&mut sender, 1000, |_| 100);
            sender.wait_acked(1000).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            let (to, from) = mpsc::channel::<Guard>();
            thread::scope(|scope| {
                let us = kernel::this_thread();
                let finisher = scope.spawn(move || {
                    // The receiver has everything that it can get.
                    let mut batch = Vec::new();
                    while let Ok(guard) = from.recv() {
                        batch.push(guard);
                        batch.extend(from.try_iter());
                        if !is_last(&batch) {
                            kernel::wait_until_asleep(us);
                            batch.extend(from.try_iter());
                        }
                        batch.drain(..).for_each(ibex::Message::ack);
                    }
                });
                for sequence in 1..=1000 {
                    let guard = receiver.recv().expect("a message").into_owned();
                    payload::check(sequence, &guard);
                    to.send(guard).expect("the thread lives");
                }
                drop(to);
                finisher.join().expect("the thread returns");
            });
            stage.hear("done", &node);
        }
    }

    fn is_last(batch: &[Guard]) -> bool {
        batch.last().is_some_and(|guard| guard.sequence() == 1000)
    }
}

/// Messages longer than the ring are held while more of them come.
fn large_held(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let length = |sequence: u64| (1 << 20) + sequence as usize * 100_001;
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "large");
            send_all(&mut sender, 12, length);
            sender.wait_acked(12).expect("acknowledged");
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "large");
            let mut held = std::collections::VecDeque::new();
            for _ in 1..=12 {
                held.push_back(receiver.recv().expect("a message"));
                if held.len() == 2 {
                    finish(&mut held, length);
                }
            }
            finish(&mut held, length);
            stage.hear("done", &node);
        }
    }

    fn finish(held: &mut std::collections::VecDeque<Guard>, length: impl Fn(u64) -> usize) {
        let guard = held.pop_front().expect("one is held");
        assert_eq!(guard.len(), length(guard.sequence()));
        payload::check(guard.sequence(), &guard);
        guard.ack();
    }
}

/// Guards of both kinds of messages stay readable when receiver, peer and node are gone.
fn outlive_the_node(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let length = |sequence| if sequence % 10 == 0 { 700_000 } else { 100 };
    // A large message waits until the one before is released, so one suffices.
    let last = 19;
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "guards");
            send_all(&mut sender, last, length);
            stage.hear("gone", &node);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "guards");
            let guards: Vec<Guard> = (0..last)
                .map(|_| receiver.recv().expect("a message"))
                .collect();
            drop(receiver);
            drop(peer);
            drop(node);
            // The memory of another node must not be the old one's.
            let other = stage.builder().build().expect("a node");
            let check = move |guards: &[Guard]| {
                for guard in guards {
                    assert_eq!(guard.len(), length(guard.sequence()));
                    payload::check(guard.sequence(), guard);
                }
            };
            check(&guards);
            stage.tell("gone");
            let finish = move || {
                check(&guards);
                for (number, guard) in guards.into_iter().rev().enumerate() {
                    if number % 2 == 0 {
                        guard.ack();
                    } else {
                        drop(guard.into_owned());
                    }
                }
            };
            thread::spawn(finish).join().expect("the thread returns");
            drop(other);
        }
    }
}

/// A panic between receiving a message and acknowledging it is no acknowledgement.
fn unwinding(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "panics");
            send_all(&mut sender, 3, |_| 32);
            sender.wait_acked(1).expect("the first is acknowledged");
            match sender.wait_acked(3) {
                Err(error)
                    if error.kind() == WaitErrorKind::Unacknowledged
                        && error.sequence() == Some(2) => {}
                other => panic!("message 2 was dropped by unwinding: {other:?}"),
            }
            assert_eq!(sender.acked(), 1);
            stage.tell("done");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "panics");
            receiver.recv().expect("a message").ack();
            let second = receiver.recv().expect("a message");
            let panicked = panic::catch_unwind(AssertUnwindSafe(move || {
                if second.len() == 32 {
                    // The effect is that of `panic!`, without the output of its hook.
                    panic::resume_unwind(Box::new("before the acknowledgement"));
                }
                second.ack();
            }));
            assert!(panicked.is_err());
            receiver.recv().expect("a message").ack();
            stage.hear("done", &node);
        }
    }
}

/// `mem::forget` of guards costs their room; `mem::forget` of handles leaves the channel open until
/// the node goes. Nothing crashes, hangs or tears.
fn leaked(stage: &mut Stage) {
    const WINDOW: u64 = 16;
    let (node, peer) = stage.meet();
    let channel = peer.channel("leaks").codec::<Raw>().window_messages(WINDOW);
    match stage.side {
        Side::Dialer => {
            let mut leaking = channel.sender::<[u8]>().expect("a sender");
            let mut unused = sender(&peer, "unused");
            for sequence in 1..=WINDOW + 4 {
                leaking
                    .send(&payload::numbered(sequence, 64))
                    .expect("sent");
            }
            assert!(leaking.send_timeout(b"one too many", MOMENT).is_err());
            unused.opened(LONG).expect("the peer opens");
            stage.rendezvous("leaked", &node);
            mem::forget(leaking);
            mem::forget(unused);
        }
        Side::Listener => {
            let mut leaking = channel.receiver::<[u8]>().expect("a receiver");
            let mut unused = receiver(&peer, "unused");
            unused.opened(LONG).expect("the peer opens");
            for sequence in 1..=4 {
                payload::check(sequence, &leaking.recv().expect("a message"));
            }
            for sequence in 5..=WINDOW + 4 {
                let message = leaking.recv().expect("a message");
                payload::check(sequence, &message);
                mem::forget(message);
            }
            stage.rendezvous("leaked", &node);
            // The peer's handles are leaked, but its node ends their channels.
            assert!(leaking.next().is_ok_and(|message| message.is_none()));
            assert!(unused.next().is_ok_and(|message| message.is_none()));
            mem::forget(leaking);
        }
    }
}
