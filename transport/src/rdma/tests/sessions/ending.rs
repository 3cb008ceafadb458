//! Tests of the ways in which sessions over queue pairs end.

use std::{net::Shutdown, task::Waker, time::Duration};

use ibex_protocol::format::control::{CloseReason, Role};
use ibex_verbs::{
    QueuePairState,
    provider::{RawEvent, fake::Call},
};
use rustix::io::Errno;

use super::*;
use crate::{
    node::What,
    runtime::{Step, Steps},
    session::EndCause,
};

/// `IBV_EVENT_QP_FATAL`, `IBV_EVENT_DEVICE_FATAL`, `IBV_EVENT_PORT_ERR`,
/// `IBV_EVENT_QP_LAST_WQE_REACHED`.
const QUEUE_PAIR_FATAL: u32 = 1;
const DEVICE_FATAL: u32 = 8;
const PORT_ERROR: u32 = 10;
const LAST_REQUEST_REACHED: u32 = 16;

/// Returns the cause for which the receiving end is over.
fn cause(receiver: &mut ReceiveHandle) -> EndCause {
    match receiver.poll() {
        Err(error) => end_cause(&error),
        other => panic!("{other:?}"),
    }
}

/// Returns a channel with `records` that are posted and not delivered, because sends are held back.
fn held(stage: &Stage, records: u64) -> (SendHandle, ReceiveHandle) {
    let (mut sender, receiver) = stage.channel("held", WINDOW);
    stage.fake.hold_sends(true);
    for number in 0..records {
        send(&mut sender, number, 3000);
    }
    stage.settle();
    (sender, receiver)
}

#[test]
fn a_dropped_sender_ends_its_channel_behind_its_last_record() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("ends", WINDOW);
    for number in 0..10 {
        send(&mut sender, number, 1000);
    }
    drop(sender);
    stage.settle();
    let mut taken = 0;
    let end = loop {
        match receiver.poll() {
            Ok(Some(_)) => taken += 1,
            Ok(None) => panic!("the end has not come"),
            Err(error) => break error,
        }
    };
    assert!(matches!(end, ChannelError::Ended), "{end:?}");
    assert_eq!(taken, 10);
    // Both ends of the name are free again.
    drop(receiver);
    stage.settle();
    let (mut sender, mut receiver) = stage.channel("ends", WINDOW);
    send(&mut sender, 1, 100);
    stage.settle();
    assert_eq!(take(&mut receiver).unwrap().len(), 1);
}

#[test]
fn a_goodbye_brings_everything_and_leaves_nothing() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("goodbye", WINDOW);
    for number in 0..500 {
        send(&mut sender, number, 64);
    }
    let runtimes = stage.nodes.each_ref().map(|node| node.runtime.clone());
    let [closes, answers] = runtimes;
    let closing = std::thread::spawn(move || closes.close(std::time::Duration::from_secs(300)));
    while !closing.is_finished() {
        answers.poll_ready();
    }
    assert_eq!(closing.join().unwrap().undelivered, []);
    while answers.poll_ready() {}
    assert_eq!(consume_until_over(&mut receiver), 500);
    assert!(matches!(receiver.poll(), Err(ChannelError::Ended)));
    assert!(stage.nodes[1].session.is_gone());
    assert_eq!(stage.fake.alive().get("queue pairs"), None);
}

/// A driving task turns the engine only for events, and parks when there are none. The clock is
/// stopped, so the wait for the last completion does not end by itself.
#[test]
fn a_queue_pair_goes_before_a_driving_task_parks() {
    let _clock = crate::clock::StoppedClock::stop();
    let stage = Stage::driven(Driver::Tasks, one_device(), settings());
    let mut over = [false; 2];
    let mut steps = [Steps::default(), Steps::default()];
    let mut until_parked = || {
        let mut parked = 0;
        while parked < 2 {
            parked += 1;
            for ((node, over), steps) in stage.nodes.iter().zip(&mut over).zip(&mut steps) {
                let event_loop = node.runtime.first();
                steps.set_is_ready = true;
                let step = (!*over).then(|| event_loop.step(steps, Waker::noop()));
                *over |= step == Some(Step::Over);
                if step == Some(Step::Moved) {
                    parked = 0;
                }
            }
        }
    };
    until_parked();
    stage.nodes[0].runtime.start_close(Duration::MAX);
    until_parked();
    assert!(over[0] && stage.nodes[1].session.is_gone());
    assert_eq!(stage.fake.alive().get("queue pairs"), None);
}

