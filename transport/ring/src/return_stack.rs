//! Numbers on their way back to the owner that gives them out. A number stands for a receive buffer
//! without messages; the thread that released the last message returns it.
//!
//! A stack of indices, linked through a table with one entry for each, so returning allocates
//! nothing. Any thread pushes. Only the owner takes, and always everything, so no index can leave
//! and come back while a pusher is at work (the ABA problem).
//!
//! Rules:
//!
//! 1. An index is out, on the stack, or with the owner. The thread that returns an index is the one
//!    that has it.
//! 2. `next[index]` belongs to the thread that has the index, and to the taker once it is on the
//!    stack.
//! 3. After [`close`](Returns::close) nothing is taken in any more: a thread that returns an index
//!    keeps it, and the buffer that it stands for.
#![forbid(unsafe_code)]

use ibex_base::sync::{AtomicU32, Ordering};

/// A stack of returned indices, linked through an array.
#[derive(Debug)]
pub struct Returns {
    head: AtomicU32,
    next: Box<[AtomicU32]>,
}

/// The stack is empty.
const EMPTY: u32 = u32::MAX;
/// The stack takes nothing in any more.
const CLOSED: u32 = u32::MAX - 1;

impl Returns {
    /// Creates a stack for the indices below `count`, all of them out.
    ///
    /// # Panics
    ///
    /// If there are more indices than 32 bits can tell from the two marks.
    #[must_use]
    pub fn new(count: u32) -> Self {
        assert!(count <= CLOSED);
        Self {
            head: AtomicU32::new(EMPTY),
            next: (0..count).map(|_| AtomicU32::new(EMPTY)).collect(),
        }
    }

    /// Returns `index`; false if the owner is gone (rule 3).
    #[inline]
    pub fn give(&self, index: u32) -> bool {
        let mut head = self.head.load(Ordering::Relaxed);
        while head != CLOSED {
            self.next[index as usize].store(head, Ordering::Relaxed);
            // RETURN, pairs with `take` and `close`: the taker of the index sees the link to the
            // rest, and all earlier accesses to the buffer that the index stands for.
            let swapped =
                self.head
                    .compare_exchange_weak(head, index, Ordering::Release, Ordering::Relaxed);
            match swapped {
                Ok(_) => return true,
                Err(now) => head = now,
            }
        }
        false
    }

    /// Takes everything that was returned, the latest first. Only the owner may call this.
    #[inline]
    pub fn take(&self, into: impl FnMut(u32)) {
        if self.head.load(Ordering::Relaxed) != EMPTY {
            self.take_all(EMPTY, into);
        }
    }

    /// Takes everything that was returned, for the last time (rule 3).
    pub fn close(&self, into: impl FnMut(u32)) {
        self.take_all(CLOSED, into);
    }

    fn take_all(&self, leave: u32, mut into: impl FnMut(u32)) {
        // RETURN, pairs with `give`. Model: loom_returned_after_use.
        let mut index = self.head.swap(leave, Ordering::Acquire);
        while index != EMPTY && index != CLOSED {
            let next = self.next[index as usize].load(Ordering::Relaxed);
            into(index);
            index = next;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(returns: &Returns) -> Vec<u32> {
        let mut all = Vec::new();
        returns.take(|index| all.push(index));
        all
    }

    #[test]
    fn a_returned_index_is_taken_once() {
        let returns = Returns::new(3);
        assert!(taken(&returns).is_empty());
        assert!(returns.give(0) && returns.give(2));
        assert_eq!(taken(&returns), [2, 0]);
        assert!(returns.give(2));
        assert_eq!(taken(&returns), [2]);
        assert!(taken(&returns).is_empty());
    }

    #[test]
    fn an_index_given_after_the_close_stays_with_its_giver() {
        let returns = Returns::new(2);
        assert!(returns.give(1));
        let mut last = Vec::new();
        returns.close(|index| last.push(index));
        assert_eq!(last, [1]);
        assert!(!returns.give(0));
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use ibex_base::sync::{Arc, UnsafeCell, thread};

    /// Mutants: return_relaxed, take_back_relaxed.
    #[test]
    fn loom_returned_after_use() {
        struct Used {
            returns: Returns,
            buffers: [UnsafeCell<u8>; 2],
        }
        loom::model(|| {
            let used = Arc::new(Used {
                returns: Returns::new(2),
                buffers: [UnsafeCell::new(0), UnsafeCell::new(0)],
            });
            let readers = [0, 1].map(|index: u32| {
                let used = used.clone();
                thread::spawn(move || {
                    used.buffers[index as usize].with(|_| ());
                    used.returns.give(index)
                })
            });
            // The owner writes to the buffers that came back, and to no others. Its last check is
            // the one that loom tries at every point, because it exchanges at once where `take`
            // loads first.
            let mut came_back = [false; 2];
            let mut write = |index: u32| {
                used.buffers[index as usize].with_mut(|_| ());
                came_back[index as usize] = true;
            };
            used.returns.take(&mut write);
            used.returns.close(&mut write);
            let given = readers.map(|reader| reader.join().unwrap());
            assert_eq!(came_back, given, "an index is with one of the two");
        });
    }
}
