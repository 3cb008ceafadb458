//! Large messages that are read over several device ports.

use std::{
    thread,
    time::{Duration, Instant},
};

use ibex_protocol::transfer::rendezvous::{LARGE_PER_CHANNEL, WRITE_BYTES};
use ibex_verbs::{
    CompletionStatus, DEFAULT_DRAIN_TIMEOUT, GidEntry, GidType,
    discovery::Choice,
    provider::{
        RawEvent,
        fake::{FakeDevice, FakeProvider},
    },
};

use super::{pulling::*, *};
use crate::clock::StoppedClock;

const OTHER: &str = "rxe1";
const OTHER_ADDRESS: [u8; 4] = [198, 51, 100, 1];
/// `IBV_EVENT_DEVICE_FATAL`.
const DEVICE_FATAL: u32 = 8;
/// `IBV_EVENT_QP_FATAL`.
const QUEUE_PAIR_FATAL: u32 = 1;

/// Two nodes whose session has a rail.
struct Railed {
    stage: Stage,
    /// The numbers of the rail's queue pairs.
    rails: [u32; 2],
    ports: [Arc<RdmaPort>; 2],
}

fn two_devices() -> FakeProvider {
    FakeProvider::new(vec![
        soft_roce(),
        FakeDevice::soft_roce(OTHER, 8, OTHER_ADDRESS),
    ])
}

fn other_port(fake: &FakeProvider, settings: PortSettings) -> Arc<RdmaPort> {
    let choice = Choice {
        device: OTHER.to_owned(),
        gid: GidEntry {
            index: 1,
            gid: ibex_verbs::Gid::of(OTHER_ADDRESS.into()),
            gid_type: GidType::RoceV2,
            interface_index: 8,
        },
        ..choice(DeviceKind::Software)
    };
    RdmaPort::open(&fake.provider(), &choice, settings).unwrap()
}

/// Makes a stage with a rail whose tests are held back.
fn untested(settings: PortSettings) -> Railed {
    let fake = two_devices();
    let rdma_ports = [open_port(&fake, settings), open_port(&fake, settings)];
    let ports = [other_port(&fake, settings), other_port(&fake, settings)];
    let prepare = |end: usize| {
        let mut pair = rdma_ports[end].prepare_for(end == 0, true).unwrap();
        let rail = ports[end].prepare_rail(end == 0).unwrap();
        pair.add_rail(rail);
        pair
    };
    let [mut one, mut other] = [0, 1].map(prepare);
    let endpoints = [one.endpoint(), other.endpoint()];
    let rails = endpoints.map(|end| end.rails[0].unwrap().pair.queue_pair);
    one.connect(&endpoints[1]).unwrap();
    other.connect(&endpoints[0]).unwrap();
    fake.hold_sends(true);
    let stage = Stage::over(Driver::Caller, fake, rdma_ports, [one, other], |_, _| {});
    Railed {
        stage,
        rails,
        ports,
    }
}

fn railed(settings: PortSettings) -> Railed {
    let railed = untested(settings);
    railed.stage.fake.hold_sends(false);
    railed.stage.settle();
    railed
}

impl Railed {
    /// Returns how many pieces the second node has asked for, over the wire and over the rail.
    fn asked(&self) -> [usize; 2] {
        let lanes = [self.stage.queue_pairs()[1], self.rails[1]];
        let reads = reads(&self.stage);
        lanes.map(|lane| reads.iter().filter(|read| read.queue_pair == lane).count())
    }

    /// Sends a message of `pieces` pieces, and checks that it arrives.
    fn check_message(&self, pieces: usize) {
        let (mut sender, mut receiver) = self.stage.channel("check", WINDOW);
        send(&mut sender, 5, pieces * WRITE_BYTES);
        self.stage.settle();
        let messages = take(&mut receiver).unwrap();
        assert!(messages[0].bytes() == payload(5, pieces * WRITE_BYTES));
    }

    /// Turns both nodes. Everything that is posted to the wire goes out; what is posted to the rail
    /// is held back.
    fn settle_wire(&self) {
        for _ in 0..1000 {
            let moved = self
                .stage
                .nodes
                .each_ref()
                .map(|node| node.runtime.poll_ready());
            let mut any = moved != [false; 2];
            for pair in self.stage.queue_pairs() {
                any |= held(&self.stage, pair).0 > 0;
                self.stage.fake.release(pair, 1);
            }
            if !any {
                return;
            }
        }
        panic!("the wire never comes to rest");
    }