#[test]
fn the_peer_of_a_sender_that_gives_up_is_told_so() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("given up", WINDOW);
    send(&mut sender, 1, 100);
    sender.break_off(CloseReason::Aborted);
    drop(sender);
    stage.settle();
    assert_eq!(consume_until_over(&mut receiver), 1);
    let aborted = EndCause::PeerClosed(CloseReason::Aborted);
    assert_eq!(cause(&mut receiver), aborted);
}

#[test]
fn queue_pairs_close_only_after_the_goodbyes_of_both_ends_are_out() {
    let stage = Stage::new();
    let mut ends = [0, 1].map(|from| stage.open(from, &format!("from {from}"), WINDOW));
    stage.settle();
    for (sender, receiver) in &mut ends {
        send(sender, 1, 100);
        stage.settle();
        assert_eq!(consume(receiver), 1);
    }
    stage.settle();
    stage.fake.hold_sends(true);
    for node in &stage.nodes {
        node.runtime.begin_close();
    }
    stage.settle();
    let failed = || {
        let changes = stage.fake.modifications();
        let mut states = changes.iter().map(|change| change.attributes.state);
        states.any(|state| state == QueuePairState::Error)
    };
    // Everything that the first end sends arrives, its goodbye last, and nothing that the second
    // sends.
    stage.fake.release(stage.queue_pairs()[0], 100);
    stage.settle();
    assert!(!failed(), "the second's goodbye is flushed");
    stage.fake.hold_sends(false);
    stage.settle();
    assert!(failed());
    assert!(stage.nodes.iter().all(|node| node.session.is_gone()));
    assert_eq!(stage.fake.alive().get("queue pairs"), None);
}

#[test]
fn a_failed_send_ends_the_session_with_the_first_cause_after_what_arrived() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = held(&stage, 8);
    let dies = stage.queue_pairs()[0];
    stage.fake.release(dies, 3);
    stage.fake.fail_send(dies, 12, 0x81);
    stage.settle();
    let message = match try_send(&mut sender, &[1]).unwrap_err() {
        ChannelError::Failed(error) => error.to_string(),
        other => panic!("{other:?}"),
    };
    assert!(message.contains("retries exceeded"), "{message}");
    assert!(message.contains("status 12"), "{message}");
    // The peer's device noticed nothing; the peer learns of the break from the connection.
    let arrived = consume_until_over(&mut receiver);
    assert_eq!(arrived, 3);
    assert!(matches!(cause(&mut receiver), EndCause::PeerGone { .. }));
    assert!(stage.nodes[0].session.is_gone() && stage.nodes[1].session.is_gone());
}

/// A handle may notice at the moment of the end that its channel continues.
#[test]
fn behind_the_end_of_a_session_nothing_is_told_of_it() {
    let stage = Stage::new();
    let node = &stage.nodes[0];
    let recovered = || What::Recovered {
        channel: "log".to_owned(),
        end: Role::Sender,
        stalled: Duration::ZERO,
    };
    node.session.requests.on_connection(|connection, context| {
        connection.core.common.tell(recovered(), context);
        connection.core.fail("planted", context);
        connection.core.common.tell(recovered(), context);
        connection.core.fail("planted again", context);
    });
    let notified = std::iter::from_fn(|| node.runtime.next_event(Patience::None));
    let notified: Vec<_> = notified.map(|event| event.what).collect();
    assert!(
        matches!(
            notified[..],
            [
                What::Connected { .. },
                What::Recovered { .. },
                What::Gone { .. }
            ]
        ),
        "{notified:?}"
    );
}

