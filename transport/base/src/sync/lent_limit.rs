//! A limit that the engines of a node share: each borrows steps of it.
//!
//! An engine counts against the amount that it has borrowed, which no other thread reads or writes.
//! It comes here only when that amount is used up or a step of it has become free. So the limit
//! holds for all engines together, and no message touches a line that two of them share.
//!
//! Rule: LEND: what is left is looked at and lessened in one step, or two engines borrow the same
//! part. Model: loom_lent_once.

use super::{AtomicU64, Ordering};

/// A limit, of which engines borrow.
#[derive(Debug)]
pub struct LentLimit {
    left: AtomicU64,
}

impl LentLimit {
    /// A limit of which nothing is lent.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            left: AtomicU64::new(limit),
        }
    }

    /// Lends up to `wanted`. Returns how much, which is 0 when nothing is left.
    #[must_use]
    pub fn borrow_up_to(&self, wanted: u64) -> u64 {
        let mut left = self.left.load(Ordering::Relaxed);
        loop {
            let lent = wanted.min(left);
            if lent == 0 {
                return 0;
            }
            // LEND. Relaxed: only the number is shared.
            let exchanged =
                self.left
                    .compare_exchange(left, left - lent, Ordering::Relaxed, Ordering::Relaxed);
            match exchanged {
                Ok(_) => return lent,
                Err(now) => left = now,
            }
        }
    }

    /// Takes back what was lent and is not used any more.
    pub fn give_back(&self, lent: u64) {
        self.left.fetch_add(lent, Ordering::Relaxed);
    }

    /// Returns how much is not lent.
    #[must_use]
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_lent_than_there_is_and_what_comes_back_is_lent_again() {
        let limit = LentLimit::new(10);
        assert_eq!(limit.borrow_up_to(6), 6);
        assert_eq!(limit.borrow_up_to(6), 4);
        assert_eq!(limit.borrow_up_to(6), 0);
        limit.give_back(5);
        assert_eq!(limit.left(), 5);
        assert_eq!(limit.borrow_up_to(6), 5);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, thread};

    /// Mutants: lent_twice.
    #[test]
    fn loom_lent_once() {
        loom::model(|| {
            let limit = Arc::new(LentLimit::new(3));
            let other = {
                let limit = limit.clone();
                thread::spawn(move || limit.borrow_up_to(2))
            };
            let one = limit.borrow_up_to(2);
            let other = other.join().unwrap();
            assert_eq!(one + other, 3, "the limit is lent as a whole, and once");
            limit.give_back(one);
            assert_eq!(limit.left(), one);
        });
    }
}
