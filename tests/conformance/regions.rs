//! Messages from and into memory that the program owns.

use ibex::{Fabric, Node, Region, RegionMessage, SendErrorKind};

use crate::common::{
    payload,
    scenario::{Scenario, Side},
    stage::{LONG, MOMENT, Stage, receiver, sender},
    stream::{assert_ended, receive_all},
    task,
};

pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario::new("regions", |stage| regions(stage, Into::into)),
    Scenario::new("regions_of_pages", |stage| {
        regions(stage, |bytes| pages(&bytes));
    }),
    Scenario::new("held_pages", held_pages),
    Scenario::new("message_of_a_free_region", message_of_a_free_region),
    Scenario::new("headers", headers),
    Scenario::new("provided_regions", provided_regions),
    Scenario::new("held_regions", held_regions),
    Scenario::new("region_that_nobody_reads", region_that_nobody_reads),
    Scenario::new("region_of_a_killed_peer", region_of_a_killed_peer).kills(Side::Listener),
];

/// Around the longest records over RDMA and TCP, and far beyond, mixed with short ones.
const LENGTHS: [usize; 10] = [
    0,
    1,
    20_000,
    64 << 10,
    (128 << 10) + 1,
    128 << 10,
    1 << 20,
    100,
    3 << 20,
    (128 << 10) + 9,
];

const HEADER_LENGTHS: [usize; 5] = [0, 1, 16, 255, RegionMessage::MAX_HEADER_BYTES];

/// A message that neither end has memory for before the other grants it.
const LONG_BYTES: usize = 3 << 20;

/// Turns the node until no slice of the region is left.
pub(crate) fn wait_free(region: &Region, node: &Node) {
    while !region.wait_free(MOMENT) {
        while node.poll() {}
    }
}

/// Returns a region with these bytes in pages of its own.
fn pages(bytes: &[u8]) -> Region {
    let mut region = Region::zeroed(bytes.len()).expect("memory");
    let whole = region.get_mut().expect("nobody else has it");
    whole.copy_from_slice(bytes);
    region
}

/// Slices of one region, each at an odd place of it, by every kind of call, mixed with copied
/// messages. When all have arrived, the region is the program's again, unchanged.
fn regions(stage: &mut Stage, make: fn(Vec<u8>) -> Region) {
    let (node, peer) = stage.meet();
    let length = |sequence: u64| LENGTHS[(sequence as usize - 1) / 2 % LENGTHS.len()];
    let last = 2 * 2 * LENGTHS.len() as u64;
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            let mut bytes = vec![0xee; 3];
            let mut slices = Vec::new();
            for sequence in 1..=last {
                let start = bytes.len();
                bytes.extend(payload::numbered(sequence, length(sequence)));
                slices.push(start..bytes.len());
            }
            let region = make(bytes.clone());
            for (sequence, range) in (1..=last).zip(slices) {
                let slice = region.slice(range);
                let sent = match sequence % 3 {
                    0 => sender.send(&slice),
                    1 => sender.send_region(&slice),
                    _ => sender.send_region_timeout(&slice, LONG),
                };
                assert_eq!(sent.expect("sent"), sequence);
            }
            sender.close().expect("delivered");
            wait_free(&region, &node);
            assert_eq!(region[..], bytes);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "regions");
            receive_all(&mut receiver, last, length);
            assert_ended(receiver);
        }
    }
}

