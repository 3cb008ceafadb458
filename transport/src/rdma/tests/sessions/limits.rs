//! Limits of sessions over queue pairs.

use std::{
    net::Shutdown,
    sync::Mutex,
    task::{Wake, Waker},
};

use ibex_verbs::{
    abi::access_flags,
    provider::fake::{Call, FakeDevice},
};
use rustix::io::Errno;

use super::*;
use crate::rdma::PortError;

mod port_settings;

#[test]
fn credit_is_never_exceeded_whatever_the_receiver_does() {
    // `Stage` asserts when it is dropped that no message ever waited for a receive.
    let stage = Stage::with(PortSettings {
        receive_buffers: 64,
        held_buffers: 16,
        session_credit: 8,
        ..settings()
    });
    let (mut sender, mut receiver) = stage.channel("credit", WINDOW);
    let mut held = Vec::new();
    let mut sent = 0;
    while sent < 2000 {
        while try_send(&mut sender, &payload(sent, 3000)).is_ok() {
            sent += 1;
        }
        stage.settle();
        while let Some(message) = receiver.poll().unwrap() {
            let taken = message.sequence();
            assert_eq!(message.bytes(), payload(taken - 1, 3000));
            held.push(message);
            // Messages are released out of order, and some are kept for long.
            held.retain(|message| (message.sequence() + 40 > taken) && message.sequence() % 3 > 0);
        }
    }
    let stats = stage.stats();
    assert!(stats[0].credit_stalls > 0);
    assert!(
        stats[1].bytes_copied > 0,
        "more were held than there are spare buffers"
    );
}

#[test]
fn a_full_send_queue_holds_back_and_loses_nothing() {
    let stage = Stage::with(PortSettings {
        receive_buffers: 1024,
        session_credit: 512,
        send_requests: 64,
        ..settings()
    });
    let (mut sender, mut receiver) = stage.channel("full", WINDOW);
    stage.fake.hold_sends(true);
    for number in 0..200 {
        send(&mut sender, number, 3500);
    }
    stage.settle();
    let stats = stage.stats()[0];
    assert!(stats.queue_stalls > 0, "{stats:?}");
    assert_eq!(
        stage
            .fake
            .posted()
            .iter()
            .filter(|send| send.wr_id != 0)
            .count() as u64,
        { stats.work_requests + stage.stats()[1].work_requests }
    );
    assert_eq!(consume(&mut receiver), 0);
    stage.fake.hold_sends(false);
    for number in 0..200 {
        stage.settle();
        let message = receiver.poll().unwrap().expect("each comes in its turn");
        assert_eq!(message.bytes(), payload(number, 3500));
    }
}

#[test]
fn a_record_over_the_seam_is_sent_as_three_pieces() {
    let stage = Stage::new();
    let window = ChannelWindow {
        messages: 64,
        bytes: 64 << 10,
    };
    let (mut sender, mut receiver) = stage.channel("seam", window);
    let mut pieces = std::collections::BTreeMap::<usize, usize>::new();
    for number in 0..100 {
        stage.fake.forget_posted();
        send(&mut sender, number, 3001);
        stage.settle();
        let message = receiver.poll().unwrap().unwrap();
        assert_eq!(message.bytes(), payload(number, 3001));
        drop(message);
        for posted in stage.fake.posted() {
            *pieces.entry(posted.entries.len()).or_default() += 1;
        }
    }
    assert!(pieces[&2] > 80, "{pieces:?}");
    assert!(
        pieces[&3] >= 4,
        "the ring was walked around several times: {pieces:?}"
    );
}

#[test]
fn a_large_message_goes_in_chunks_that_are_copied_once() {
    let stage = Stage::new();
    for number in 0..3 {
        let (mut sender, mut receiver) = stage.channel(&format!("large {number}"), WINDOW);
        send(&mut sender, number, 300_001);
        send(&mut sender, number, 10);
        stage.settle();
        let messages = take(&mut receiver).unwrap();
        assert_eq!(messages.len(), 2);
        assert_eq!(messages[0].bytes(), payload(number, 300_001));
        assert_eq!(messages[1].bytes(), payload(number, 10));
    }
    assert_eq!(stage.stats()[1].bytes_copied, 3 * 300_001);
    assert_eq!(stage.stats()[0].bytes_copied, 0);
}

#[test]
fn two_large_messages_may_wait_to_be_sent_and_nobody_has_to_take_them() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("large", WINDOW);
    for number in [0, 2, 4, 6] {
        send(&mut sender, number, 100_000);
        send(&mut sender, number + 1, 100_000);
        let third = try_send(&mut sender, &payload(number + 2, 100_000));
        assert!(matches!(third, Err(ChannelError::WouldBlock)), "{third:?}");
        stage.settle();
    }
    let messages = take(&mut receiver).unwrap();
    assert_eq!(messages.len(), 8);
    for (number, message) in messages.iter().enumerate() {
        assert_eq!(message.bytes(), payload(number as u64, 100_000));
    }
}

