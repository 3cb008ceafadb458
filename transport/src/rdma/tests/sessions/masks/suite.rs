//! Messages that every fabric has to carry, over devices that lack an ability which could break
//! them.

use std::time::Duration;

use ibex_protocol::format::control::CloseReason;

use super::{
    super::resuming::{Breaks, Resuming, VERBS_FIRST},
    *,
};
use crate::{
    channel::FailureReason,
    clock::StoppedClock,
    session::{EndCause, FailoverPolicy},
};

/// A window so small that a sender waits soon.
const NARROW: ChannelWindow = ChannelWindow {
    messages: 8,
    bytes: 64 << 10,
};

/// Sends messages of 900 bytes until there is no room.
fn send_until_full(sender: &mut SendHandle, mut number: u64) -> u64 {
    loop {
        match try_send(sender, &payload(number + 1, 900)) {
            Ok(sequence) => number = sequence,
            Err(ChannelError::WouldBlock) => return number,
            Err(other) => panic!("message {}: {other:?}", number + 1),
        }
    }
}

#[test]
fn reservations_of_every_size_are_sent_or_leave_no_trace() {
    const LENGTHS: [usize; 9] = [
        0,
        1,
        64,
        1000,
        4100,
        65_536,
        300_000,
        (1 << 20) - 8,
        3 << 20,
    ];
    on_each(|stage| {
        let (mut sender, mut receiver) = stage.channel("reserved", WINDOW);
        for number in 1..=2 * LENGTHS.len() as u64 {
            let length = |number: u64| LENGTHS[number as usize % LENGTHS.len()];
            let mut unsent = sender.reserve(length(number + 3), Patience::None).unwrap();
            unsent.bytes_mut().fill(0xff);
            drop(unsent);
            let mut slot = sender.reserve(length(number), Patience::None).unwrap();
            slot.bytes_mut()
                .copy_from_slice(&payload(number, length(number)));
            assert_eq!(slot.publish().unwrap(), number);
            // A large message takes some rounds.
            let message = (0..100).find_map(|_| {
                stage.settle();
                receiver.poll().unwrap()
            });
            let message = message.expect("it comes");
            assert_eq!(message.sequence(), number);
            assert!(*message.bytes() == payload(number, length(number))[..]);
            drop(message);
            assert!(receiver.receive(Patience::None).is_err());
            stage.settle();
        }
    });
}

#[test]
fn short_messages_pass_a_large_one_of_another_channel() {
    const LARGE: usize = 5 << 20;
    on_each(|stage| {
        let (mut large, mut taker) = stage.channel("large", WINDOW);
        let mut others: Vec<_> = (0..3)
            .map(|number| stage.open(number % 2, &format!("short {number}"), WINDOW))
            .collect();
        stage.settle();
        send(&mut large, 1, LARGE);
        for number in 0..20 {
            for (sender, receiver) in &mut others {
                send(sender, number, 700);
                stage.settle();
                let message = receiver.poll().unwrap().expect("it is short");
                assert_eq!(message.bytes(), payload(number, 700));
            }
        }
        let message = (0..1000).find_map(|_| {
            stage.settle();
            taker.poll().unwrap()
        });
        assert!(*message.expect("it comes").bytes() == payload(1, LARGE)[..]);
    });
}

#[test]
fn a_window_and_credit_that_are_spent_come_back_as_messages_are_released() {
    on_each(|stage| {
        let mut ends: Vec<_> = (0..6)
            .map(|number| stage.open(number % 2, &format!("narrow {number}"), NARROW))
            .collect();
        stage.settle();
        let mut carried = [0; 6];
        for _ in 0..12 {
            for ((sender, _), carried) in ends.iter_mut().zip(&mut carried) {
                let sent = send_until_full(sender, *carried);
                // Releases are reported when half of the window is released, or on request.
                let free = NARROW.messages / 2..=NARROW.messages;
                assert!(free.contains(&(sent - *carried)), "{sent} behind {carried}");
                *carried = sent;
            }
            // All messages that the peers' buffers can hold are in flight at once.
            stage.settle();
            for ((_, receiver), carried) in ends.iter_mut().zip(&carried) {
                while let Some(message) = receiver.poll().unwrap() {
                    assert_eq!(message.bytes(), payload(message.sequence(), 900));
                    drop(message);
                    stage.settle();
                }
                assert!(receiver.receive(Patience::None).is_err());
                assert_eq!(receiver.counters().released, *carried);
                stage.settle();
            }
        }
        for ((sender, _), carried) in ends.iter_mut().zip(carried) {
            // The sender finds no room now, and asks.
            let sent = send_until_full(sender, carried);
            stage.settle();
            assert!(sender.counts().released >= carried && sent > carried);
        }
    });
}

#[test]
fn messages_are_released_in_any_order_and_counted_without_a_gap() {
    on_each(|stage| {
        let (mut sender, mut receiver) = stage.channel("held", NARROW);
        for round in 0..5 {
            let sent = send_until_full(&mut sender, round * NARROW.messages);
            assert_eq!(sent, (round + 1) * NARROW.messages);
            stage.settle();
            let mut held = take(&mut receiver).unwrap();
            assert_eq!(held.len() as u64, NARROW.messages);
            // All messages but the second and the last are released, from the back.
            for at in [6, 5, 4, 3, 2, 0] {
                let message = held.remove(at);
                let number = round * NARROW.messages + at as u64 + 1;
                assert_eq!(message.bytes(), payload(number, 900));
            }
            assert_eq!(receiver.counters().released, round * NARROW.messages + 1);
            stage.settle();
            assert_eq!(held[0].bytes(), payload(held[0].sequence(), 900));
            assert_eq!(held[1].bytes(), payload(held[1].sequence(), 900));
            held.clear();
            assert!(receiver.receive(Patience::None).is_err());
            stage.settle();
            assert_eq!(sender.counts().released, sent);
        }
    });
}

