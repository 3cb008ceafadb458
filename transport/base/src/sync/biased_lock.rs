//! A lock that favours one thread: entering costs it a store and a load, and others may
//! enter only while it is away.
//!
//! The favoured thread enters again and again, once for each message. Another thread wants to enter
//! seldom, if ever. So the favoured thread announces by a plain store that it is inside, and the
//! other thread pays for both with the heavy half of a barrier.
//!
//! ```text
//!   favoured thread                 other thread
//!   inside = 1                      claimed = 1
//!   light barrier                   heavy barrier
//!   claimed?                        inside?
//!     yes: inside = 0; wait           yes: claimed = 0; another time
//!     no: inside                      no: inside
//!   inside = 0                      claimed = 0
//! ```
//!
//! The lock survives this race: both threads come at once. The barriers order each side's write
//! before its read, so they cannot both miss the other. Both may give way, which is the favoured
//! thread's only wait. Model: loom_one_is_inside.
//!
//! Rules:
//!
//! 1. One thread at a time is favoured. A hand-over to another thread orders the two.
//! 2. One thread at a time claims.
//! 3. The favour may be [withdrawn](BiasedLock::withdraw) permanently. All threads then enter in
//!    some other way, which a claimer has to keep closed too.

use super::barrier::Asymmetry;
use crate::sync::{AtomicBool, AtomicU32, Ordering};

/// A lock that one thread enters by a store and a load; others may enter only while that thread is
/// away.
#[derive(Debug)]
pub struct BiasedLock {
    /// The favoured thread is inside, or about to look whether it may be.
    inside: AtomicBool,
    asymmetry: Asymmetry,
    /// The reasons for which the favoured thread may not enter: some of the bits below.
    closed: AtomicU32,
}

/// Another thread is inside, or is about to check whether it may be.
const CLAIMED: u32 = 1;
/// The favour has been withdrawn.
const WITHDRAWN: u32 = 2;

impl BiasedLock {
    /// Creates a lock with no thread inside.
    #[must_use]
    pub fn new() -> Self {
        Self {
            inside: AtomicBool::new(false),
            asymmetry: Asymmetry::of_process(),
            closed: AtomicU32::new(0),
        }
    }

    // ---- The favoured thread ---------------------------------------------------------

    /// Enters, unless another thread is inside or the favour was withdrawn.
    #[inline(always)]
    #[must_use = "it may be somebody else's"]
    pub fn try_enter(&self) -> bool {
        self.inside.store(true, Ordering::Relaxed);
        self.asymmetry.light();
        // OPEN, pairs with `open`: this thread sees what the other thread did inside.
        let closed = self.closed.load(Ordering::Acquire);
        if closed != 0 {
            self.leave();
        }
        closed == 0
    }

    /// Leaves the lock.
    #[inline(always)]
    pub fn leave(&self) {
        // LEFT, pairs with `is_left`: the other thread sees what was done inside.
        self.inside.store(false, Ordering::Release);
    }

    /// Withdraws the favour, so that no thread is favoured from now on. For the favoured thread,
    /// while it is outside.
    pub fn withdraw(&self) {
        self.closed.fetch_or(WITHDRAWN, Ordering::Relaxed);
    }

    /// Returns whether the favour was withdrawn, as far as the calling thread knows.
    #[must_use]
    pub fn is_withdrawn(&self) -> bool {
        self.closed.load(Ordering::Relaxed) & WITHDRAWN != 0
    }

    // ---- The other threads -----------------------------------------------------------

    /// Keeps the favoured thread out from now on, unless it is inside already: behind
    /// [`Asymmetry::heavy_here`], [`is_left`](Self::is_left) knows. [`open`](Self::open)
    /// afterwards in any case.
    pub fn close(&self) {
        self.closed.fetch_or(CLAIMED, Ordering::Relaxed);
    }

    /// Returns whether the favoured thread is outside. The answer `true` stays true until
    /// [`open`](Self::open).
    #[must_use]
    pub fn is_left(&self) -> bool {
        // LEFT, pairs with `leave`.
        !self.inside.load(Ordering::Acquire)
    }

    /// Lets the favoured thread in again.
    pub fn open(&self) {
        // OPEN, pairs with `try_enter`.
        self.closed.fetch_and(!CLAIMED, Ordering::Release);
    }
}

impl Default for BiasedLock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_of_the_two_is_inside() {
        let lock = BiasedLock::new();
        assert!(lock.try_enter());
        lock.close();
        assert!(!lock.is_left());
        lock.open();
        lock.leave();
        lock.close();
        assert!(lock.is_left());
        assert!(!lock.try_enter());
        assert!(lock.is_left(), "who gave way is not inside");
        lock.open();
        assert!(lock.try_enter());
    }

    #[test]
    fn a_favour_that_was_withdrawn_stays_so() {
        let lock = BiasedLock::new();
        lock.withdraw();
        assert!(!lock.try_enter());
        lock.close();
        lock.open();
        assert!(!lock.try_enter());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, UnsafeCell, thread};

    /// Mutants: light_missing, heavy_missing, enter_relaxed, left_relaxed.
    #[test]
    fn loom_one_is_inside() {
        loom::model(|| {
            let shared = Arc::new((BiasedLock::new(), UnsafeCell::new(0)));
            let favoured = {
                let shared = shared.clone();
                thread::spawn(move || {
                    let (lock, value) = &*shared;
                    for _ in 0..2 {
                        if lock.try_enter() {
                            // SAFETY: loom checks that no other thread accesses the value.
                            value.with_mut(|value| unsafe { *value += 1 });
                            lock.leave();
                        }
                    }
                })
            };
            let (lock, value) = &*shared;
            lock.close();
            Asymmetry::of_process().heavy_here();
            if lock.is_left() {
                // SAFETY: as above.
                value.with_mut(|value| unsafe { *value += 1 });
            }
            lock.open();
            favoured.join().unwrap();
        });
    }
}