#[test]
fn a_short_message_goes_inline_and_a_longer_one_does_not() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("inline", WINDOW);
    let before = stage.stats()[0];
    send(&mut sender, 1, 64);
    stage.settle();
    send(&mut sender, 2, 1000);
    stage.settle();
    let after = stage.stats()[0];
    assert_eq!(after.inline_sends - before.inline_sends, 1);
    assert_eq!(after.eager_sends - before.eager_sends, 1);
    assert_eq!(consume(&mut receiver), 2);
}

#[test]
fn a_queue_pair_with_receives_of_its_own_carries_the_same() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.attributes.max_shared_receive_queues = 0;
    });
    let stage = Stage::on(fake, settings());
    let (mut sender, mut receiver) = stage.channel("own", WINDOW);
    let mut held = Vec::new();
    for number in 0..500 {
        send(&mut sender, number, 2000);
        stage.settle();
        held.extend(take(&mut receiver).unwrap());
        if held.len() > 40 {
            held.drain(..20);
        }
    }
    assert_eq!(held.last().unwrap().bytes(), payload(499, 2000));
    assert!(stage.fake.own_receives(stage.queue_pairs()[1]).len() >= 34);
    drop(held);
    drop((sender, receiver));
}

#[test]
fn buffers_for_a_shared_queue_may_be_too_few_where_there_is_none() {
    let fake = one_device();
    let few = PortSettings {
        receive_buffers: 49,
        ..settings()
    };
    assert_eq!(open_port(&fake, few).max_sessions(), 16);
    fake.change(DEVICE, |device| {
        device.attributes.max_shared_receive_queues = 0;
    });
    let error = RdmaPort::open(&fake.provider(), &choice(DeviceKind::Software), few).unwrap_err();
    assert_eq!(
        error.to_string(),
        "receive_buffers is 49, and can be 50 (session_credit and 18, for one session) to 1048576"
    );
    let enough = PortSettings {
        receive_buffers: 50,
        ..few
    };
    assert_eq!(open_port(&fake, enough).max_sessions(), 1);
}

fn of_port(error: &VerbsError) -> &PortError {
    match error {
        VerbsError::Other(error) => error.downcast_ref().expect("an error of the port"),
        other => panic!("{other}"),
    }
}

#[test]
fn more_sessions_than_the_buffers_cover_are_refused_until_one_ends() {
    let fake = one_device();
    let rdma_port = open_port(&fake, settings());
    let covered = rdma_port.max_sessions();
    assert_eq!(covered, settings().max_sessions);
    let mut prepared: Vec<_> = (2..covered)
        .map(|_| rdma_port.prepare(false).unwrap())
        .collect();
    // A dialing end reserves one more buffer.
    prepared.push(rdma_port.prepare(true).unwrap());
    let error = rdma_port.prepare(false).unwrap_err();
    assert!(matches!(of_port(&error), PortError::NoSeat { limit, .. } if *limit == covered));
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0 has no place for another session: there are 16, and 17 would be taken \
         (one that this node dialed may take two); raise max_sessions"
    );
    prepared.pop();
    rdma_port.prepare(false).unwrap();
}

/// Checks the defaults on a device like soft-RoCE, whose completion queues have at most 32767
/// entries.
#[test]
fn a_short_completion_queue_means_fewer_places_and_says_so() {
    let fake = one_device();
    let rdma_port = open_port(&fake, PortSettings::default());
    assert_eq!(rdma_port.max_sessions(), (32767 - 4096) / 130);
    let prepared: Vec<_> = (0..rdma_port.max_sessions())
        .map(|_| rdma_port.prepare(false).unwrap())
        .collect();
    assert_eq!(prepared.len(), 220);
    let error = rdma_port.prepare(false).unwrap_err();
    assert!(
        matches!(of_port(&error), PortError::NoSeat { limit: 220, .. }),
        "{error}"
    );
}

