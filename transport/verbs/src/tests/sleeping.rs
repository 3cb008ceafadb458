//! Sleeping on a completion queue, again and again, while another thread completes into
//! it: no wake-up is lost.
//!
//! `IBEX_TEST_SLEEPS` says how often; without it, as often as takes a moment.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::{env, hint, thread};

use ibex_base::sync::{ArmedQueue, Slept};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::*;
use crate::{CompletionWait, SendRequest, abi::Wc};

/// The knowledge that the two threads have of each other.
#[derive(Debug, Default)]
struct Progress {
    /// Completions put into the queue, and taken out of it.
    posted: AtomicU64,
    taken: AtomicU64,
    is_over: AtomicBool,
}

impl Progress {
    /// Completes one thing after the other, each a moment after the last was taken: sooner
    /// or later than the other thread polls, arms, polls again and sleeps.
    fn post(&self, mut complete: impl FnMut(u64)) {
        for number in 1_u64.. {
            while self.taken.load(Ordering::Acquire) < number - 1 {
                if self.is_over.load(Ordering::Relaxed) {
                    return;
                }
                hint::spin_loop();
            }
            linger(number, if number % 8 == 0 { 14 } else { 11 });
            complete(number);
            self.posted.store(number, Ordering::Release);
        }
    }

    /// Sleeps until the descriptor is readable; fails if it is not although something came.
    fn sleep(&self, fd: BorrowedFd<'_>) {
        while !is_readable(fd, 1) {
            let posted = self.posted.load(Ordering::Acquire);
            // The completion came with its event, or will never have one.
            assert!(
                posted == self.taken.load(Ordering::Relaxed) || is_readable(fd, 0),
                "asleep for ever: completion {posted} made no event"
            );
        }
    }
}

/// Lets a moment pass, of 0 to 2^`bits` nanoseconds: a different one for each number.
fn linger(number: u64, bits: u32) {
    // The golden ratio spreads the moments evenly.
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

fn is_readable(fd: BorrowedFd<'_>, seconds: i64) -> bool {
    let timeout = Timespec {
        tv_sec: seconds,
        tv_nsec: 0,
    };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)).unwrap() == 1
}

fn sleeps_wanted() -> u64 {
    env::var("IBEX_TEST_SLEEPS").map_or(20_000, |sleeps| sleeps.parse().expect("a number"))
}

#[test]
fn no_wake_up_is_lost_over_many_sleeps() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let queue = CompletionQueue::with_channel(&device, 15).unwrap();
    let tag = queue.tag();
    let mut armed = ArmedQueue::new(queue);
    let progress = Progress::default();
    let wanted = sleeps_wanted();
    let mut sleeps = 0;
    thread::scope(|threads| {
        threads.spawn(|| {
            progress.post(|number| {
                let completion = Wc {
                    wr_id: number,
                    ..Wc::default()
                };
                fake.complete(tag, completion);
            });
        });
        let _ends = EndsWith(&progress);
        let mut room = [WorkCompletion::EMPTY; 4];
        while sleeps < wanted {
            let found = armed.wait(&mut room, |queue| {
                sleeps += 1;
                progress.sleep(queue.channel_fd());
                Ok(Slept::Woken)
            });
            let found = found.unwrap() as u64;
            let taken = progress.taken.fetch_add(found, Ordering::Release);
            // Without this pause, the next completion would always come late.
            linger(!taken, 12);
        }
    });
    let taken = progress.taken.load(Ordering::Relaxed);
    println!("{sleeps} sleeps, {taken} completions, no wake-up lost");
    drop((armed, device));
    let (events, calls) = fake.acknowledged();
    assert!(
        events >= wanted && calls <= events / 64 + 1,
        "{events} events, {calls} calls"
    );
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn waiting_takes_what_comes_and_ends_with_its_deadline() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let mut completions = CompletionWait::open(&device, 15).unwrap();
    let tag = completions.queue().tag();
    let mut room = [WorkCompletion::EMPTY; 4];
    let soon = Instant::now() + Duration::from_millis(2);
    assert!(completions.wait(&mut room, Some(soon)).unwrap().is_empty());
    assert!(Instant::now() >= soon);

    thread::scope(|threads| {
        threads.spawn(|| fake.complete(tag, Wc::default()));
        assert_eq!(completions.wait(&mut room, None).unwrap().len(), 1);
    });
    // Sleeps as an engine does: in a set, with the steps taken one by one.
    assert!(completions.prepare_sleep(&mut room).unwrap().is_empty());
    fake.complete(tag, Wc::default());
    assert!(is_readable(completions.fd(), 0));
    assert_eq!(completions.take_events().unwrap(), 1);
    assert_eq!(completions.poll(&mut room).unwrap().len(), 1);
    assert!(!is_readable(completions.fd(), 0));
}

#[test]
fn solicited_only_lets_a_sleeper_sleep_through_the_rest() {
    let fake = one_device();
    let shape = Shape {
        channel: true,
        ..USUAL
    };
    let (mut one, mut other) = connected(&fake, shape);
    other.post_receives(2);
    let spare = CompletionQueue::with_channel(&other.device, 8).unwrap();
    let queue = std::mem::replace(&mut other.completions, spare);
    let mut waiting = CompletionWait::over(queue);
    waiting.wake_for_solicited_only(true);
    let mut room = [WorkCompletion::EMPTY; 4];
    waiting.arm().unwrap();
    let mut batch = one.pair.send_batch();
    batch.push(&SendRequest::send(send_id(0), &[])).unwrap();
    batch.post().unwrap();
    assert_eq!(waiting.take_events().unwrap(), 0);
    let mut batch = one.pair.send_batch();
    let urgent = SendRequest::send(send_id(1), &[]).solicited();
    batch.push(&urgent).unwrap();
    batch.post().unwrap();
    let found = waiting.wait(&mut room, None).unwrap();
    assert_eq!(found.len(), 2);
}