/// Messages of all lengths with headers of all lengths, by every kind of call, mixed with messages
/// without one. Some arrive in regions of the receiver, some are copied out, and a few of these are
/// kept.
fn headers(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let driver = stage.driver();
    let header_of = |sequence: u64| {
        let length = HEADER_LENGTHS[(sequence / 10 + sequence) as usize % 5];
        payload::numbered(1000 + sequence, length)
    };
    let last = 5 * LENGTHS.len() as u64;
    let length = |sequence: u64| LENGTHS[sequence as usize % LENGTHS.len()];
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            for sequence in 1..=last {
                let bytes = payload::numbered(sequence, length(sequence));
                let slice = match sequence % 2 {
                    0 => Region::from(bytes).slice(..),
                    _ => pages(&bytes).slice(..),
                };
                let header = header_of(sequence);
                let message = (&header, &slice);
                let sent = match sequence % 4 {
                    0 => sender.send_region(message),
                    1 => sender.send_region_timeout(message, LONG),
                    2 => task::run(&node, driver, sender.send_region_async(message)),
                    _ => loop {
                        match sender.try_send_region(message) {
                            Err(error) if error.is_transient() => while node.poll() {},
                            sent => break sent,
                        }
                    },
                };
                assert_eq!(sent.expect("sent"), sequence);
                let too_long = vec![0; RegionMessage::MAX_HEADER_BYTES + 1];
                let refused = sender
                    .send_region((&too_long, &slice))
                    .expect_err("too long");
                assert_eq!(refused.kind(), SendErrorKind::TooLong, "{refused}");
                assert_eq!((refused.limit(), refused.length()), (Some(256), Some(257)));
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "regions");
            let mut kept = Vec::new();
            for sequence in 1..=last {
                if sequence % 7 == 0 {
                    let region = Region::zeroed(LONG_BYTES).expect("memory");
                    receiver.provide(region).expect("provided");
                }
                let mut message = receiver.recv().expect("a message");
                assert_eq!(message.sequence(), sequence);
                if sequence % 3 == 0 {
                    message = message.into_owned();
                }
                payload::check(sequence, &message);
                assert_eq!(
                    message.header(),
                    header_of(sequence),
                    "of message {sequence}"
                );
                match sequence % 3 {
                    0 if kept.len() < 4 => kept.push(message.ack_on_drop()),
                    _ => match message.ack_on_drop().into_region() {
                        Ok((region, taken)) => payload::check(sequence, &region[..taken]),
                        Err(message) => drop(message),
                    },
                }
            }
            for message in kept {
                payload::check(message.sequence(), &message);
                assert_eq!(message.header(), header_of(message.sequence()));
            }
            assert_ended(receiver);
        }
    }
}

/// Long messages arrive in regions of the receiver, mixed with short ones. Each region serves again.
fn provided_regions(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    let length = |sequence: u64| match sequence % 3 {
        0 => LONG_BYTES - sequence as usize,
        1 => 100,
        _ => (1 << 20) + 3,
    };
    let last = 30;
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            stage.hear("there are regions", &node);
            for sequence in 1..=last {
                let sent = sender.send(&payload::numbered(sequence, length(sequence)));
                assert_eq!(sent.expect("sent"), sequence);
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "regions");
            // As many as messages, so that no long one finds none.
            for _ in 1..=last {
                let region = Region::zeroed(LONG_BYTES).expect("memory");
                receiver.provide(region).expect("provided");
            }
            stage.tell("there are regions");
            for sequence in 1..=last {
                let message = receiver.recv().expect("a message");
                payload::check(sequence, &message);
                match message.ack_on_drop().into_region() {
                    Ok((region, taken)) => {
                        assert_eq!(taken, length(sequence));
                        payload::check(sequence, &region[..taken]);
                        receiver.provide(region).expect("provided");
                    }
                    Err(short) => assert_eq!(short.len(), 100),
                }
            }
            assert_eq!(receiver.take_regions().len(), last as usize);
            assert_ended(receiver);
        }
    }
}

/// While the peer is stopped, a message that goes out from where it lies stays the node's, though
/// the program drops all it has of it. Elsewhere it was copied, and nothing is held.
fn held_regions(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            sender.send(&payload::numbered(1, 8)).expect("sent");
            sender.wait_acked(1).expect("acknowledged");
            let before = sender.try_send_region(&Region::from(vec![0; 8]).slice(..));
            assert_eq!(before.expect("there is room"), 2);
            sender.wait_acked(2).expect("acknowledged");
            stage.stop_other();
            let region = Region::from(payload::numbered(3, LONG_BYTES));
            sender.send_region(&region.slice(..)).expect("sent");
            let forgotten = Region::from(payload::numbered(4, LONG_BYTES)).slice(..);
            sender.send_region(&forgotten).expect("sent");
            drop(forgotten);
            let region = match stage.fabric() {
                Fabric::Tcp => {
                    assert!(!region.wait_free(MOMENT), "{region:?}");
                    region.into_vec().expect_err("a stopped peer takes nothing")
                }
                _ => region,
            };
            payload::check(3, &region);
            stage.resume_other();
            sender.wait_acked(4).expect("acknowledged");
            wait_free(&region, &node);
            payload::check(3, &region.into_vec().expect("no slice is left"));
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "regions");
            for (sequence, length) in (1..).zip([8, 8, LONG_BYTES, LONG_BYTES]) {
                let message = receiver.recv().expect("a message");
                assert_eq!(message.len(), length);
                if sequence != 2 {
                    payload::check(sequence, &message);
                }
                message.ack();
            }
            assert_ended(receiver);
        }
    }
}