#[test]
fn advice_about_too_few_sessions_depends_on_the_limit_that_is_short() {
    let next_step = |change: fn(&mut FakeDevice), settings: PortSettings| {
        let fake = one_device();
        fake.change(DEVICE, change);
        let rdma_port = open_port(&fake, settings);
        let _prepared: Vec<_> = (0..rdma_port.max_sessions())
            .map(|_| rdma_port.prepare(false).unwrap())
            .collect();
        let text = rdma_port.prepare(false).unwrap_err().to_string();
        let (_, next_step) = text.split_once("; ").unwrap();
        next_step.to_owned()
    };
    assert_eq!(
        next_step(|device| device.attributes.max_queue_pairs = 2, settings()),
        "the device has no more queue pairs: close sessions, or let others go over tcp"
    );
    assert_eq!(
        next_step(|device| device.attributes.max_completions = 700, settings()),
        "lower send_requests or receive_buffers: the device's completion queue holds no more"
    );
    let apart = PortSettings {
        shared_receives: false,
        ..settings()
    };
    assert_eq!(
        next_step(|_| (), apart),
        "raise receive_buffers, or lower session_credit: each session takes its own of them"
    );
    // Three sessions would take 540 entries.
    assert_eq!(
        next_step(|device| device.attributes.max_completions = 539, apart),
        "lower send_requests or session_credit: the device's completion queue holds no more"
    );
}

#[test]
fn sizes_beyond_the_device_end_a_port_with_the_setting_to_lower() {
    let refused = |change: fn(&mut FakeDevice), settings| {
        let fake = one_device();
        fake.change(DEVICE, change);
        let opened = RdmaPort::open(&fake.provider(), &choice(DeviceKind::Software), settings);
        assert!(fake.alive().is_empty(), "{:?}", fake.alive());
        opened.unwrap_err().to_string()
    };
    assert_eq!(
        refused(|device| device.attributes.max_completions = 300, settings()),
        "RDMA device rxe0 cannot make a completion queue for the receive buffers and one \
         session: 386 were asked for and its limit is 300; lower receive_buffers or send_requests"
    );
    assert_eq!(
        refused(
            |device| device.attributes.max_shared_receive_requests = 100,
            settings()
        ),
        "RDMA device rxe0 cannot make a shared receive queue of that depth: 256 were asked for \
         and its limit is 100; lower its depth (receive_buffers)"
    );
    // A session with a receive queue of its own needs only its own entries of the completion queue.
    let apart = PortSettings {
        shared_receives: false,
        ..settings()
    };
    assert_eq!(
        refused(|device| device.attributes.max_completions = 179, apart),
        "RDMA device rxe0 cannot make a completion queue for the receive buffers and one \
         session: 180 were asked for and its limit is 179; lower session_credit or send_requests"
    );
}

#[test]
fn a_ring_that_may_not_be_locked_is_the_channels_error() {
    let stage = Stage::new();
    let (mut sender, _receiver) = stage.channel("locked", WINDOW);
    stage.fake.refuse(Call::Register, Errno::NOMEM);
    let error = match try_send(&mut sender, &[0; 8]) {
        Err(ChannelError::Failed(error)) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(error.contains("a ring of 1048576 bytes"), "{error}");
    assert!(error.contains("RDMA device rxe0"), "{error}");
    // The session continues.
    let (mut sender, mut receiver) = stage.channel("next", WINDOW);
    send(&mut sender, 1, 8);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
}

#[test]
fn a_ring_is_registered_once_however_often_it_is_leased() {
    let stage = Stage::new();
    let mut regions = Vec::new();
    for round in 0..5 {
        let (mut sender, mut receiver) = stage.channel(&format!("round {round}"), WINDOW);
        send(&mut sender, 1, 8);
        stage.settle();
        assert_eq!(consume(&mut receiver), 1);
        drop((sender, receiver));
        stage.settle();
        regions.push(stage.fake.alive()["memory regions"]);
    }
    assert_eq!(regions, vec![regions[0]; 5]);
}

/// Makes a queue pair when it is woken.
struct DialsAgain {
    rdma_port: Arc<RdmaPort>,
    refused: Mutex<Option<Option<String>>>,
}

impl Wake for DialsAgain {
    fn wake(self: Arc<Self>) {
        let prepared = self.rdma_port.prepare(true);
        let refused = prepared.err().map(|error| error.to_string());
        *self.refused.lock().unwrap() = Some(refused);
    }
}

#[test]
fn whoever_hears_of_the_end_of_a_session_finds_its_place_free() {
    let stage = Stage::with(PortSettings {
        max_sessions: 2,
        ..settings()
    });
    let [node, peer] = &stage.nodes;
    node.rdma_port.prepare(true).unwrap_err();
    let dials = Arc::new(DialsAgain {
        rdma_port: node.rdma_port.clone(),
        refused: Mutex::new(None),
    });
    let waker = Waker::from(dials.clone());
    let mut held = None;
    assert!(node.session.ending.poll(&mut held, &waker).is_pending());
    peer.tcp.shutdown(Shutdown::Both).unwrap();
    stage.settle();
    assert_eq!(*dials.refused.lock().unwrap(), Some(None));
}
