//! Turns are fair, whatever the channels go over, and who waits sleeps.
#![forbid(unsafe_code)]

mod pair;

use std::{thread, time::Duration};

use ibex::{Fabric, Select};
use pair::{FABRICS, Pair};

/// Each round both have something, so each has its turn: half of a million rounds.
#[test]
fn nobody_is_starved() {
    for fabrics in [FABRICS, [Fabric::Tcp; 2], [Fabric::Shm; 2]] {
        let pairs = fabrics.map(Pair::over);
        let (mut left, mut left_end) = pairs[0].channel("numbers");
        let (mut right, mut right_end) = pairs[1].channel("numbers");
        let mut select = Select::new();
        // What comes before the first message of a channel is not the select's to be fair about.
        for (sender, end) in [(&mut left, &mut left_end), (&mut right, &mut right_end)] {
            sender.send(&1).expect("sent");
            end.recv().expect("a message").ack();
        }
        let mut taken = [1u32; 2];
        for _ in 0..ROUNDS / BATCH {
            // More than is taken, so that neither is found empty.
            let sent = [u64::from(taken[0]), u64::from(taken[1])];
            for sender in [&mut left, &mut right] {
                while sender.counts().sent < sent[0].max(sent[1]) + u64::from(BATCH) {
                    sender.send(&1).expect("sent");
                }
                sender.flush().expect("delivered");
            }
            for _ in 0..BATCH {
                let ready = select.ready(&mut [&mut left_end, &mut right_end]);
                taken[ready] += 1;
                let receiver = [&mut left_end, &mut right_end][ready].try_recv();
                receiver.expect("it is there").ack();
            }
        }
        let (least, most) = (taken[0].min(taken[1]), taken[0].max(taken[1]));
        assert!(2 * most <= 3 * least, "{taken:?} over {fabrics:?}");
    }
}

const ROUNDS: u32 = 1_000_000;
const BATCH: u32 = 250;

#[test]
fn who_waits_is_woken_by_either_and_by_time() {
    let pairs = FABRICS.map(Pair::over);
    let (left, mut left_end) = pairs[0].channel("numbers");
    let (right, mut right_end) = pairs[1].channel("numbers");
    let mut living = Vec::new();
    let mut select = Select::new();
    let moment = Duration::from_millis(20);
    let nothing = select.ready_timeout(&mut [&mut left_end, &mut right_end], moment);
    assert_eq!(nothing, None);
    for (index, mut sender) in [left, right].into_iter().enumerate() {
        let sending = thread::spawn(move || {
            thread::sleep(moment);
            sender.send(&7).expect("sent");
            sender
        });
        let ready = select.ready(&mut [&mut left_end, &mut right_end]);
        assert_eq!(ready, index);
        let message = [&mut left_end, &mut right_end][ready].try_recv();
        assert_eq!(*message.expect("it is there"), 7);
        // The sender lives until here: its end would be something to receive.
        drop(sending.join().expect("it ends"));
        if index == 0 {
            let ended = select.ready(&mut [&mut left_end, &mut right_end]);
            assert_eq!(ended, 0, "the end comes too");
            // It has something for ever, so another takes its place.
            let (silent, end) = pairs[0].channel("silent");
            left_end = end;
            living.push(silent);
        }
    }
}

#[test]
#[should_panic(expected = "nothing to wait for")]
fn nothing_is_not_waited_for() {
    Select::new().ready(&mut []);
}

/// Whoever acknowledges first wakes who waits for both, and for a receiver.
#[test]
fn acknowledgements_are_waited_for_as_messages_are() {
    let pairs = FABRICS.map(Pair::over);
    let mut select = Select::new();
    let (mut logs, mut replicas) = (Vec::new(), Vec::new());
    for pair in &pairs {
        let (log, replica) = pair.channel("log");
        logs.push(log);
        replicas.push(replica);
    }
    let (mut commands, mut command) = pairs[0].channel("commands");
    for round in 1..=100 {
        for log in &mut logs {
            log.send(&round).expect("sent");
        }
        let first = round as usize % 2;
        thread::scope(|scope| {
            let replica = &mut replicas[first];
            scope.spawn(|| replica.recv().expect("sent").ack());
            let mut ends = [&logs[0], &logs[1]].map(|log| log.until_acked(round));
            let [one, other] = &mut ends;
            assert_eq!(select.ready(&mut [one, other, &mut command]), first);
        });
        assert_eq!(logs[first].acked(), round);
        replicas[1 - first].recv().expect("sent").ack();

        commands.send(&round).expect("sent");
        let mut ends = [&logs[0], &logs[1]].map(|log| log.until_acked(round + 1));
        let [one, other] = &mut ends;
        let ready = select.ready(&mut [one, other, &mut command]);
        assert_eq!(ready, 2, "nobody acknowledges what was not sent");
        assert_eq!(*command.recv().expect("sent"), round);
    }
    // That there will be none is told as well.
    drop(replicas.remove(0));
    let mut ends = [&logs[0], &logs[1]].map(|log| log.until_acked(101));
    let [one, other] = &mut ends;
    assert_eq!(select.ready(&mut [one, other]), 0);
    logs[0].wait_acked(101).expect_err("the receiver is gone");
}
