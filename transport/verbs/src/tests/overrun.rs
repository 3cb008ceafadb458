//! Completion queues that ignore an overrun: their room is counted.

use super::*;
use crate::{
    CompletionPolling, SendRequest, VerbsError, XrcDomain, XrcReceiveQueue, provider::fake::Call,
};

const POLLING: CompletionPolling = CompletionPolling::Extended;

/// A device whose queues hold what they are asked for, or a little more.
fn device(fake: &FakeProvider, exact: bool) -> (Device, ProtectionDomain) {
    fake.change(DEVICE, |device| device.has_exact_queues = exact);
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    (device, domain)
}

fn build(builder: QueuePairBuilder) -> Result<QueuePair, VerbsError> {
    builder.build(1, ConnectionSettings::default())
}

#[test]
fn create_cq_ex_ignore_overrun_gives_out_its_room_and_takes_it_back() {
    let fake = one_device();
    let (device, domain) = device(&fake, true);
    let queue = CompletionQueue::ignoring_overrun(&device, 24, POLLING).unwrap();
    let pair = QueuePairBuilder::new(&domain, &queue).send_requests(7);
    // One more of each kind is kept for the last requests of all.
    let first = build(pair.clone().receives(7, 1)).unwrap();
    let refused = build(pair.clone().receives(3, 1)).unwrap_err();
    let VerbsError::NoCompletionRoom { needed, left, .. } = refused else {
        panic!("{refused}");
    };
    assert_eq!((needed, left), (12, 8));
    let text = refused.to_string();
    assert!(text.contains("lower send_requests or receives"), "{text}");
    // What one has taken that is refused for its receives is free again.
    let tiny = CompletionQueue::ignoring_overrun(&device, 2, POLLING).unwrap();
    let refused = build(pair.clone().receive_completions(&tiny).receives(7, 1)).unwrap_err();
    let is_for_receives = |error: &VerbsError| {
        matches!(
            error,
            VerbsError::NoCompletionRoom {
                needed: 8,
                left: 2,
                ..
            }
        )
    };
    assert!(is_for_receives(&refused), "{refused}");
    let sends = CompletionQueue::polled(&device, 24).unwrap();
    let elsewhere = QueuePairBuilder::new(&domain, &sends).receive_completions(&queue);
    let second = build(elsewhere.receives(7, 1)).unwrap();
    drop(first);
    let third = build(pair.receives(7, 1)).unwrap();
    assert_eq!(fake.alive()["queue pairs"], 2);
    drop((second, third));
}

/// The fake overwrites completions where there is no room, so each that was posted would be missed.
#[test]
fn a_full_queue_that_ignores_overrun_loses_nothing() {
    let fake = one_device();
    let (device, domain) = device(&fake, true);
    let mut queue = CompletionQueue::ignoring_overrun(&device, 16, POLLING).unwrap();
    let pair = QueuePairBuilder::new(&domain, &queue).send_requests(7);
    let mut pair = build(pair.receives(7, 1)).unwrap();
    let local = LocalPort::with_gid(&device, 1, |_| true).unwrap();
    let first = FirstSequence::from_random(1);
    let nobody = pair.endpoint(first, &local);
    pair.connect(first, local, nobody).unwrap();
    let mut batch = pair.receive_queue().unwrap().batch();
    let ids = (0..7).map(|slot| WorkId::new(Operation::Receive, slot, 0));
    ids.for_each(|id| batch.push(&ReceiveRequest::new(id, &[])).unwrap());
    batch.post().unwrap();
    fake.hold_sends(true);
    let mut batch = pair.send_batch();
    (0..7).for_each(|slot| batch.push(&SendRequest::send(send_id(slot), &[])).unwrap());
    batch.post().unwrap();
    pair.fail().unwrap();
    let mut room = [WorkCompletion::EMPTY; 32];
    let flushed = queue.poll(&mut room).unwrap();
    assert_eq!(flushed.len(), 14);
}

#[test]
fn what_a_device_rounds_up_to_is_not_used_where_room_is_counted() {
    let fake = one_device();
    let (device, domain) = device(&fake, false);
    let queue = CompletionQueue::ignoring_overrun(&device, 20, POLLING).unwrap();
    assert_eq!(queue.entries(), 31);
    let builder = |queue| QueuePairBuilder::new(&domain, queue).send_requests(8);
    let mut pair = build(builder(&queue).receives(8, 1)).unwrap();
    assert_eq!(pair.send_room(), 8);
    assert_eq!(pair.receive_queue().unwrap().capacity(), 8);
    let plain = CompletionQueue::polled(&device, 63).unwrap();
    let pair = build(builder(&plain).receives(8, 1)).unwrap();
    assert_eq!(pair.send_room(), 14);
}

#[test]
fn shared_receives_are_not_counted_and_so_refused() {
    let fake = one_device();
    let (device, domain) = device(&fake, true);
    let queue = CompletionQueue::ignoring_overrun(&device, 64, POLLING).unwrap();
    let shared = ReceiveQueue::shared(&domain, 4, 1).unwrap();
    let builder = QueuePairBuilder::new(&domain, &queue).shared_receive_queue(&shared);
    // The device is not asked.
    fake.refuse(Call::CreatePair, rustix::io::Errno::IO);
    let refused = build(builder).unwrap_err();
    let is_told = |error: &VerbsError| matches!(error, VerbsError::UncountedCompletions { .. });
    assert!(is_told(&refused), "{refused}");
    let xrc = XrcDomain::private(&device).unwrap();
    let refused = XrcReceiveQueue::new(&domain, &xrc, &queue, 4, 1).unwrap_err();
    assert!(is_told(&refused), "{refused}");
}

#[test]
fn resize_cq_leaves_the_room_that_was_given_out() {
    let fake = one_device();
    let (device, domain) = device(&fake, true);
    let mut queue = CompletionQueue::ignoring_overrun(&device, 64, POLLING).unwrap();
    let pair = QueuePairBuilder::new(&domain, &queue).send_requests(15);
    let first = build(pair.clone().receives(15, 1)).unwrap();
    let refused = queue.resize(31).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the size of the completion queue is 31, and can be 32 or more, which its queue pairs may \
         fill"
    );
    // A refusal of the device leaves the room as it was.
    fake.refuse(Call::ResizeCompletionQueue, rustix::io::Errno::NOMEM);
    assert!(queue.resize(32).is_err());
    let second = build(pair.clone().receives(15, 1)).unwrap();
    assert!(build(pair.clone().receives(15, 1)).is_err());
    queue.resize(96).unwrap();
    let third = build(pair.receives(15, 1)).unwrap();
    drop((first, second, third));
}

#[test]
fn a_device_that_reports_each_overrun_says_so() {
    let fake = one_device();
    fake.change(DEVICE, |device| device.ignores_overrun = false);
    let (device, _domain) = device(&fake, true);
    for polling in [POLLING, CompletionPolling::Plain] {
        let refused = CompletionQueue::ignoring_overrun(&device, 16, polling).unwrap_err();
        assert!(matches!(refused, VerbsError::Unsupported { .. }));
        let text = refused.to_string();
        assert!(
            text.contains("no completion queue that ignores an overrun"),
            "{text}"
        );
    }
}