    fn fail(&self, queue_pair: u32) {
        let status = CompletionStatus::RetryExceeded;
        self.stage.fake.fail_send(queue_pair, status, 0);
    }
}

const PIECES: usize = 12;

#[test]
fn a_large_message_is_read_over_both_ports() {
    let railed = railed(reading());
    let stage = &railed.stage;
    let (mut sender, mut receiver) = stage.channel("large", WINDOW);
    let mut alive = Vec::new();
    for number in 0..20 {
        stage.fake.forget_posted();
        send(&mut sender, number, PIECES * WRITE_BYTES + 5);
        send(&mut sender, number, 10);
        stage.settle();
        let [wire, rail] = railed.asked();
        assert_eq!(wire + rail, PIECES + 1);
        assert!(rail >= PIECES / 3 && wire >= PIECES / 3, "{wire}, {rail}");
        assert_eq!(open_offers(stage), 0, "the message is taken");
        let messages = take(&mut receiver).unwrap();
        assert!(messages[0].bytes() == payload(number, PIECES * WRITE_BYTES + 5));
        assert_eq!(messages[1].bytes(), payload(number, 10));
        drop(messages);
        stage.settle();
        alive.push(stage.fake.alive());
    }
    assert_eq!(alive[5], alive[19], "windows and memory are used again");
    let [ours, theirs] = stage.stats();
    assert!(theirs.rail_reads >= 20 * PIECES as u64 / 3);
    assert_eq!((ours.bytes_copied, theirs.bytes_copied), (0, 0));
    assert_eq!(theirs.rendezvous_received, 20);
}

#[test]
fn a_message_of_one_piece_stays_on_the_wire() {
    let railed = railed(reading());
    railed.stage.fake.forget_posted();
    railed.check_message(1);
    assert_eq!(railed.asked(), [1, 0]);
    assert_eq!(offers(&railed.stage).len(), 1);
}

/// A peer that is trusted is granted memory, if there is no rail.
#[test]
fn a_trusted_peer_reads_too_if_there_are_rails() {
    let settings = PortSettings {
        grants_memory: true,
        ..reading()
    };
    let railed = railed(settings);
    railed.stage.fake.forget_posted();
    railed.check_message(PIECES);
    assert!(railed.asked()[1] > 0);
    assert_eq!(railed.stage.stats()[0].rdma_writes, 0);
    let stage = Stage::with(settings);
    let (mut sender, _receiver) = stage.channel("written", WINDOW);
    send(&mut sender, 1, LONG);
    stage.settle();
    assert!(stage.stats()[0].rdma_writes > 0);
}

#[test]
fn pieces_that_come_early_wait_for_those_before_them() {
    let railed = railed(reading());
    let stage = &railed.stage;
    let (mut sender, mut receiver) = stage.channel("order", WINDOW);
    send(&mut sender, 1, PIECES * WRITE_BYTES);
    let on_rail = || {
        offers(stage)
            .iter()
            .filter(|(pair, _)| *pair == railed.rails[0])
            .count()
    };
    stage.settle_until(|| on_rail() > 0, || stage.fake.hold_sends(true));
    railed.settle_wire();
    let (_, waiting) = held(stage, railed.rails[1]);
    assert!(waiting > 0, "pieces were asked for over the rail");
    assert_eq!(take(&mut receiver).unwrap().len(), 0);
    stage.fake.hold_sends(false);
    stage.settle();
    assert!(take(&mut receiver).unwrap()[0].bytes() == payload(1, PIECES * WRITE_BYTES));
}

/// Holds reads back on the rail, and returns the channel whose message waits for them.
fn half_way(railed: &Railed) -> (SendHandle, ReceiveHandle) {
    let stage = &railed.stage;
    let (mut sender, receiver) = stage.channel("half", WINDOW);
    stage.fake.forget_posted();
    send(&mut sender, 1, PIECES * WRITE_BYTES);
    let on_rail = || {
        offers(stage)
            .iter()
            .any(|(pair, _)| *pair == railed.rails[0])
    };
    stage.settle_until(on_rail, || stage.fake.hold_sends(true));
    railed.settle_wire();
    (sender, receiver)
}