#[test]
fn acknowledgements_reach_the_sender_up_to_the_first_that_is_missing() {
    on_each(|stage| {
        let (mut sender, mut receiver) = stage.channel("acknowledged", WINDOW);
        for number in 1..=10 {
            send(&mut sender, number, 400 * number as usize);
        }
        stage.settle();
        for message in take(&mut receiver).unwrap() {
            match message.sequence() {
                6 => drop(message),
                _ => message.acknowledge(),
            }
        }
        assert!(receiver.receive(Patience::None).is_err());
        // A sender that asks is notified.
        assert!(sender.wait_acked(5, Patience::None).is_err());
        stage.settle();
        sender.wait_acked(5, Patience::None).unwrap();
        match sender.wait_acked(10, Patience::None) {
            Err(error) if matches!(error.reason(), Some(FailureReason::Unacknowledged(6))) => {}
            other => panic!("message 6 was dropped: {other:?}"),
        }
        let counts = sender.counts();
        assert_eq!((counts.released, counts.acknowledged), (10, 5));
    });
}

#[test]
fn counts_and_messages_arrive_whichever_end_closes_first() {
    on_each(|stage| {
        // First the receiver closes.
        let (mut sender, mut receiver) = stage.channel("left", WINDOW);
        for number in 1..=20 {
            send(&mut sender, number, 1500);
        }
        stage.settle();
        for _ in 0..5 {
            receiver.poll().unwrap().expect("it is there").acknowledge();
        }
        drop(receiver);
        stage.settle();
        match try_send(&mut sender, &[1; 8]) {
            Err(ChannelError::Failed(end)) => {
                let FailureReason::Broken(cause) = &end.reason else {
                    panic!("{end}");
                };
                assert_eq!(*cause, EndCause::PeerClosed(CloseReason::Dropped));
                assert_eq!((end.counts.sent, end.counts.acknowledged), (20, 5));
                assert!((5..=20).contains(&end.counts.received), "{}", end.counts);
            }
            other => panic!("{other:?}"),
        }
        // Then the sender's node closes, after the messages that it sent.
        let (mut sender, mut receiver) = stage.channel("closed", WINDOW);
        for number in 1..=20 {
            send(&mut sender, number, 3000);
        }
        stage.nodes[0].runtime.begin_close();
        stage.settle();
        assert_eq!(consume_until_over(&mut receiver), 20);
        assert!(matches!(receiver.poll(), Err(ChannelError::Ended)));
        assert!(stage.nodes.iter().all(|node| node.session.is_gone()));
    });
}

#[test]
fn a_ring_that_went_back_is_taken_again() {
    /// A stage, its channel, and the number of regions before the channel had a ring.
    struct Resting {
        stage: Stage,
        ends: (SendHandle, ReceiveHandle),
        regions: usize,
    }

    let clock = StoppedClock::stop();
    let regions = |stage: &Stage| stage.fake.alive()["memory regions"];
    let mut resting: Vec<_> = masked()
        .map(|(fake, settings, _)| {
            let stage = Stage::on(fake, settings);
            let mut ends = stage.channel("rests", WINDOW);
            let before = regions(&stage);
            send(&mut ends.0, 1, 100);
            stage.settle();
            assert_eq!(consume(&mut ends.1), 1);
            Resting {
                stage,
                ends,
                regions: before,
            }
        })
        .collect();
    // A ring is given back after two checks, one second apart. All stages rest at the same time, and
    // a minute is far more than enough.
    let mut ticks = 0;
    let rests = |one: &Resting| regions(&one.stage) <= one.regions;
    while !resting.iter().all(rests) {
        assert!(ticks < 6000, "rings stay");
        ticks += 1;
        clock.advance(Duration::from_millis(10));
        resting.iter().for_each(|one| one.stage.settle());
    }
    for Resting { stage, ends, .. } in &mut resting {
        let (sender, receiver) = ends;
        for number in 2..30 {
            send(sender, number, 100 * number as usize);
            stage.settle();
            let message = receiver.poll().unwrap().expect("it is there");
            assert_eq!(message.sequence(), number);
            assert_eq!(message.bytes(), payload(number, 100 * number as usize));
        }
    }
}

#[test]
fn a_session_that_breaks_goes_on_over_another_queue_pair_or_over_tcp() {
    for ways in [VERBS_FIRST, FailoverPolicy::Only(Fabric::Tcp)] {
        let to = match ways {
            FailoverPolicy::Only(fabric) => fabric,
            FailoverPolicy::VerbsThenTcp { .. } => Fabric::Verbs,
        };
        for (fake, settings, _) in masked() {
            let mut test = Resuming::by(ways, fake, settings);
            test.carry(12);
            test.calm_down();
            test.stage.fake.hold_sends(true);
            test.carry(2);
            test.breaks(Breaks::Send(12));
            test.stage.fake.hold_sends(false);
            test.carry(5);
            test.settle_resumed(1);
            test.settle_over(to);
            test.carry(12);
            test.finish();
            let counts = test.stage.stats().map(|end| (end.suspensions, end.resumes));
            assert_eq!(counts, [(1, 1); 2]);
        }
    }
}
