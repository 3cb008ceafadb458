//! Parking the calling thread, through the same wakers that tasks use.
//!
//! Each thread has one futex word, made at its first wait and used for all
//! later ones, so that waiting allocates nothing. It is not std's park token: a
//! library that consumed that would swallow wake-ups meant for the program.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};
use std::time::Instant;

use rustix::thread::futex;
use rustix::time::Timespec;

/// A waker for the calling thread, and what it parks with.
///
/// Wake-ups from before this call are forgotten, so the order is: take the
/// pair, register the waker, look again, park.
#[must_use]
pub fn thread_waker() -> (Waker, Parker) {
    thread_local! {
        static MINE: Arc<Word> = Arc::new(Word::default());
    }
    // While the thread's locals are destroyed there is none to keep.
    let word = MINE
        .try_with(Arc::clone)
        .unwrap_or_else(|_| Arc::new(Word::default()));
    word.state.store(AWAKE, Ordering::Relaxed);
    let waker = Waker::from(Arc::clone(&word));
    let parker = Parker {
        word,
        one_thread: PhantomData,
    };
    (waker, parker)
}

/// Lets its thread sleep until the waker that came with it is used.
#[derive(Debug)]
pub struct Parker {
    word: Arc<Word>,
    one_thread: PhantomData<Cell<()>>,
}

impl Parker {
    /// Whether it was woken since `thread_waker`, for who sleeps elsewhere than here.
    pub fn is_woken(&self) -> bool {
        // WAKE, pairs with `Wake::wake_by_ref`.
        self.word.state.load(Ordering::Acquire) == WOKEN
    }

    /// Sleeps until woken (`true`) or until the deadline (`false`).
    ///
    /// A wake-up since `thread_waker` or the last park counts. It may have been
    /// meant for an earlier wait of this thread: look before believing it.
    pub fn park(&self, deadline: Option<Instant>) -> bool {
        let state = &self.word.state;
        // WAKE, pairs with `Wake::wake_by_ref`: who was woken sees why.
        let slept = state.compare_exchange(AWAKE, ASLEEP, Ordering::Relaxed, Ordering::Relaxed);
        while slept.is_ok() && state.load(Ordering::Relaxed) == ASLEEP {
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => Timespec::try_from(left).ok(),
                    _ => break,
                },
            };
            // Every way out of this call (woken, interrupted, timed out, the
            // word had changed) is settled by looking at the word and the
            // clock again.
            let _ = futex::wait(state, futex::Flags::PRIVATE, ASLEEP, left.as_ref());
        }
        state.swap(AWAKE, Ordering::Acquire) == WOKEN
    }
}

/// The futex word of one thread.
#[derive(Debug, Default)]
struct Word {
    state: AtomicU32,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;

impl Wake for Word {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // WAKE, pairs with `Parker::park`.
        if self.state.swap(WOKEN, Ordering::Release) == ASLEEP {
            // It cannot fail: the word is ours and mapped.
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_wake_up_before_parking_counts_once() {
        let (waker, parker) = thread_waker();
        assert!(!parker.is_woken());
        waker.wake_by_ref();
        waker.wake();
        assert!(parker.is_woken());
        assert!(parker.park(None));
        assert!(!parker.is_woken());
        let soon = Instant::now() + Duration::from_millis(5);
        assert!(!parker.park(Some(soon)));
        assert!(Instant::now() >= soon);
    }

    #[test]
    fn another_thread_wakes_us() {
        for _ in 0..100 {
            let (waker, parker) = thread_waker();
            let other = thread::spawn(move || waker.wake());
            assert!(parker.park(None));
            other.join().unwrap();
        }
    }

    #[test]
    fn what_woke_an_earlier_wait_is_forgotten() {
        let (old, _) = thread_waker();
        old.wake();
        let (_, parker) = thread_waker();
        assert!(!parker.park(Some(Instant::now())));
    }

    #[test]
    fn parking_leaves_the_park_token_of_std_alone() {
        let (waker, parker) = thread_waker();
        thread::current().unpark();
        waker.wake();
        assert!(parker.park(None));
        thread::park();
    }
}
