//! Idle channels return their rings, and the next message finds everything unchanged.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use ibex::{Driver, Node, Raw, Receiver, RecvErrorKind, Sender};
use ibex_harness::draw::Draw;

use crate::common::{
    scenario::{Scenario, Side},
    stage::{LONG, Stage, receiver, sender},
    stream::assert_ended,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("first_after_rest", first_after_rest),
    Scenario::new("rests_by_itself", rests_by_itself),
    Scenario::new("held_over_silence", held_over_silence),
    Scenario::new("now_and_then", now_and_then),
];

/// After each rest messages arrive in order, short ones and ones with their own memory, and the
/// counters continue.
fn first_after_rest(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let rounds = if stage.is_emulated() { 2 } else { 3 };
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "now and then");
            for round in 1..=rounds {
                for length in LENGTHS {
                    let sent = sender.send(&vec![round as u8; length]).expect("sent");
                    sender.wait_acked(sent).expect("acknowledged");
                }
                let sent = round * LENGTHS.len() as u64;
                assert_eq!(sender.acked(), sent);
                rest(&node);
                stage.rendezvous("at rest", &node);
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "now and then");
            for round in 1..=rounds {
                for length in LENGTHS {
                    let message = receiver.recv().expect("a message");
                    assert_eq!(message[..], vec![round as u8; length]);
                    message.ack();
                }
                rest(&node);
                stage.rendezvous("at rest", &node);
            }
            assert_ended(receiver);
        }
    }
}

/// A send after a rest creates another ring, which is returned although no further call is made.
fn rests_by_itself(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let is_turned = stage.driver() == Driver::Caller;
    let leave_alone = |time| match is_turned {
        true => drive_for(&node, time),
        false => thread::sleep(time),
    };
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "seldom");
            for _ in 0..2 {
                sender.send(&[7; 64]).expect("sent");
                let start = Instant::now();
                while rings() > 0 {
                    leave_alone(Duration::from_millis(100));
                    assert!(start.elapsed() < LONG, "the ring stays");
                }
                // A sleeping thread has no reason to wake up.
                leave_alone(SILENCE / 2);
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "seldom");
            for _ in 0..2 {
                // The message is dropped, not acknowledged.
                assert_eq!(receiver.recv().expect("a message")[..], [7; 64]);
            }
            assert_ended(receiver);
        }
    }
}

/// A held message keeps its bytes, however long the channel is idle. When it is dropped, the ring
/// is returned although no end is called.
fn held_over_silence(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "held");
            sender.send(&[7; 1000]).expect("sent");
            sender.flush().expect("received");
            stage.rendezvous("it is held", &node);
            drive_for(&node, SILENCE);
            assert_ne!(rings(), 0, "a message is out that is not released");
            stage.rendezvous("it was held", &node);
            rest(&node);
            stage.rendezvous("at rest", &node);
            sender.send(&[8; 1000]).expect("sent");
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "held");
            let held = receiver.recv().expect("a message");
            stage.rendezvous("it is held", &node);
            drive_for(&node, SILENCE);
            stage.rendezvous("it was held", &node);
            assert_eq!(held[..], [7; 1000]);
            drop(held);
            rest(&node);
            stage.rendezvous("at rest", &node);
            assert_eq!(receiver.recv().expect("the next")[..], [8; 1000]);
            assert_ended(receiver);
        }
    }
}

/// Channels, some with a second handle, are each idle for about as long as it takes to return a
/// ring: a message arrives whenever it comes.
fn now_and_then(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let names = (0..CHANNELS).map(|channel| channel.to_string());
    match stage.side {
        Side::Dialer => {
            let mut senders: Vec<_> = names.map(|name| (sender(&peer, &name), 0_u64)).collect();
            let clones: Vec<Sender<[u8], Raw>> = senders
                .iter()
                .step_by(2)
                .map(|(sender, _)| sender.clone())
                .collect();
            let mut draw = Draw::new(1);
            let start = Instant::now();
            let lasts = SILENCE * if stage.is_emulated() { 1 } else { 3 };
            while start.elapsed() < lasts {
                let (sender, sent) = &mut senders[draw.index(CHANNELS)];
                *sent += 1;
                sender.send(&sent.to_le_bytes()).expect("sent");
                drive_for(&node, Duration::from_micros(draw.below(1 << 16)));
            }
            drop(clones);
            for (sender, _) in senders {
                sender.close().expect("delivered");
            }
        }
        Side::Listener => {
            let mut receivers: Vec<_> = names.map(|name| (receiver(&peer, &name), 0)).collect();
            while !receivers.is_empty() {
                receivers.retain_mut(|(receiver, received)| take_all(receiver, received));
                thread::sleep(Duration::from_millis(1));
            }
        }
    }
    stage.rendezvous("all arrived", &node);
}

/// Takes the arrived messages. Returns whether there may be more.
fn take_all(receiver: &mut Receiver<[u8], Raw>, received: &mut u64) -> bool {
    loop {
        match receiver.try_recv() {
            Ok(message) => {
                *received += 1;
                assert_eq!(message[..], received.to_le_bytes());
            }
            Err(error) if error.is_transient() => return true,
            Err(error) if error.kind() == RecvErrorKind::Ended => return false,
            Err(error) => panic!("{error}"),
        }
    }
}

/// Waits until this process has no ring left, at either end.
fn rest(node: &Node) {
    let start = Instant::now();
    while rings() > 0 {
        drive_for(node, Duration::from_millis(10));
        assert!(
            start.elapsed() < LONG,
            "{} mappings of rings are left",
            rings()
        );
    }
}

/// Counts the windows of rings that this process maps.
fn rings() -> usize {
    let maps = fs::read_to_string("/proc/self/maps").expect("this process lives");
    maps.lines()
        .filter(|line| line.contains("ibex-ring"))
        .count()
}

/// Drives the engine all the time, if callers drive it.
fn drive_for(node: &Node, time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        node.poll();
        thread::sleep(Duration::from_millis(1).min(time));
    }
}

/// Within the ring, and above its limit.
const LENGTHS: [usize; 3] = [64, 100_000, 3 << 20];
const CHANNELS: usize = 24;
/// A time longer than that after which a ring is returned.
const SILENCE: Duration = Duration::from_secs(4);