#[test]
fn a_request_that_the_peer_refuses_is_a_broken_protocol_and_no_lost_device() {
    let refused = [
        (9, "the peer took the request for invalid (status 9)"),
        (
            10,
            "the peer's memory is not granted: wrong key, range or rights (status 10)",
        ),
        (
            11,
            "the peer could not do it; its receive may be too short (status 11)",
        ),
    ];
    for (status, text) in refused {
        let stage = Stage::new();
        let (mut sender, _receiver) = held(&stage, 2);
        let dies = stage.queue_pairs()[0];
        stage.fake.fail_send(dies, status, 0x89);
        stage.settle();
        let error = try_send(&mut sender, &[1]).unwrap_err();
        let EndCause::PeerGone { why, .. } = &end_cause(&error) else {
            panic!("{error}");
        };
        let (who, what) = why.split_once(" failed in send ").unwrap();
        assert_eq!(
            who,
            format!("the device says that the protocol was broken: queue pair {dies:#x}")
        );
        let (_, what) = what.split_once(": ").unwrap();
        assert_eq!(
            what,
            format!(
                "{text} (vendor 0x89); the queue pair is dead and everything else on it is flushed"
            )
        );
    }
}

#[test]
fn an_end_of_file_in_mid_stream_hands_out_what_arrived_first() {
    let stage = Stage::new();
    let (_sender, mut receiver) = held(&stage, 6);
    let [from, _] = stage.queue_pairs();
    stage.fake.release(from, 4);
    stage.nodes[0].tcp.shutdown(Shutdown::Both).unwrap();
    stage.settle();
    assert_eq!(consume_until_over(&mut receiver), 4);
    let EndCause::PeerGone { why, .. } = cause(&mut receiver) else {
        panic!("another cause");
    };
    assert!(why.contains("without saying goodbye"), "{why}");
}

#[test]
fn a_fatal_event_of_a_queue_pair_ends_its_session_and_no_other() {
    let stage = Stage::new();
    let other = stage.another_session();
    let (_sender, mut receiver) = stage.channel("fatal", WINDOW);
    stage.fake.raise(
        DEVICE,
        RawEvent {
            event_type: QUEUE_PAIR_FATAL,
            element: stage.queue_pairs()[1].into(),
        },
    );
    stage.settle();
    let EndCause::DeviceLost { why } = cause(&mut receiver) else {
        panic!("another cause");
    };
    assert!(why.contains("Fatal"), "{why}");
    assert!(!other[0].is_gone() && !other[1].is_gone());
}

#[test]
fn a_queue_pair_that_died_with_nothing_outstanding_ends_its_session_all_the_same() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("died", WINDOW);
    send(&mut sender, 1, 10);
    stage.nodes[0].runtime.poll_ready();
    stage.fake.raise(
        DEVICE,
        RawEvent {
            event_type: LAST_REQUEST_REACHED,
            element: stage.queue_pairs()[1].into(),
        },
    );
    stage.settle();
    assert_eq!(consume_until_over(&mut receiver), 1, "it had arrived");
    let EndCause::PeerGone { why, .. } = cause(&mut receiver) else {
        panic!("another cause");
    };
    assert!(why.contains("LastRequestReached"), "{why}");
    assert!(stage.nodes[1].session.is_gone());
}

#[test]
fn a_broken_device_ends_every_session_and_a_port_event_none() {
    let stage = Stage::new();
    let other = stage.another_session();
    let (mut sender, mut receiver) = stage.channel("fatal", WINDOW);
    let raise = |event_type| {
        stage.fake.raise(
            DEVICE,
            RawEvent {
                event_type,
                element: 1,
            },
        );
    };
    raise(PORT_ERROR);
    stage.settle();
    send(&mut sender, 1, 10);
    stage.settle();
    assert_eq!(consume(&mut receiver), 1);
    send(&mut sender, 2, 10);
    stage.nodes[0].runtime.poll_ready();
    raise(DEVICE_FATAL);
    stage.settle();
    assert_eq!(consume_until_over(&mut receiver), 1, "it had arrived");
    assert!(matches!(cause(&mut receiver), EndCause::DeviceLost { .. }));
    assert!(other[0].is_gone() && other[1].is_gone());
    // The RDMA port is unusable now.
    let [pair, _] = pairs(stage.nodes.each_ref().map(|node| &node.rdma_port)).unwrap();
    let [stream, _kept] = connection();
    let refused = stage.nodes[0].runtime.admit(admission(stream, pair));
    assert!(
        refused
            .unwrap_err()
            .to_string()
            .contains("open its port anew")
    );
}

