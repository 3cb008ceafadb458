//! Reports of this machine's device about faults that ibex's own sessions cannot cause: their
//! credit lets no message find an empty receive queue, and their completion queues hold all
//! completions.
//!
//! `IBEX_TEST_DEVICE` names the device, and makes its absence a failure. Differences between
//! soft-RoCE and other devices are noted at each test.
#![cfg(feature = "verbs")]

#[path = "two_ends/mod.rs"]
mod two_ends;

use std::thread;
use std::time::{Duration, Instant};

use ibex_verbs::{
    AsyncEvent, AsyncEvents, CompletionFailure, CompletionStatus, ConnectionSettings, Fault,
    QueuePairEvent, ScatterEntry, SendRequest, WorkCompletion,
};

use two_ends::{End, Like, PATIENCE, chosen, connected, id, tear_down};

impl End {
    /// Posts one signaled send of these bytes.
    fn send(&mut self, slot: u32, pieces: &[ScatterEntry<'_>]) {
        let mut batch = self.pair.send_batch();
        batch
            .push(&SendRequest::send(id(slot), pieces).signaled())
            .unwrap();
        assert_eq!(batch.post(), Ok(1));
    }

    /// Posts one signaled inline send.
    fn send_inline(&mut self, slot: u32) {
        let inline = [ScatterEntry::unregistered(b"inline")];
        let mut batch = self.pair.send_batch();
        let request = SendRequest::send(id(slot), &inline);
        batch.push(&request.inline().signaled()).unwrap();
        assert_eq!(batch.post(), Ok(1));
    }

    /// Returns the failure that comes next.
    fn failure(&mut self) -> CompletionFailure {
        self.wait(1)[0].outcome().unwrap_err()
    }
}

/// Takes events until one is `wanted`, and returns it.
fn event(events: &mut AsyncEvents, wanted: impl Fn(&AsyncEvent) -> bool) -> AsyncEvent {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match events.take().unwrap() {
            Some(event) if wanted(&event) => return event,
            Some(_) => {}
            None => thread::sleep(Duration::from_millis(1)),
        }
    }
    panic!("the event does not come");
}

#[test]
fn a_wrong_key_is_refused_by_the_peer_whose_queue_pair_dies_as_well() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let (mut one, other) = connected(&provider, &choice, &Like::default());
    let mut events = AsyncEvents::of(&other.device).unwrap().unwrap();
    let mut remote = other.memory.remote(50_000);
    remote.rkey = remote.rkey.wrapping_add(0x1000);
    let block = [one.memory.entry(40_000..40_004)];
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::write(id(0), &block, remote).signaled())
        .unwrap();
    batch.post().unwrap();
    let failure = one.failure();
    assert_eq!(failure.id, id(0));
    assert_eq!(failure.status, CompletionStatus::RemoteAccess, "{failure}");
    // Soft-RoCE of Linux 7.2 reports the cause before this event, that of 6.12 does not.
    let last = AsyncEvent::QueuePair(other.pair.number(), QueuePairEvent::LastRequestReached);
    event(&mut events, |event| {
        println!("{}: the peer's device says {event}", choice.device);
        *event == last
    });
    drop(events);
    tear_down(one);
    tear_down(other);
}

#[test]
fn a_message_that_is_longer_than_its_receive_fails_at_both_ends() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let (mut one, mut other) = connected(&provider, &choice, &Like::default());
    other.post_receives(1);
    let memory = &one.memory;
    let long = [memory.entry(32_768..34_000)];
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::send(id(1), &long).signaled())
        .unwrap();
    batch.post().unwrap();
    let failure = one.failure();
    assert_eq!(failure.fault(), Fault::Protocol, "{failure}");
    assert!(other.wait(1)[0].outcome().is_err());
    tear_down(one);
    tear_down(other);
}

#[test]
fn a_local_fault_is_the_first_failure_whatever_it_is_called() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let (mut one, mut other) = connected(&provider, &choice, &Like::default());
    other.post_receives(1);
    // The memory is of another protection domain. Soft-RoCE calls the failure a flush.
    let foreign = [other.memory.entry(40_000..40_004)];
    one.send(3, &foreign);
    let failure = one.failure();
    println!("{}: {failure}", choice.device);
    assert_eq!(failure.id, id(3));
    let statuses = [CompletionStatus::Flushed, CompletionStatus::LocalProtection];
    assert!(statuses.contains(&failure.status), "{failure}");
    tear_down(one);
    tear_down(other);
}

#[test]
fn a_peer_without_receives_is_given_up_after_the_retries_that_were_asked_for() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let like = Like {
        connection: ConnectionSettings::default().rnr_retry(3).unwrap(),
        ..Like::default()
    };
    let (mut one, other) = connected(&provider, &choice, &like);
    let begun = Instant::now();
    one.send_inline(0);
    let failure = one.failure();
    println!("{}: after {:?}: {failure}", choice.device, begun.elapsed());
    let exceeded = CompletionStatus::ReceiverNotReady;
    assert_eq!(failure.status, exceeded, "{failure}");
    assert_eq!(failure.fault(), Fault::Link);
    tear_down(one);
    tear_down(other);
}

#[test]
fn a_completion_queue_that_overruns_says_so() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let like = Like {
        completions: 3,
        ..Like::default()
    };
    let (mut one, mut other) = connected(&provider, &choice, &like);
    let mut events = AsyncEvents::of(&one.device).unwrap().unwrap();
    other.post_receives(32);
    let tag = one.completions.queue().tag();
    for slot in 0..16 {
        one.send_inline(slot);
    }
    event(&mut events, |event| {
        *event == AsyncEvent::CompletionQueueError(tag)
    });
    // Completions that did not fit are lost for good.
    thread::sleep(Duration::from_millis(100));
    let mut found = 0;
    let mut room = [WorkCompletion::EMPTY; 16];
    while let Ok(some @ [_, ..]) = one.completions.poll(&mut room) {
        found += some.len();
    }
    assert!(found < 16, "{found} of 16 completions");
}

#[test]
fn a_shared_receive_queue_says_once_that_it_runs_low() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let (mut one, mut other) = connected(&provider, &choice, &Like::default());
    let mut events = AsyncEvents::of(&other.device).unwrap().unwrap();
    other.post_receives(8);
    let shared = other.receive_queue();
    let tag = shared.tag().expect("a shared queue");
    shared.arm_limit(6).unwrap();
    for slot in 0..3 {
        one.send_inline(slot);
    }
    other.wait(3);
    event(&mut events, |event| {
        *event == AsyncEvent::ReceiveQueueLimit(tag)
    });
    thread::sleep(Duration::from_millis(50));
    assert_eq!(events.take().unwrap(), None);
    drop(events);
    one.wait(3);
    one.pair.retire_sends(3);
    tear_down(one);
    tear_down(other);
}