/// A region that the peer reads is busy until the peer has released the last message, in whatever order
/// it does so. Then the program writes the next payload, which the peer reads without any delay of its
/// events. Over other paths it is free when the message has gone.
fn held_pages(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            let mut region = pages(&payload::numbered(1, LONG_BYTES));
            for round in [1, 3, 5] {
                sender.send_region(&region.slice(..)).expect("sent");
                sender.send_region(&region.slice(1..)).expect("sent");
                stage.hear("both are held", &node);
                assert!(!stage.maps_regions() || !region.wait_free(MOMENT));
                stage.tell("release the second");
                stage.hear("it is released", &node);
                assert!(!stage.maps_regions() || !region.wait_free(MOMENT));
                stage.tell("release the first");
                wait_free(&region, &node);
                let next = payload::numbered(round + 2, LONG_BYTES);
                region.get_mut().expect("it is free").copy_from_slice(&next);
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "regions");
            for round in [1, 3, 5] {
                let first = receiver.recv().expect("a message");
                let second = receiver.recv().expect("a message");
                stage.tell("both are held");
                stage.hear("release the second", &node);
                payload::check(round, &first);
                assert!(second[..] == first[1..]);
                second.ack();
                stage.tell("it is released");
                stage.hear("release the first", &node);
                payload::check(round, &first);
                first.ack();
            }
            assert_ended(receiver);
        }
    }
}

/// A message outlives its channel and its session unchanged, though its region is free then and
/// overwritten.
fn message_of_a_free_region(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut region = pages(&payload::numbered(1, LONG_BYTES));
            for name in ["of an ended channel", "of an ended session"] {
                let mut sender = sender(&peer, name);
                sender.send_region(&region.slice(..)).expect("sent");
                stage.hear("it is held", &node);
                wait_free(&region, &node);
                region.get_mut().expect("it is free").fill(0xee);
                stage.tell("it is overwritten");
                stage.hear("it is unchanged", &node);
                let again = payload::numbered(1, LONG_BYTES);
                region
                    .get_mut()
                    .expect("it is free")
                    .copy_from_slice(&again);
            }
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "of an ended channel");
            let message = receiver.recv().expect("a message");
            drop(receiver);
            stage.tell("it is held");
            stage.hear("it is overwritten", &node);
            payload::check(1, &message);
            stage.tell("it is unchanged");

            let mut receiver = self::receiver(&peer, "of an ended session");
            let message = receiver.recv().expect("a message");
            let _ = peer.close(MOMENT);
            stage.tell("it is held");
            stage.hear("it is overwritten", &node);
            payload::check(1, &message);
            stage.tell("it is unchanged");
        }
    }
}

/// A region is free once its message has arrived, though no program reads it, and once the receiver
/// is gone, though the message never went out. The sender lives meanwhile.
fn region_that_nobody_reads(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            let region = Region::from(payload::numbered(1, LONG_BYTES));
            sender.send_region(&region.slice(..)).expect("sent");
            wait_free(&region, &node);
            stage.tell("it is free");
            let mut is_over = false;
            while !is_over {
                is_over = sender
                    .send_region_timeout(&region.slice(1..), MOMENT)
                    .is_err();
                while node.poll() {}
            }
            wait_free(&region, &node);
            payload::check(1, &region.into_vec().expect("no slice is left"));
        }
        Side::Listener => {
            let receiver = receiver(&peer, "regions");
            stage.hear("it is free", &node);
            drop(receiver);
        }
    }
}

/// A peer that dies in the middle of a message, and holds another, gives their region back.
fn region_of_a_killed_peer(stage: &mut Stage) {
    let (node, peer) = stage.meet();
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "regions");
            let region = pages(&payload::numbered(1, LONG_BYTES));
            sender.send_region(&region.slice(..)).expect("sent");
            sender.wait_acked(1).expect("acknowledged");
            sender.send_region(&region.slice(2..)).expect("sent");
            stage.hear("one is held", &node);
            stage.stop_other();
            sender.send_region(&region.slice(1..)).expect("sent");
            if stage.fabric() == Fabric::Tcp || stage.maps_regions() {
                assert!(!region.is_free());
            }
            stage.kill_other();
            let ended = sender.wait_acked(3).expect_err("killed");
            assert_eq!(ended.kind(), ibex::WaitErrorKind::Disconnected);
            let refused = sender.send_region(&region.slice(..));
            assert!(refused.is_err(), "the session is over");
            wait_free(&region, &node);
            payload::check(1, &region);
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "regions");
            let message = receiver.recv().expect("a message");
            payload::check(1, &message);
            message.ack();
            let held = receiver.recv().expect("a message");
            stage.tell("one is held");
            stage.hear("nothing, because this side is killed", &node);
            drop(held);
        }
    }
}
