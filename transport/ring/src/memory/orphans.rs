//! Memory whose node has ended while messages that lie in it are still held.
//!
//! A message guard is `'static` and has no reference count, so its bytes have to be kept when the
//! handles and the node that received them end first. This list, one per process, keeps them. The
//! node gives its memory to the list, and each node that is made or closed sweeps the list. A guard
//! that is never dropped leaks its memory, and has no other effect.
#![forbid(unsafe_code)]

use std::sync::Mutex;

use ibex_base::sync::lock;

/// Memory that outlives its node.
///
/// Dropping the value frees the memory, so the value owns all of it.
pub trait Orphan: Send {
    /// Returns whether no guard can touch the memory any more. Once true it stays true.
    ///
    /// This method is called under the list's lock, so it must only look.
    fn is_settled(&self) -> bool;
}

/// Takes over memory until it is settled.
pub fn adopt(orphan: Box<dyn Orphan>) {
    lock(&ORPHANS).push(orphan);
}

/// Frees what has been settled; returns how many are still held.
pub fn sweep() -> usize {
    let mut held = lock(&ORPHANS);
    let settled: Vec<_> = held.extract_if(.., |orphan| orphan.is_settled()).collect();
    let remaining = held.len();
    // Freeing runs foreign `Drop`s, which may adopt in turn, so it happens outside of the lock.
    drop(held);
    drop(settled);
    remaining
}

// A panicking `is_settled` leaves every orphan in the list, so a poisoned list stays usable.
static ORPHANS: Mutex<Vec<Box<dyn Orphan>>> = Mutex::new(Vec::new());

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

    struct Held {
        settled: Arc<AtomicBool>,
        freed: Arc<AtomicBool>,
    }

    impl Orphan for Held {
        fn is_settled(&self) -> bool {
            self.settled.load(SeqCst)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            // This call would never return if the value were freed under the list's lock.
            sweep();
            self.freed.store(true, SeqCst);
        }
    }

    #[test]
    fn an_orphan_is_freed_by_the_first_sweep_after_it_settled() {
        let settled = Arc::new(AtomicBool::new(false));
        let freed = Arc::new(AtomicBool::new(false));
        adopt(Box::new(Held {
            settled: Arc::clone(&settled),
            freed: Arc::clone(&freed),
        }));

        assert!(sweep() >= 1);
        assert!(!freed.load(SeqCst));
        settled.store(true, SeqCst);
        sweep();
        assert!(freed.load(SeqCst));
    }
}