/// Makes a message wait for pieces that are being read over the rail.
fn waiting(railed: &Railed) -> (SendHandle, ReceiveHandle) {
    let stage = &railed.stage;
    let (mut sender, receiver) = stage.channel("waiting", WINDOW);
    stage.fake.forget_posted();
    stage.fake.hold_sends(true);
    send(&mut sender, 1, PIECES * WRITE_BYTES);
    for _ in 0..1000 {
        if held(stage, railed.rails[1]).1 > 0 {
            return (sender, receiver);
        }
        for node in &stage.nodes {
            node.runtime.poll_ready();
        }
        for pair in stage.queue_pairs() {
            if held(stage, pair).1 == 0 {
                stage.fake.release(pair, 1);
            }
        }
        stage.fake.release(railed.rails[0], 1);
    }
    panic!("nothing is read over the rail");
}

#[test]
fn what_a_failed_rail_was_reading_is_read_over_the_wire() {
    let railed = railed(reading());
    let stage = &railed.stage;
    let (_sender, mut receiver) = waiting(&railed);
    railed.fail(railed.rails[1]);
    stage.fake.hold_sends(false);
    stage.settle();
    let messages = take(&mut receiver).unwrap();
    assert!(messages[0].bytes() == payload(1, PIECES * WRITE_BYTES));
    assert_eq!(open_offers(stage), 0);
    drop(messages);
    stage.fake.forget_posted();
    railed.check_message(PIECES);
    assert_eq!(railed.asked(), [PIECES, 0], "the rail is not used any more");
    assert_eq!(offers(stage).len(), 2, "the sender still binds its end");
}

#[test]
fn an_end_whose_rail_dies_is_read_over_the_wire() {
    for (name, code) in [("queue pair", QUEUE_PAIR_FATAL), ("device", DEVICE_FATAL)] {
        for end in [0, 1] {
            let railed = railed(reading());
            let stage = &railed.stage;
            let (_sender, mut receiver) = waiting(&railed);
            let event = match code {
                DEVICE_FATAL => RawEvent {
                    event_type: code,
                    element: 0,
                },
                _ => RawEvent {
                    event_type: code,
                    element: railed.rails[end].into(),
                },
            };
            stage.fake.raise(OTHER, event);
            stage.fake.hold_sends(false);
            stage.settle();
            if held(stage, railed.rails[1]).1 > 0 {
                // The peer's end is dead, and answers no read.
                railed.fail(railed.rails[1]);
                stage.settle();
            }
            let messages = take(&mut receiver).unwrap();
            assert_eq!(messages.len(), 1, "{name} of {end}");
            assert!(
                messages[0].bytes() == payload(1, PIECES * WRITE_BYTES),
                "{name} of {end}"
            );
            drop(messages);
            railed.check_message(PIECES);
        }
    }
}

/// The session says that the receiver is closed when nothing is read for it any more.
#[test]
fn a_receiver_may_go_while_its_pieces_are_read_again() {
    let railed = railed(reading());
    let stage = &railed.stage;
    let (sender, receiver) = waiting(&railed);
    drop(receiver);
    stage.nodes[1].runtime.poll_ready();
    railed.fail(railed.rails[1]);
    stage.fake.hold_sends(false);
    stage.settle();
    drop(sender);
    stage.settle();
    assert_eq!(open_offers(stage), 0);
    railed.check_message(PIECES);
}

/// Some devices report nothing for the requests of a queue pair that died.
#[test]
fn a_failed_rail_that_is_never_drained_is_given_up() {
    let clock = StoppedClock::stop();
    let railed = railed(reading());
    let stage = &railed.stage;
    let (_sender, mut receiver) = waiting(&railed);
    stage.fake.fall_silent();
    let event = RawEvent {
        event_type: QUEUE_PAIR_FATAL,
        element: railed.rails[1].into(),
    };
    stage.fake.raise(OTHER, event);
    railed.settle_wire();
    assert_eq!(take(&mut receiver).unwrap().len(), 0);
    clock.advance(2 * DEFAULT_DRAIN_TIMEOUT);
    railed.settle_wire();
    let messages = take(&mut receiver).unwrap();
    assert!(messages[0].bytes() == payload(1, PIECES * WRITE_BYTES));
}