#[test]
fn a_lost_device_is_closed_when_nobody_needs_it_and_the_node_goes_on_with_another() {
    let clock = crate::clock::StoppedClock::stop();
    let mut stage = Stage::new();
    assert_eq!(stage.fake.alive()["contexts"], 2);
    let fatal = RawEvent {
        event_type: DEVICE_FATAL,
        element: 0,
    };
    stage.fake.raise(DEVICE, fatal);
    stage.settle();
    assert!(stage.nodes.iter().all(|node| node.session.is_gone()));
    // The drain of the device's queue pairs waits for completions that never come.
    clock.advance(ibex_verbs::DEFAULT_DRAIN_TIMEOUT);
    stage.settle();
    let rdma_ports = [(); 2].map(|()| open_port(&stage.fake, settings()));
    let [one, other] = pairs([&rdma_ports[0], &rdma_ports[1]]).unwrap();
    let [stream, peer_stream] = connection();
    let again = [(0, stream, one), (1, peer_stream, other)].map(|(node, stream, pair)| {
        let runtime = &stage.nodes[node].runtime;
        runtime.admit(admission(stream, pair)).unwrap()
    });
    stage.settle();
    assert!(stage.nodes.iter().all(|node| node.rdma_port.is_lost()));
    assert!(!again[0].is_gone() && !again[1].is_gone());
    // Only handles of the first session keep the first devices open.
    for (node, (rdma_port, session)) in stage
        .nodes
        .iter_mut()
        .zip(rdma_ports.into_iter().zip(again))
    {
        node.rdma_port = rdma_port;
        node.session = session;
    }
    assert_eq!(stage.fake.alive()["contexts"], 2);
}

#[test]
fn a_completion_queue_that_cannot_be_polled_or_armed_ends_its_sessions() {
    for call in [Call::PollQueue, Call::RequestNotify] {
        let stage = Stage::new();
        let (_sender, mut receiver) = stage.channel("lost", WINDOW);
        // The second node is the next one to poll and to arm.
        stage.fake.refuse(call, Errno::IO);
        let _ = stage.nodes[1].runtime.watch();
        while stage.nodes[1].runtime.poll_ready() {}
        let EndCause::DeviceLost { why } = cause(&mut receiver) else {
            panic!("another cause");
        };
        assert!(why.contains("rxe0"), "{why}");
    }
}

#[test]
fn a_refused_request_to_send_or_receive_ends_the_session() {
    for call in [Call::PostSend, Call::PostReceive] {
        let stage = Stage::new();
        let (mut sender, mut receiver) = stage.channel("refused", WINDOW);
        stage.fake.refuse(call, Errno::NOMEM);
        for number in 0..40 {
            send(&mut sender, number, 3500);
        }
        stage.settle();
        let gone = stage.nodes.each_ref().map(|node| node.session.is_gone());
        assert_eq!(gone, [true; 2], "{call:?}");
        consume_until_over(&mut receiver);
    }
}

#[test]
fn messages_outlive_their_session_port_and_node() {
    let stage = Stage::new();
    let (mut sender, mut receiver) = stage.channel("outlives", WINDOW);
    send(&mut sender, 9, 2000);
    stage.settle();
    let message = take(&mut receiver).unwrap().remove(0);
    let fake = stage.fake.clone();
    drop((sender, receiver));
    for node in &stage.nodes {
        let _ = node.runtime.close(std::time::Duration::ZERO);
    }
    drop(stage);
    assert_eq!(message.bytes(), payload(9, 2000));
    drop(message);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}
