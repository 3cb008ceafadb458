//! A single call waits for several receivers: none is starved, nothing is missed, and the arrival
//! at any of them wakes a sleeper.

use ibex_harness::wait_until;
use std::time::Duration;

use ibex::{Pod, Raw, Receiver, RecvErrorKind, Select, Selectable};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage, receiver, sender},
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("select_types", select_types),
    Scenario::new("select_sleeps", select_sleeps),
    Scenario::new("select_large", select_large),
    Scenario::new(
        "select_acknowledged_without_waiting",
        acknowledged_without_waiting,
    ),
];

/// Two channels of different types: each message is taken once, in its channel's order.
fn select_types(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let last = stage.count(100_000);
    match stage.side {
        Side::Dialer => {
            let mut bytes = sender(&peer, "bytes");
            let numbers = peer.channel("numbers").codec::<Pod>();
            let mut numbers = numbers.sender::<u64>().expect("a sender");
            for sequence in 1..=last {
                let message = payload::numbered(sequence, 64);
                bytes.send(&message).expect("sent");
                numbers.send(&sequence).expect("sent");
            }
            bytes.close().expect("delivered");
            numbers.close().expect("delivered");
        }
        Side::Listener => {
            let mut bytes = receiver(&peer, "bytes");
            let numbers = peer.channel("numbers").codec::<Pod>();
            let mut numbers: Receiver<u64, Pod> = numbers.receiver().expect("a receiver");
            let mut select = Select::new();
            let mut taken = [0, 0];
            loop {
                let mut live: Vec<&mut dyn Selectable> = vec![&mut bytes, &mut numbers];
                let ready = select.ready(&mut live);
                taken[ready] += 1;
                let is_over = match ready {
                    0 => match bytes.try_recv() {
                        Ok(message) => {
                            payload::check(message.sequence(), &message);
                            false
                        }
                        Err(error) if error.kind() == RecvErrorKind::Ended => true,
                        Err(error) => panic!("{error}"),
                    },
                    _ => match numbers.try_recv() {
                        Ok(message) => {
                            assert_eq!(*message, message.sequence());
                            false
                        }
                        Err(error) if error.kind() == RecvErrorKind::Ended => true,
                        Err(error) => panic!("{error}"),
                    },
                };
                if is_over {
                    taken[ready] -= 1;
                    break;
                }
            }
            // One channel has ended, and the other has no more than was still on its way.
            let rest = numbers.iter().count() + bytes.iter().count();
            assert_eq!(taken[0] + taken[1] + rest as u64, 2 * last);
        }
    }
}

/// Messages come one at a time, on either channel, with pauses in which the receiver sleeps.
fn select_sleeps(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    let last = stage.count(200);
    match stage.side {
        Side::Dialer => {
            let mut channels = [sender(&peer, "0"), sender(&peer, "1"), sender(&peer, "2")];
            let mut answers = receiver(&peer, "answers");
            for sequence in 1..=last {
                let number = (sequence * 7 % 3) as usize;
                if sequence % 50 == 0 {
                    std::thread::sleep(MOMENT);
                }
                channels[number]
                    .send(&sequence.to_le_bytes())
                    .expect("sent");
                assert_eq!(*answers.recv().expect("an answer"), [number as u8]);
            }
        }
        Side::Listener => {
            let mut channels = [
                receiver(&peer, "0"),
                receiver(&peer, "1"),
                receiver(&peer, "2"),
            ];
            let mut answers = sender(&peer, "answers");
            let mut select = Select::new();
            for sequence in 1..=last {
                let [zero, one, two] = &mut channels;
                let ready = select
                    .ready_timeout(&mut [zero, one, two], LONG)
                    .expect("a message");
                let message = channels[ready].try_recv().expect("it is there");
                assert_eq!(*message, sequence.to_le_bytes());
                // Nothing else comes before the answer.
                let [zero, one, two] = &mut channels;
                assert_eq!(select.try_ready(&mut [zero, one, two]), None);
                answers.send(&[ready as u8]).expect("sent");
            }
            // All channels end.
            let mut ended = [false; 3];
            while ended != [true; 3] {
                let mut live: Vec<(usize, &mut Receiver<[u8], Raw>)> = channels
                    .iter_mut()
                    .enumerate()
                    .filter(|(number, _)| !ended[*number])
                    .collect();
                let mut ends: Vec<&mut dyn Selectable> = Vec::new();
                for (_, end) in &mut live {
                    ends.push(*end);
                }
                let ready = select.ready(&mut ends);
                let number = live[ready].0;
                assert!(channels[number].next().expect("an orderly end").is_none());
                ended[number] = true;
            }
        }
    }
}

/// A large message is ready when all of it has arrived.
fn select_large(stage: &mut Stage) {
    let (_node, peer) = stage.meet();
    const LENGTH: usize = 3 << 20;
    match stage.side {
        Side::Dialer => {
            let (mut large, mut small) = (sender(&peer, "large"), sender(&peer, "small"));
            for sequence in 1..=4 {
                large
                    .send(&payload::numbered(sequence, LENGTH))
                    .expect("sent");
                small.send(&payload::numbered(sequence, 8)).expect("sent");
            }
            large.close().expect("delivered");
            small.close().expect("delivered");
        }
        Side::Listener => {
            let (mut large, mut small) = (receiver(&peer, "large"), receiver(&peer, "small"));
            let mut select = Select::new();
            let mut taken = [0, 0];
            while taken != [4, 4] {
                let ready = select.ready_timeout(&mut [&mut large, &mut small], LONG);
                let ready = ready.expect("a message");
                let message = match ready {
                    0 => large.try_recv(),
                    _ => small.try_recv(),
                };
                match message {
                    Ok(message) => {
                        taken[ready] += 1;
                        payload::check(taken[ready], &message);
                    }
                    // The other channel has more to come.
                    Err(error) if error.kind() == RecvErrorKind::Ended => {
                        assert_eq!(taken[ready], 4);
                        std::thread::sleep(Duration::from_millis(1));
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
}

/// A program that polls for acknowledgements and never waits for them learns of them, and asks the
/// peer only once however often it looks.
fn acknowledged_without_waiting(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "looked at");
            for sequence in 1..=3 {
                sender
                    .send(&payload::numbered(sequence, 100))
                    .expect("sent");
            }
            sender.flush().expect("received");
            let sent_before = peer.stats().frames_sent;
            let (mut second, mut third) = (sender.until_acked(2), sender.until_acked(3));
            let mut select = Select::new();
            for _ in 0..1_000 {
                assert_eq!(select.try_ready(&mut [&mut third, &mut second]), None);
            }
            stage.tell("looked");
            wait_until(|| select.try_ready(&mut [&mut third, &mut second]) == Some(1));
            assert_eq!(sender.acked(), 2);
            stage.tell("two");
            wait_until(|| select.try_ready(&mut [&mut third]).is_some());
            // The frames are a question for each of two messages, and little else.
            let sent = peer.stats().frames_sent - sent_before;
            assert!(sent <= 20, "{sent} frames");
            stage.tell("three");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "looked at");
            let mut messages: Vec<_> = (0..3)
                .map(|_| receiver.recv().expect("a message"))
                .collect();
            for (words, count) in [("looked", 2), ("two", 1)] {
                stage.hear(words, &node);
                messages.drain(..count).for_each(ibex::Message::ack);
            }
            stage.hear("three", &node);
        }
    }
}
