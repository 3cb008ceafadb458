//! Completions: polling, failures, and sleeping without losing a wake-up.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::*;
use crate::{
    AsyncEvent, AsyncEvents, CompletionStatus, Fault, PortEvent, SendRequest,
    abi::Wc,
    provider::{RawEvent, fake::Call},
};

const CHANNEL: Shape = Shape {
    channel: true,
    ..USUAL
};

fn is_readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    let at_once = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    poll(&mut fds, Some(&at_once)).unwrap() == 1
}

fn send(end: &mut End, slot: u32, solicited: bool) {
    let mut batch = end.pair.send_batch();
    let mut request = SendRequest::send(send_id(slot), &[]);
    if solicited {
        request = request.solicited();
    }
    batch.push(&request).unwrap();
    batch.post().unwrap();
}

#[test]
fn a_small_array_takes_what_fits_and_the_rest_waits() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(5);
    for slot in 0..5 {
        send(&mut one, slot, false);
    }
    let mut room = [WorkCompletion::EMPTY; 3];
    let slots =
        |found: &[WorkCompletion]| -> Vec<u32> { found.iter().map(|wc| wc.id().slot()).collect() };
    let first = slots(other.completions.poll(&mut room).unwrap());
    let second = slots(other.completions.poll(&mut room).unwrap());
    assert_eq!((first, second), (vec![0, 1, 2], vec![3, 4]));
    assert!(other.completions.poll(&mut room).unwrap().is_empty());
    assert!(other.completions.poll(&mut []).unwrap().is_empty());
}

#[test]
fn completions_before_arming_make_no_event_so_a_second_poll_is_needed() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, CHANNEL);
    other.post_receives(2);
    assert!(other.poll().is_empty());
    // This completion comes after the first poll.
    send(&mut one, 0, false);
    other.completions.arm(false).unwrap();
    assert!(!is_readable(other.completions.channel_fd()));
    assert_eq!(other.poll().len(), 1, "the second poll finds it");

    // This completion comes after arming, and makes one event.
    send(&mut one, 1, false);
    assert!(is_readable(other.completions.channel_fd()));
    assert_eq!(other.completions.drain_events().unwrap(), 1);
    assert!(!is_readable(other.completions.channel_fd()));
    assert_eq!(other.completions.drain_events().unwrap(), 0);
    assert_eq!(other.poll().len(), 1);
}

#[test]
fn only_solicited_or_failed_completions_wake_a_queue_armed_for_them() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, CHANNEL);
    other.post_receives(4);
    other.completions.arm(true).unwrap();
    send(&mut one, 0, false);
    assert!(!is_readable(other.completions.channel_fd()));
    send(&mut one, 1, true);
    assert!(is_readable(other.completions.channel_fd()));
    other.completions.drain_events().unwrap();

    one.completions.arm(true).unwrap();
    fake.hold_sends(true);
    send(&mut one, 2, false);
    fake.fail_send(one.pair.number(), 12, 0);
    assert!(is_readable(one.completions.channel_fd()));
}

#[test]
fn acknowledgements_are_batched_and_none_is_owed_at_the_end() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), CHANNEL);
    let tag = end.completions.tag();
    for _ in 0..150 {
        end.completions.arm(false).unwrap();
        fake.complete(tag, Wc::default());
        assert_eq!(end.completions.drain_events().unwrap(), 1);
        assert_eq!(end.poll().len(), 1);
    }
    assert_eq!(fake.acknowledged(), (128, 2));
    drop(end);
    assert_eq!(fake.acknowledged(), (150, 3));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_failed_request_is_told_and_the_rest_is_flushed() {
    let fake = one_device();
    let (mut one, _other) = connected(&fake, USUAL);
    fake.hold_sends(true);
    for slot in 0..3 {
        send(&mut one, slot, false);
    }
    fake.fail_send(one.pair.number(), CompletionStatus::RetryExceeded, 0x81);
    let notified: Vec<_> = one
        .poll()
        .iter()
        .map(|wc| {
            let failure = wc.outcome().unwrap_err();
            (failure.id, failure.status, failure.vendor_error)
        })
        .collect();
    assert_eq!(
        notified,
        [
            (send_id(0), CompletionStatus::RetryExceeded, 0x81),
            (send_id(1), CompletionStatus::Flushed, 0),
            (send_id(2), CompletionStatus::Flushed, 0),
        ]
    );
    // A dead queue pair takes requests, and flushes them at once.
    send(&mut one, 3, false);
    assert_eq!(one.poll()[0].outcome().unwrap_err().fault(), Fault::Flushed);
}

