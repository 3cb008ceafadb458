//! The verbs layer on this machine's device; without a device, the error that says so.
//!
//! `IBEX_TEST_DEVICE` names the device, and makes its absence a failure. Both ends are on that
//! device, in this process. `IBEX_TEST_SLEEPS` gives the number of sleeps that wait for a message;
//! the default is 10 000.
#![cfg(feature = "verbs")]

#[path = "two_ends/mod.rs"]
mod two_ends;

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use std::{env, hint, thread};

use ibex_transport::rdma::{PortSettings, RdmaPort};
use ibex_verbs::{
    CompletionKind, CompletionPolling, CompletionQueue, Device, FirstSequence, ScatterEntry,
    SendRequest, WorkCompletion,
    discovery::{Choice, DeviceKind},
    provider::Provider,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use two_ends::{End, Like, chosen, connected, id, tear_down};

impl End {
    fn put(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.memory.bytes());
        // SAFETY: in bounds; no receive is posted there and there is no reference to it.
        unsafe {
            let place = self.memory.base().as_ptr().add(offset);
            place.copy_from(bytes.as_ptr(), bytes.len());
        }
    }

    fn get(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset + length <= self.memory.bytes());
        let mut bytes = vec![0; length];
        // SAFETY: in bounds; the completion of the bytes that arrived there has been seen.
        unsafe {
            let place = self.memory.base().as_ptr().add(offset);
            place.copy_to(bytes.as_mut_ptr(), length);
        }
        bytes
    }
}

/// Returns the self-test's verdict on the device, as if the device were hardware.
fn tested(provider: &Arc<dyn Provider>, choice: &Choice) -> CompletionPolling {
    let mut choice = choice.clone();
    choice.kind = DeviceKind::Hardware;
    let rdma_port = RdmaPort::open(provider, &choice, PortSettings::default()).unwrap();
    println!("{}: completions {}", choice.device, rdma_port.polling());
    rdma_port.polling().polling
}

#[test]
fn messages_arrive_through_either_kind_of_receive_and_completion_queue() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let tested = tested(&provider, &choice);
    let plain = CompletionPolling::Plain;
    for (shared, polling) in [
        (true, plain),
        (false, plain),
        (true, tested),
        (false, tested),
    ] {
        let like = Like {
            shared,
            polling,
            ..Like::default()
        };
        let (mut one, mut other) = connected(&provider, &choice, &like);
        other.post_receives(8);
        one.put(40_000, b"over the seam");
        let seam = [
            one.memory.entry(40_000..40_005),
            one.memory.entry(40_005..40_013),
        ];
        let inline = [ScatterEntry::unregistered(b"inline")];
        let remote = other.memory.remote(50_000);
        let block = [one.memory.entry(40_000..40_004)];
        let mut batch = one.pair.send_batch();
        batch.push(&SendRequest::send(id(0), &seam)).unwrap();
        batch
            .push(
                &SendRequest::send(id(1), &inline)
                    .inline()
                    .with_immediate(0xdead_beef),
            )
            .unwrap();
        batch
            .push(
                &SendRequest::write(id(2), &block, remote)
                    .with_immediate(3)
                    .signaled(),
            )
            .unwrap();
        assert_eq!(batch.post(), Ok(3));

        let arrived: Vec<_> = other
            .wait(3)
            .iter()
            .map(|wc| (wc.id().slot(), wc.outcome().unwrap()))
            .map(|(slot, done)| (slot, done.kind, done.bytes, done.immediate))
            .collect();
        assert_eq!(arrived[0], (0, CompletionKind::Receive, 13, None));
        let second = (1, CompletionKind::Receive, 6, Some(0xdead_beef));
        assert_eq!(arrived[1], second);
        assert_eq!(arrived[2].1, CompletionKind::ReceiveWrite);
        assert_eq!(arrived[2].3, Some(3));
        assert_eq!(other.get(0, 13), b"over the seam");
        assert_eq!(other.get(1024, 6), b"inline");
        assert_eq!(other.get(50_000, 4), b"over");
        let sent = one.wait(1);
        assert_eq!((sent.len(), sent[0].id()), (1, id(2)));
        one.pair.retire_sends(3);
        tear_down(one);
        tear_down(other);
    }
}

