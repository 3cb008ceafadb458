//! Scripts of faults: each kind, at the request that is counted.

use rustix::io::Errno;

use super::*;
use crate::{
    AsyncEvent, AsyncEvents, CompletionStatus, CompletionWait, QueuePairState, SendRequest,
    VerbsError,
    provider::fake::{Call, FaultScript},
};

/// Posts sends that are signaled, with one call.
fn post(end: &mut End, slots: std::ops::Range<u32>) {
    let mut batch = end.pair.send_batch();
    for slot in slots {
        batch
            .push(&SendRequest::send(send_id(slot), &[]).signaled())
            .unwrap();
    }
    batch.post().unwrap();
}

/// The status of each send that is done.
fn statuses(end: &mut End) -> Vec<(u32, CompletionStatus)> {
    let done = end.poll();
    let status = |one: &WorkCompletion| one.outcome().map_or_else(|failure| failure.status, |_| OK);
    let each = done.iter().map(|one| (one.id().slot(), status(one)));
    each.collect()
}

/// The status of success, which no failure has.
const OK: CompletionStatus = CompletionStatus::Unknown(0);

#[test]
fn the_nth_call_of_a_kind_is_refused_and_the_others_are_not() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let script = FaultScript::new()
        .refuse(Call::CreateDomain, 2, Errno::NOMEM)
        .refuse(Call::CreateDomain, 4, Errno::IO);
    fake.play(&script);
    let made = || ProtectionDomain::new(&device).map_err(|error| error.to_string());
    let made: Vec<_> = std::iter::repeat_with(made).take(5).collect();
    let failed: Vec<_> = (0..5).filter(|place| made[*place].is_err()).collect();
    assert_eq!(failed, [1, 3]);
    assert!(made[1].as_ref().unwrap_err().contains("os error 12"));
    assert!(made[3].as_ref().unwrap_err().contains("os error 5"));
}

#[test]
fn a_send_that_is_dropped_breaks_a_reliable_connection() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(4);
    fake.play(&FaultScript::new().drop_send(3));
    post(&mut one, 0..4);
    let lost = CompletionStatus::RetryExceeded;
    let flushed = CompletionStatus::Flushed;
    assert_eq!(
        statuses(&mut one),
        [(0, OK), (1, OK), (2, lost), (3, flushed)]
    );
    assert_eq!(other.poll().len(), 2);
}

#[test]
fn sends_are_counted_over_all_queue_pairs_or_over_one() {
    let fake = one_device();
    let ((mut one, mut other), (mut three, mut four)) =
        (connected(&fake, USUAL), connected(&fake, USUAL));
    other.post_receives(4);
    four.post_receives(4);
    let of_three = three.pair.number();
    let fail = |script: FaultScript, nth, status| script.fail_send(nth, status, 0x81);
    let script = fail(FaultScript::new(), 2, CompletionStatus::RemoteAccess);
    let script = script.of_queue_pair(of_three);
    fake.play(&fail(script, 2, CompletionStatus::RemoteOperation));
    post(&mut three, 0..1);
    post(&mut one, 0..1);
    post(&mut three, 1..2);
    assert_eq!(statuses(&mut one), [(0, CompletionStatus::RemoteAccess)]);
    let other_status = CompletionStatus::RemoteOperation;
    assert_eq!(statuses(&mut three), [(0, OK), (1, other_status)]);
}

#[test]
fn a_send_that_fails_tells_the_status_and_the_vendors_error() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(2);
    fake.play(&FaultScript::new().fail_send(1, CompletionStatus::BadResponse, 0x77));
    post(&mut one, 0..1);
    let failure = one.poll()[0].outcome().unwrap_err();
    let notified = (failure.status, failure.vendor_error);
    assert_eq!(notified, (CompletionStatus::BadResponse, 0x77));
    let state = one.pair.query().unwrap().attributes.state;
    assert_eq!(state, QueuePairState::Error);
    assert!(other.poll().is_empty());
}

#[test]
fn a_receive_that_fails_fails_at_both_ends() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(3);
    fake.play(&FaultScript::new().fail_receive(2, CompletionStatus::LocalProtection, 3));
    post(&mut one, 0..2);
    assert_eq!(
        statuses(&mut one),
        [(0, OK), (1, CompletionStatus::RemoteOperation)]
    );
    let arrived = other.poll();
    assert!(arrived[0].outcome().is_ok());
    let failure = arrived[1].outcome().unwrap_err();
    let notified = (failure.status, failure.vendor_error);
    assert_eq!(notified, (CompletionStatus::LocalProtection, 3));
}

#[test]
fn a_send_that_is_delayed_waits_for_polls_with_those_behind_it() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(4);
    fake.play(&FaultScript::new().delay_send(2, 3));
    post(&mut one, 0..3);
    // The first poll and the second, of either end.
    assert_eq!(statuses(&mut one), [(0, OK)]);
    assert_eq!(other.poll().len(), 1);
    assert_eq!(statuses(&mut one), [(1, OK), (2, OK)]);
    assert_eq!(other.poll().len(), 2);
}

#[test]
fn a_delay_ends_before_a_sleep() {
    let fake = one_device();
    let shape = Shape {
        channel: true,
        ..USUAL
    };
    let (mut one, mut other) = connected(&fake, shape);
    other.post_receives(1);
    fake.play(&FaultScript::new().delay_send(1, u32::MAX));
    post(&mut one, 0..1);
    let mut sleeper = CompletionWait::over(other.completions);
    let mut room = [WorkCompletion::EMPTY; 4];
    let (_, later) = moments();
    let arrived = sleeper.wait(&mut room, Some(later)).unwrap();
    assert_eq!(arrived.len(), 1);
}

#[test]
fn a_device_that_is_removed_flushes_raises_and_refuses_what_is_new() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(4);
    let mut events = AsyncEvents::of(&one.device).unwrap().unwrap();
    fake.play(&FaultScript::new().remove_device(2));
    post(&mut one, 0..1);
    post(&mut one, 1..3);
    let flushed = CompletionStatus::Flushed;
    assert_eq!(statuses(&mut one), [(0, OK), (1, flushed), (2, flushed)]);
    let came: Vec<_> = std::iter::from_fn(|| events.take().unwrap()).collect();
    assert!(came.contains(&AsyncEvent::DeviceFatal), "{came:?}");
    let refused = ProtectionDomain::new(&one.device).unwrap_err();
    assert!(refused.to_string().contains("os error 5"), "{refused}");
    let queue = CompletionQueue::polled(&one.device, 4).unwrap_err();
    let region = MemoryRegion::register(&one.domain, memory(), RegionAccess::SEND).unwrap_err();
    for refused in [queue.to_string(), region.to_string()] {
        assert!(refused.contains("the device was removed"), "{refused}");
    }
    assert!(one.pair.query().is_err());
    let opened = Device::open(&fake.provider(), DEVICE).unwrap_err();
    assert!(matches!(opened, VerbsError::NoSuchDevice { .. }));
    drop((events, one, other));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
    // It comes back as another one.
    fake.change(DEVICE, |device| device.is_listed = true);
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(1);
    post(&mut one, 0..1);
    assert_eq!(statuses(&mut one), [(0, OK)]);
}

#[test]
#[should_panic(expected = "counted from 1")]
fn requests_are_counted_from_one() {
    let _ = FaultScript::new().drop_send(0);
}