#[test]
fn the_device_of_a_rail_that_is_removed_is_closed_and_the_session_goes_on() {
    let clock = StoppedClock::stop();
    let railed = railed(reading());
    let stage = &railed.stage;
    railed.check_message(PIECES);
    stage.fake.change(OTHER, |device| device.is_listed = false);
    let until = Instant::now() + Duration::from_secs(300);
    while !railed.ports.iter().all(|port| port.is_closed()) {
        assert!(Instant::now() < until, "{:?}", stage.fake.alive());
        clock.advance(Duration::from_millis(100));
        stage.settle();
        // Another thread asks for the list of devices.
        thread::sleep(Duration::from_millis(1));
    }
    stage.fake.forget_posted();
    railed.check_message(PIECES);
    assert_eq!(railed.asked(), [PIECES, 0]);
}

/// The peer may read the message over the rail until the request that ends this is done there.
#[test]
fn memory_is_kept_until_the_rail_cannot_read_it_any_more() {
    let railed = railed(reading());
    let stage = &railed.stage;
    let kept = || stage.nodes[0].runtime.large_pool.kept();
    let (_sender, receiver) = half_way(&railed);
    drop(receiver);
    railed.settle_wire();
    // What was being read over the rail is done; the request to invalidate its window is held back.
    while held(stage, railed.rails[1]).1 > 0 {
        stage.fake.release(railed.rails[1], 1);
        railed.settle_wire();
    }
    assert_eq!(
        (kept(), open_offers(stage)),
        (0, 1),
        "only the rail's window is open"
    );
    stage.fake.release(railed.rails[0], 1);
    railed.settle_wire();
    assert_eq!((kept(), open_offers(stage)), (1, 0));
    stage.fake.hold_sends(false);
    stage.settle();
    railed.check_message(PIECES);
}

#[test]
fn a_rail_that_does_not_lead_to_the_peer_is_not_used() {
    let railed = untested(reading());
    let stage = &railed.stage;
    let _first = stage.open(0, "first", WINDOW);
    railed.settle_wire();
    for rail in railed.rails {
        assert_eq!(held(stage, rail), (1, 1), "each end tests its rail");
        railed.fail(rail);
    }
    stage.fake.hold_sends(false);
    stage.settle();
    stage.fake.forget_posted();
    railed.check_message(PIECES);
    assert_eq!(railed.asked(), [PIECES, 0]);
}

#[test]
fn a_session_that_ends_while_its_rail_reads_gives_everything_back() {
    let before = {
        let railed = railed(reading());
        let alive = railed.stage.fake.alive();
        drop(railed);
        alive
    };
    let railed = railed(reading());
    assert_eq!(railed.stage.fake.alive(), before);
    let stage = &railed.stage;
    let (sender, mut receiver) = waiting(&railed);
    stage
        .fake
        .fail_send(stage.queue_pairs()[1], CompletionStatus::RetryExceeded, 0);
    stage.fake.hold_sends(false);
    stage.settle();
    assert!(matches!(why(&mut receiver), EndCause::PeerGone { .. }));
    drop((sender, receiver));
    stage.settle();
    let alive = stage.fake.alive();
    assert_eq!(alive.get("queue pairs"), None, "{alive:?}");
    assert_eq!(alive.get("memory windows"), None, "{alive:?}");
}

#[test]
fn several_channels_are_read_in_both_directions() {
    let railed = railed(reading());
    let stage = &railed.stage;
    let mut channels: Vec<_> = (0..4)
        .map(|at| stage.open(at % 2, &format!("{at}"), WINDOW))
        .collect();
    stage.settle();
    for round in 0..6 {
        for (at, (sender, _)) in channels.iter_mut().enumerate() {
            for _ in 0..LARGE_PER_CHANNEL {
                send(sender, round, (at + 2) * WRITE_BYTES + 77);
            }
        }
        stage.settle();
        for (at, (_, receiver)) in channels.iter_mut().enumerate() {
            let messages = take(receiver).unwrap();
            assert_eq!(messages.len(), LARGE_PER_CHANNEL);
            for message in messages {
                assert!(message.bytes() == payload(round, (at + 2) * WRITE_BYTES + 77));
            }
        }
        stage.settle();
    }
    assert_eq!(open_offers(stage), 0);
    for stats in stage.stats() {
        assert!(stats.rail_reads > 0);
    }
}

#[test]
fn a_port_without_windows_carries_no_rail() {
    let fake = two_devices();
    fake.change(OTHER, |device| device.has_windows = false);
    let refused = other_port(&fake, reading()).prepare_rail(true).unwrap_err();
    assert!(
        refused.to_string().contains("rxe1 carries no rail"),
        "{refused}"
    );
}
