//! Reservations: payloads built in the memory from which they are sent.

use std::mem;

use ibex::{CloseReason, EndCause, Raw, RecvErrorKind, SendErrorKind};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, Stage, receiver, sender},
    stream::send_all,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("reservations_sent_and_dropped", sent_and_dropped),
    Scenario::new("reservation_of_a_full_channel", full),
    Scenario::new("reservation_leaked", leaked),
    Scenario::new("reservation_leaked_by_a_clone", leaked_by_a_clone),
];

/// Reservations of every size, of which every second is dropped unsent and leaves no trace.
fn sent_and_dropped(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let lengths = [
        0,
        1,
        64,
        1000,
        65_536,
        300_000,
        (1 << 20) - 8,
        1 << 20,
        3 << 20,
    ];
    let last = stage.count(40 * lengths.len() as u64);
    let length = |sequence: u64| lengths[sequence as usize % lengths.len()];
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "reserved");
            for sequence in 1..=last {
                let mut unsent = sender.loan(length(sequence + 3)).expect("room");
                unsent.fill(0xff);
                drop(unsent);
                let mut slot = sender.loan(length(sequence)).expect("room");
                assert_eq!(slot.len(), length(sequence));
                payload::fill(sequence, &mut slot);
                payload::check(sequence, &slot);
                assert_eq!(slot.send().expect("open"), sequence);
            }
            sender.wait_acked(last).expect("acknowledged");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "reserved");
            for sequence in 1..=last {
                let message = receiver.recv().expect("a message");
                assert_eq!(
                    (message.sequence(), message.len()),
                    (sequence, length(sequence))
                );
                payload::check(sequence, &message);
                message.ack();
            }
            assert!(receiver.next().expect("an orderly end").is_none());
        }
    }
}

/// A channel that is full or not open has no room to reserve.
fn full(stage: &mut Stage) {
    const WINDOW: u64 = 16;
    let (node, peer) = stage.meet();
    let channel = peer.channel("full").codec::<Raw>().window_messages(WINDOW);
    match stage.side {
        Side::Dialer => {
            let mut sender = channel.sender::<[u8]>().expect("a sender");
            assert!(
                matches!(sender.try_loan(8), Err(error) if error.kind() == SendErrorKind::NotOpened)
            );
            stage.tell("announced");
            sender.opened(LONG).expect("the peer opens");
            for _ in 0..WINDOW {
                sender.try_loan(8).expect("room").send().expect("open");
            }
            assert!(
                matches!(sender.try_loan(8), Err(error) if error.kind() == SendErrorKind::Full)
            );
            let too_long = sender.loan(1 << 30).expect_err("above the channel's limit");
            assert!(too_long.kind() == SendErrorKind::TooLong, "{too_long}");
            stage.tell("full");
            // The call waits for room.
            let sent = sender.loan(8).expect("room").send();
            assert_eq!(sent.expect("open"), WINDOW + 1);
            stage.hear("done", &node);
        }
        Side::Listener => {
            stage.hear("announced", &node);
            let mut receiver = channel.receiver::<[u8]>().expect("a receiver");
            stage.hear("full", &node);
            for _ in 0..=WINDOW {
                assert_eq!(receiver.recv().expect("a message").len(), 8);
            }
            stage.tell("done");
        }
    }
}

/// A leaked reservation ends the channel at both ends; earlier messages arrive.
fn leaked(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "leaked");
            send_all(&mut sender, 10, |_| 100);
            mem::forget(sender.loan(100).expect("room"));
            match sender.send(b"behind it") {
                Err(error) if error.kind() == SendErrorKind::Disconnected => {
                    assert_eq!(error.cause(), Some(&EndCause::SlotLeaked));
                    assert_eq!(error.counts().map(|counts| counts.sent), Some(10));
                }
                other => panic!("a slot was leaked: {other:?}"),
            }
            assert!(sender.try_loan(1).is_err());
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "leaked");
            expect_ten_then_leak(&mut receiver);
            stage.tell("done");
        }
    }
}

/// A handle with clones leaks its reservation and is dropped: the others do not wait for it.
fn leaked_by_a_clone(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "leaked");
            let mut clone = sender.clone();
            for sequence in 1..=10 {
                let handle = if sequence % 2 == 0 {
                    &mut sender
                } else {
                    &mut clone
                };
                handle
                    .send(&payload::numbered(sequence, 100))
                    .expect("sent");
            }
            mem::forget(clone.loan(2 << 20).expect("room"));
            drop(clone);
            match sender.send(b"behind it") {
                Err(error) if error.kind() == SendErrorKind::Disconnected => {
                    assert_eq!(error.cause(), Some(&EndCause::SlotLeaked));
                }
                other => panic!("a slot was leaked: {other:?}"),
            }
            stage.hear("done", &node);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "leaked");
            expect_ten_then_leak(&mut receiver);
            stage.tell("done");
        }
    }
}

fn expect_ten_then_leak(receiver: &mut crate::common::stage::BytesReceiver) {
    for sequence in 1..=10 {
        payload::check(sequence, &receiver.recv().expect("a message"));
    }
    match receiver.recv() {
        Err(error) if error.kind() == RecvErrorKind::Disconnected => {
            let cause = EndCause::PeerClosed(CloseReason::SlotLeaked);
            assert_eq!(error.cause(), Some(&cause));
            assert_eq!(error.counts().map(|counts| counts.received), Some(10));
        }
        other => panic!("the peer leaked a slot: {other:?}"),
    }
}
