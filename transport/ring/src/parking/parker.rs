//! Parking the calling thread, through the same wakers that tasks use.
//!
//! Each thread has one futex word, made at its first wait and used for all later ones, so that
//! waiting allocates nothing. The word is not std's park token: a library that consumed the token
//! would swallow wake-ups meant for the program.
//!
//! A thread that sleeps where an engine's changes come in names the bell that wakes it there. Its
//! waker then rings the bell instead of the futex.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Instant;

use rustix::thread::futex;
use rustix::time::Timespec;

use super::Bell;

/// A waker for the calling thread, and what it parks with.
///
/// Wake-ups from before this call are forgotten, so the order is: take the
/// pair, register the waker, look again, park.
#[must_use]
pub fn thread_waker() -> (Waker, Parker) {
    thread_local! {
        static MINE: Arc<Word> = Arc::new(Word::default());
    }
    // While the thread's locals are destroyed, no word can be kept.
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
    /// Returns whether the thread was woken since `thread_waker` or the last park.
    pub fn is_woken(&self) -> bool {
        // WAKE, pairs with `Wake::wake_by_ref`.
        self.word.state.load(Ordering::Acquire) == WOKEN
    }

    /// Forgets that the thread was woken. Returns whether it was.
    pub fn forget(&self) -> bool {
        // WAKE, pairs with `Wake::wake_by_ref`.
        self.word.state.swap(AWAKE, Ordering::Acquire) == WOKEN
    }

    /// Makes the waker ring `bell`, at which its thread is about to sleep, until the returned guard
    /// is dropped. `None` if the thread was woken already.
    pub fn sleep_at(&self, bell: &'static Bell) -> Option<Elsewhere<'_>> {
        *self
            .word
            .bell
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(bell);
        // WAKE, pairs with `Wake::wake_by_ref`: a thread that finds this state finds the bell.
        self.word
            .state
            .compare_exchange(AWAKE, ELSEWHERE, Ordering::Release, Ordering::Acquire)
            .is_ok()
            .then(|| Elsewhere { word: &self.word })
    }

    /// Sleeps until woken (`true`) or until the deadline (`false`).
    ///
    /// A wake-up since `thread_waker` or the last park counts. The wake-up may have been meant for
    /// an earlier wait of this thread, so look before believing it.
    pub fn park(&self, deadline: Option<Instant>) -> bool {
        let state = &self.word.state;
        // Relaxed: the swap below orders what the waker's thread did.
        let slept = state.compare_exchange(AWAKE, ASLEEP, Ordering::Relaxed, Ordering::Relaxed);
        while slept.is_ok() && state.load(Ordering::Relaxed) == ASLEEP {
            let left = match deadline {
                None => None,
                Some(deadline) => match deadline.checked_duration_since(Instant::now()) {
                    Some(left) if !left.is_zero() => Timespec::try_from(left).ok(),
                    _ => break,
                },
            };
            // Whatever ends this call (a wake-up, an interruption, the time, a changed word), the
            // loop looks at the word and the clock again.
            let _ = futex::wait(state, futex::Flags::PRIVATE, ASLEEP, left.as_ref());
        }
        // WAKE, pairs with `Wake::wake_by_ref`.
        state.swap(AWAKE, Ordering::Acquire) == WOKEN
    }
}

/// A guard that says that its thread sleeps at a bell.
#[derive(Debug)]
pub struct Elsewhere<'a> {
    word: &'a Word,
}

impl Drop for Elsewhere<'_> {
    fn drop(&mut self) {
        let state = &self.word.state;
        // Leaves the state alone if the thread was woken, which `is_woken` reports.
        let _ = state.compare_exchange(ELSEWHERE, AWAKE, Ordering::Relaxed, Ordering::Relaxed);
    }
}

/// The futex word of one thread.
#[derive(Debug, Default)]
struct Word {
    state: AtomicU32,
    /// The bell at which the thread sleeps while the state is `ELSEWHERE`.
    bell: Mutex<Option<&'static Bell>>,
}

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const WOKEN: u32 = 2;
const ELSEWHERE: u32 = 3;

impl Wake for Word {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // WAKE, pairs with `Parker::park` and `Parker::sleep_at`.
        match self.state.swap(WOKEN, Ordering::AcqRel) {
            // The call cannot fail: the word is ours and mapped.
            ASLEEP => drop(futex::wake(&self.state, futex::Flags::PRIVATE, 1)),
            // The swap has woken a thread that has come back in the meantime, or that sleeps at
            // another bell by now.
            ELSEWHERE => {
                let bell = *self.bell.lock().unwrap_or_else(PoisonError::into_inner);
                bell.inspect(|bell| bell.wake());
            }
            _ => {}
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
    fn a_parker_forgets_the_wake_of_an_earlier_wait() {
        let (old, _) = thread_waker();
        old.wake();
        let (_, parker) = thread_waker();
        assert!(!parker.park(Some(Instant::now())));
    }

    #[test]
    fn a_thread_that_sleeps_at_a_bell_is_rung_for() {
        let rings = |bell: &'static Bell| {
            let mut spare = [0; 8];
            rustix::io::read(bell.fd(), &mut spare).is_ok()
        };
        let lease = Bell::lease().unwrap();
        let (waker, parker) = thread_waker();
        let asleep = parker.sleep_at(lease.bell()).unwrap();
        waker.wake_by_ref();
        assert!(rings(lease.bell()));
        waker.wake_by_ref();
        drop(asleep);
        assert!(parker.is_woken() && parker.sleep_at(lease.bell()).is_none());
        assert!(!rings(lease.bell()));

        let (waker, parker) = thread_waker();
        drop(parker.sleep_at(lease.bell()));
        assert!(!parker.is_woken());
        waker.wake();
        assert!(parker.is_woken() && !rings(lease.bell()));
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
