//! The cost of a waiting future: no thread, no poll, no processor time.
#![forbid(unsafe_code)]

mod pair;

use std::{
    fs,
    future::Future,
    pin::{Pin, pin},
    sync::{Arc, Condvar, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread,
    time::{Duration, Instant},
};

use futures_util::future::join_all;
use ibex::Fabric;
use pair::{FABRICS, Pair};
use rustix::time::{ClockId, clock_gettime};

/// Requested polls, counted one by one.
#[derive(Default)]
struct Asked {
    polls: Mutex<u32>,
    more: Condvar,
}

impl Wake for Asked {
    fn wake(self: Arc<Self>) {
        *self.polls.lock().expect("nobody panics with it") += 1;
        self.more.notify_one();
    }
}

impl Asked {
    /// Waits until a poll is requested, and takes the request. Returns false if `until` comes
    /// first.
    fn take_until(&self, until: Instant) -> bool {
        let polls = self.polls.lock().expect("nobody panics with it");
        let left = until.saturating_duration_since(Instant::now());
        let none = |polls: &mut u32| *polls == 0;
        let waited = self.more.wait_timeout_while(polls, left, none);
        let (mut polls, _) = waited.expect("nobody panics with it");
        let is_asked = *polls > 0 && !left.is_zero();
        *polls -= u32::from(is_asked);
        is_asked
    }
}

fn poll<F: Future>(future: Pin<&mut F>, waker: &Waker) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(waker))
}

/// Runs the proofs one after the other, since threads and processor time belong to the process.
#[test]
fn futures_that_wait_cost_neither_threads_nor_time() {
    for fabric in FABRICS {
        a_future_that_waits_is_left_alone_until_its_message_comes(fabric);
        a_thousand_that_wait_cost_neither_threads_nor_time(fabric);
    }
}

fn a_future_that_waits_is_left_alone_until_its_message_comes(fabric: Fabric) {
    let pair = Pair::over(fabric);
    let (mut sender, mut receiver) = pair.channel("numbers");
    sender.opened(Duration::from_secs(60)).expect("open");
    let asked = Arc::new(Asked::default());
    let waker = Waker::from(asked.clone());
    let mut pending = pin!(receiver.recv_async());
    let mut polls = 0;
    let until = Instant::now() + Duration::from_secs(1);
    // The loop polls like an executor: once at first, and once for each wake-up.
    while polls == 0 || asked.take_until(until) {
        polls += 1;
        assert!(poll(pending.as_mut(), &waker).is_pending());
    }
    assert!(polls <= 2, "polled {polls} times for nothing over {fabric}");
    sender.send(&7).expect("sent");
    let message = smol::block_on(pending).expect("a message");
    assert_eq!(*message, 7);
}

fn a_thousand_that_wait_cost_neither_threads_nor_time(fabric: Fabric) {
    let pair = Pair::over(fabric);
    let (senders, receivers): (Vec<_>, Vec<_>) =
        (0..FUTURES).map(|n| pair.channel(&n.to_string())).unzip();
    let threads = threads();
    let waker = Waker::from(Arc::new(Asked::default()));
    let mut receivers = receivers;
    let mut pending: Vec<_> = receivers
        .iter_mut()
        .map(|receiver| Box::pin(receiver.recv_async()))
        .collect();
    for future in &mut pending {
        assert!(poll(future.as_mut(), &waker).is_pending());
    }
    // Work from opening continues for a while, and longer while others use the cores.
    let patience = Instant::now() + PATIENCE;
    loop {
        let used = used_in(REST);
        if used < REST / 100 {
            break;
        }
        assert!(
            Instant::now() < patience,
            "{FUTURES} pending futures took {used:?} of {REST:?} over {fabric}"
        );
    }
    // A thread that opening needed may have ended.
    assert!(self::threads() <= threads, "{threads} threads before");
    let mut senders = senders;
    for (number, sender) in (0..).zip(&mut senders) {
        sender.send(&number).expect("sent");
    }
    let received = smol::block_on(join_all(pending));
    for (number, message) in (0..).zip(received) {
        assert_eq!(*message.expect("a message"), number);
    }
    drop(pair.nodes);
}

const FUTURES: usize = 1000;
const REST: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(300);

fn threads() -> usize {
    fs::read_dir("/proc/self/task").expect("procfs").count()
}

/// Returns the processor time used during a wait of `time`.
fn used_in(time: Duration) -> Duration {
    let before = processor_time();
    thread::sleep(time);
    processor_time() - before
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