#[test]
fn a_message_longer_than_its_receive_is_a_fault_of_the_protocol_at_both_ends() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(1);
    let entries = [one.sends.entry(0..1025)];
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::send(send_id(0), &entries))
        .unwrap();
    batch.post().unwrap();
    let at_receiver = other.poll()[0].outcome().unwrap_err();
    let at_sender = one.poll()[0].outcome().unwrap_err();
    assert_eq!(at_receiver.status, CompletionStatus::LocalOperation);
    assert_eq!(at_sender.status, CompletionStatus::RemoteOperation);
    assert_eq!(at_receiver.fault(), Fault::Protocol);
    assert_eq!(at_sender.fault(), Fault::Protocol);
}

#[test]
fn a_wrong_key_is_a_fault_of_the_protocol() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let entries = [one.sends.entry(0..8)];
    let mut target = other.receives.remote(0);
    target.rkey ^= 0x100;
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::write(send_id(0), &entries, target))
        .unwrap();
    batch.post().unwrap();
    let failure = one.poll()[0].outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RemoteAccess);
    assert_eq!(failure.fault(), Fault::Protocol);
}

#[test]
fn a_message_without_a_receive_waits_and_is_counted() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    send(&mut one, 0, false);
    assert!(other.poll().is_empty());
    assert!(fake.rnr_naks() > 0);
    other.post_receives(1);
    assert_eq!(other.poll().len(), 1);
}

#[test]
fn a_queue_that_cannot_be_polled_is_lost() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), CHANNEL);
    fake.refuse(Call::PollQueue, Errno::IO);
    let error = end
        .completions
        .poll(&mut [WorkCompletion::EMPTY])
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        "RDMA device rxe0: ibv_poll_cq failed: Input/output error (os error 5); the completion \
         queue is lost, and with it every connection that completes into it"
    );
    fake.refuse(Call::RequestNotify, Errno::NODEV);
    assert!(end.completions.arm(false).is_err());
    fake.refuse(Call::ChannelEvent, Errno::BADF);
    assert!(end.completions.drain_events().is_err());
}

#[test]
fn events_come_one_by_one_and_name_what_they_are_about() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let mut events = AsyncEvents::of(&end.device).unwrap().unwrap();
    assert_eq!(events.take().unwrap(), None);
    assert!(!is_readable(&events));
    let raise = |event_type, element| {
        fake.raise(
            DEVICE,
            RawEvent {
                event_type,
                element,
            },
        );
    };
    raise(10, 1);
    raise(99, 0);
    assert!(is_readable(&events));
    let port = AsyncEvent::Port(1, PortEvent::Error);
    assert_eq!(events.take().unwrap(), Some(port));
    assert_eq!(events.take().unwrap(), Some(AsyncEvent::Unknown(99)));
    assert!(!is_readable(&events));

    // A queue that overflows raises an event with its tag.
    let tag = end.completions.tag();
    for _ in 0..=end.completions.entries() {
        fake.complete(tag, Wc::default());
    }
    let lost = AsyncEvent::CompletionQueueError(tag);
    assert_eq!(events.take().unwrap(), Some(lost));
    assert_eq!(end.poll().len(), 64);
}

#[test]
fn a_shared_queue_announces_once_that_it_runs_low() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    let mut events = AsyncEvents::of(&other.device).unwrap().unwrap();
    other.post_receives(4);
    let shared = other.shared.as_mut().unwrap();
    let tag = shared.tag().unwrap();
    shared.arm_limit(3).unwrap();
    send(&mut one, 0, false);
    assert_eq!(events.take().unwrap(), None);
    send(&mut one, 1, false);
    send(&mut one, 2, false);
    assert_eq!(
        events.take().unwrap(),
        Some(AsyncEvent::ReceiveQueueLimit(tag))
    );
    assert_eq!(events.take().unwrap(), None);
}