/// State that the sending and the sleeping thread share.
#[derive(Debug, Default)]
struct Progress {
    sent: AtomicU64,
    taken: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    /// Sends one message after the other, each when the last one was taken.
    fn send(&self, one: &mut End) {
        for number in 1_u64.. {
            while self.taken.load(Ordering::Acquire) < number - 1 {
                if self.is_over.load(Ordering::Relaxed) {
                    return;
                }
                thread::yield_now();
            }
            let inline = [ScatterEntry::unregistered(b"wake")];
            let request = SendRequest::send(id(0), &inline).inline().signaled();
            let mut batch = one.pair.send_batch();
            batch.push(&request).unwrap();
            batch.post().unwrap();
            self.sent.store(number, Ordering::Release);
            // This end does not sleep, since the test is about the other end's sleep.
            let mut room = [WorkCompletion::EMPTY];
            while one.completions.poll(&mut room).unwrap().is_empty() {
                thread::yield_now();
            }
            room[0].outcome().unwrap();
            one.pair.retire_sends(1);
        }
    }

    /// Sleeps until the descriptor is readable. Returns false if it stays unreadable although a
    /// message was sent minutes ago.
    fn sleep(&self, fd: BorrowedFd<'_>) -> bool {
        let is_readable_within = |tv_sec| {
            let limit = Timespec { tv_sec, tv_nsec: 0 };
            poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap() == 1
        };
        while !is_readable_within(1) {
            let sent = self.sent.load(Ordering::Acquire);
            if sent > self.taken.load(Ordering::Relaxed) {
                // A busy machine may take long to carry the message.
                return is_readable_within(300);
            }
        }
        true
    }
}

/// Lets a moment of 0 to 2^`bits` nanoseconds pass: a different one for each number.
fn linger(number: u64, bits: u32) {
    // The golden ratio spreads the moments.
    let moment = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (64 - bits);
    let until = Instant::now() + Duration::from_nanos(moment);
    while Instant::now() < until {
        hint::spin_loop();
    }
}

/// Ends the other thread with this one, also when this one fails.
struct EndsWith<'progress>(&'progress Progress);

impl Drop for EndsWith<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn no_wake_up_is_lost_over_many_sleeps() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let wanted = env::var("IBEX_TEST_SLEEPS").map_or(10_000, |sleeps| sleeps.parse().unwrap());
    let (mut one, mut other) = connected(&provider, &choice, &Like::default());
    let progress = Progress::default();
    let (mut sleeps, mut lost) = (0, 0);
    // The receive is posted before the first message, which would otherwise be told to retry.
    other.post_receives(1);
    thread::scope(|threads| {
        threads.spawn(|| progress.send(&mut one));
        let _ends = EndsWith(&progress);
        let mut room = [WorkCompletion::EMPTY; 4];
        // After the first lost wake-up there is nothing more to learn.
        while sleeps < wanted && lost == 0 {
            // These are an engine's steps, taken apart.
            let completions = &mut other.completions;
            let mut found = completions.poll(&mut room).unwrap().len();
            if found == 0 {
                found = completions.prepare_sleep(&mut room).unwrap().len();
            }
            if found == 0 {
                sleeps += 1;
                lost += u64::from(!progress.sleep(completions.fd()));
                completions.take_events().unwrap();
                continue;
            }
            room[0].outcome().unwrap();
            other.receive_queue().retire(1);
            other.post_receives(1);
            let taken = progress.taken.fetch_add(found as u64, Ordering::Release);
            // The pause is as long as a message takes, or the next message would always come late.
            linger(taken, 17);
        }
    });
    let taken = progress.taken.load(Ordering::Relaxed);
    println!(
        "{}: {sleeps} sleeps, {taken} messages, {lost} wake-ups lost",
        choice.device
    );
    assert_eq!(lost, 0, "wake-ups lost in {sleeps} sleeps");
    tear_down(one);
    tear_down(other);
}

#[test]
fn a_size_beyond_the_device_is_told_with_its_limit() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let device = Device::open(&provider, &choice.device).unwrap();
    let limit = device.attributes().max_completions;
    let error = CompletionQueue::polled(&device, limit + 1).unwrap_err();
    let notified = format!("{} were asked for and its limit is {limit}", limit + 1);
    assert!(error.to_string().contains(&notified), "{error}");
}

#[test]
fn a_gid_index_that_is_not_there_ends_the_connection_with_all_there_is() {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let mut one = End::new(&provider, &choice, &Like::default()).unwrap();
    let mut local = one.local();
    if !local.attributes.needs_global_route {
        return;
    }
    local.gid.index = 200;
    let psn = FirstSequence::from_random(1);
    let endpoint = one.pair.endpoint(psn, &local);
    let text = one
        .pair
        .connect(psn, local, endpoint)
        .unwrap_err()
        .to_string();
    assert!(text.contains("INIT -> RTR failed"), "{text}");
    assert!(
        text.contains("[200]") && text.contains("DEST_QPN"),
        "{text}"
    );
}
