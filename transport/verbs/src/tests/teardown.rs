//! ERR, drain, destroy: by each of the signs, and by time.

use std::time::Duration;

use rustix::io::Errno;

use super::*;
use crate::{
    AsyncEvents, CompletionStatus, DEFAULT_DRAIN_TIMEOUT, SendRequest, Teardown, Verdict,
    provider::fake::Call,
};

#[test]
fn a_shared_queue_is_drained_by_the_last_send_the_event_and_an_empty_poll() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let mut events = AsyncEvents::of(&one.device).unwrap().unwrap();
    let mut batch = one.pair.send_batch();
    batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
    batch.post().unwrap();

    let (now, later) = moments();
    let mut teardown = Teardown::begin(one.pair, 3, now, DEFAULT_DRAIN_TIMEOUT);
    assert_eq!(teardown.verdict(now), Verdict::Draining);
    let mut room = [WorkCompletion::EMPTY; 8];
    let mut others = Vec::new();
    for completion in one.completions.poll(&mut room).unwrap() {
        if !teardown.handle_completion(completion) {
            others.push((completion.id(), completion.outcome().unwrap_err().status));
        }
    }
    assert_eq!(others, [(send_id(0), CompletionStatus::Flushed)]);
    teardown.handle_empty_poll();
    assert_eq!(teardown.verdict(now), Verdict::Draining, "no event yet");

    teardown.handle_event(&events.take().unwrap().unwrap());
    assert_eq!(
        teardown.verdict(now),
        Verdict::Draining,
        "no empty poll yet"
    );
    teardown.handle_empty_poll();
    assert_eq!(teardown.verdict(now), Verdict::Drained);
    assert_eq!(teardown.verdict(later), Verdict::Drained);
    drop((teardown, other));
}

#[test]
fn an_own_queue_is_drained_by_the_last_request_of_each_queue() {
    let fake = one_device();
    let shape = Shape {
        shared: false,
        ..USUAL
    };
    let (mut one, _other) = connected(&fake, shape);
    // The queues are full, and the last requests have places of their own.
    let capacity = one.receive_queue().capacity() as usize;
    one.post_receives(capacity);
    while one.pair.send_room() > 0 {
        let mut batch = one.pair.send_batch();
        batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
        batch.post().unwrap();
    }
    let sends = one.pair.outstanding_sends() as usize;

    let (now, _) = moments();
    let mut teardown = Teardown::begin(one.pair, 3, now, DEFAULT_DRAIN_TIMEOUT);
    let mut room = [WorkCompletion::EMPTY; 64];
    let found = one.completions.poll(&mut room).unwrap();
    assert_eq!(found.len(), capacity + sends + 2);
    let mut mine = 0;
    for completion in found {
        if teardown.handle_completion(completion) {
            mine += 1;
            let done = teardown.verdict(now) == Verdict::Drained;
            assert_eq!(done, mine == 2);
        }
    }
    assert_eq!(mine, 2);
}

#[test]
fn last_requests_of_others_and_of_earlier_times_are_not_ours() {
    let fake = one_device();
    let (one, _other) = connected(&fake, USUAL);
    let (now, _) = moments();
    let number = one.pair.number();
    let mut teardown = Teardown::begin(one.pair, 3, now, DEFAULT_DRAIN_TIMEOUT);
    for (slot, generation) in [(number, 2), (number + 1, 3), (number, 4)] {
        let id = WorkId::new(Operation::Drain, slot, generation);
        let mut foreign = WorkCompletion::EMPTY;
        foreign.0.wr_id = id.to_raw();
        assert!(!teardown.handle_completion(&foreign), "{id}");
    }
}

#[test]
fn time_decides_where_a_sign_never_comes() {
    let fake = one_device();
    let (one, _other) = connected(&fake, USUAL);
    let (now, later) = moments();
    let number = one.pair.number();
    let teardown = Teardown::begin(one.pair, 3, now, Duration::from_secs(1));
    assert_eq!(teardown.deadline(), now + Duration::from_secs(1));
    let before = teardown.deadline() - Duration::from_nanos(1);
    assert_eq!(teardown.verdict(before), Verdict::Draining);
    assert_eq!(
        teardown.verdict(later),
        Verdict::GaveUp(format!(
            "queue pair {number:#x} was not drained in time: last request not seen, receives not \
             seen"
        ))
    );
}

#[test]
fn a_device_that_is_gone_is_not_waited_for() {
    let calls = [
        (Call::ModifyPair, "-> ERR failed"),
        (Call::PostSend, "ibv_post_send refused request 1 of 1"),
    ];
    for (call, text) in calls {
        let fake = one_device();
        let (one, _other) = connected(&fake, USUAL);
        let (now, _) = moments();
        fake.refuse(call, Errno::NODEV);
        let teardown = Teardown::begin(one.pair, 0, now, DEFAULT_DRAIN_TIMEOUT);
        let Verdict::GaveUp(reason) = teardown.verdict(now) else {
            panic!("{call:?} was refused and it still waits");
        };
        assert!(reason.contains(text), "{reason}");
    }
}
