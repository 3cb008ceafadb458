//! From release cells to counters: the advance lock and the contiguous prefix.
//!
//! Guards settle their cells in any order and on any thread. The peer is notified how far the settled
//! cells reach without a gap. One thread at a time sums them up in order, and never per message.
//! The receiver handle does so each quarter window and before it sleeps, an engine in its turn, and
//! a guard's thread when a peer waits.
//!
//! Rules:
//!
//! 1. All fields but `lock` are written under the lock and may be read by
//!    anyone, one by one.
//! 2. A thread that finds the lock taken marks it *look again* and goes: the holder
//!    cannot give the lock up while it is marked, and sums once more.
//! 3. `released` passes detached, dropped and acknowledged messages; `settled`
//!    passes dropped and acknowledged ones and empties their cells, so it
//!    follows behind.
//! 4. `acknowledged` counts what `settled` passes, up to the first dropped message. Acknowledgement
//!    ends there and does not continue.
#![forbid(unsafe_code)]

use ibex_base::sync::{AtomicU32, AtomicU64, Ordering};

use super::cells::{CellBlock, CellState};

/// The counters of one receiver, and the lock under which they advance.
#[derive(Debug)]
pub struct Advance {
    lock: AtomicU32,

    // Counters for the peer.
    released: AtomicU64,
    position: AtomicU64,
    acknowledged: AtomicU64,
    acknowledgement_ended: AtomicU32,

    // Counters for the receiver.
    /// Sequence up to which all cells are empty again.
    settled: AtomicU64,
}

/// No thread sums.
const FREE: u32 = 0;
/// A thread sums.
const HELD: u32 = 1;
/// A thread sums, and has to do it again.
const CHECK_AGAIN: u32 = 2;

/// The progress of a receiver's messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The contiguous prefix of messages whose space is free.
    pub released: u64,
    /// The position in the ring at which that prefix ends.
    pub position: u64,
    /// The contiguous prefix that the application has acknowledged.
    pub acknowledged: u64,
    /// The message behind `acknowledged` was dropped without acknowledgement, so the prefix will
    /// not grow any more.
    pub acknowledgement_ended: bool,
}

impl Default for Advance {
    /// Returns the state before the first message was handed out.
    fn default() -> Self {
        Self {
            lock: AtomicU32::new(FREE),
            released: AtomicU64::new(0),
            position: AtomicU64::new(0),
            acknowledged: AtomicU64::new(0),
            acknowledgement_ended: AtomicU32::new(0),
            settled: AtomicU64::new(0),
        }
    }
}

impl Advance {
    /// Sums the cells, or makes the thread that is doing so look again.
    ///
    /// Cells that had settled before the call are counted when it returns, or will be by a holder
    /// that is still running. `then` is called under the lock if anything moved, to publish the
    /// counters (with `Release`: it says that the space may be overwritten). `then` must not panic
    /// and must not call this method.
    pub fn run(&self, cells: &CellBlock, then: impl FnMut(&Prefix)) {
        // ADVANCE, pairs with itself and with the release below: a thread that finds the
        // lock free sees all that the last holder did; a thread that marks it makes the
        // cells it saw visible to the holder. Model: loom_advance_looks_again.
        if self.lock.swap(CHECK_AGAIN, Ordering::AcqRel) == FREE {
            self.run_locked(cells, then);
        }
    }

    /// Calls `rest` under the lock if all of the `handed_out` messages have settled, so that every
    /// cell is empty. Returns whether they have; false also if another thread is summing. `then` is
    /// as for [`run`](Self::run).
    pub fn rest(
        &self,
        cells: &CellBlock,
        handed_out: u64,
        rest: impl FnOnce(),
        then: impl FnMut(&Prefix),
    ) -> bool {
        // ADVANCE, pairs with the release in `run_locked`, as in `run`.
        let locked = self
            .lock
            .compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed);
        if locked.is_err() {
            return false;
        }
        let is_settled = self.settled.load(Ordering::Relaxed) == handed_out;
        if is_settled {
            rest();
        }
        self.run_locked(cells, then);
        is_settled
    }

    /// Sums until no thread has marked the lock, and frees it.
    fn run_locked(&self, cells: &CellBlock, mut then: impl FnMut(&Prefix)) {
        loop {
            // This is a swap and not a store. A mark that came after the exchange below failed is
            // overwritten here, and must be read to be answered.
            // ADVANCE, pairs with the mark in `run`: the sum sees the cells that its thread saw.
            self.lock.swap(HELD, Ordering::Acquire);
            if let Some(prefix) = self.sum(cells) {
                then(&prefix);
            }
            // ADVANCE, pairs with `run` and `rest`: the next holder continues from these counters.
            let freed =
                self.lock
                    .compare_exchange(HELD, FREE, Ordering::Release, Ordering::Relaxed);
            if freed.is_ok() {
                return;
            }
        }
    }

    /// A peer waits for these counters: sums the cells, and makes the next
    /// guard that settles ring the block's bell, once.
    ///
    /// The sum counts a guard that settled just before it could see the question. The engine calls
    /// this when the peer's ring came in, and again after each ring of the bell while the peer
    /// waits.
    pub fn ask(&self, cells: &CellBlock, then: impl FnMut(&Prefix)) {
        // ASK, pairs with `CellBlock::settle`. Model: loom_settled_while_asked.
        cells.ask();
        self.run(cells, then);
    }

    /// The last message whose cell is empty, so that it may be handed out. The number only
    /// grows, and may be old: [`run`](Self::run) first.
    ///
    /// A detached message keeps its cell until it is acknowledged or dropped,
    /// so a last cell within the window means that as many as there are cells are
    /// held or detached.
    #[inline]
    #[must_use]
    pub fn last_cell(&self, cells: &CellBlock) -> u64 {
        // EMPTIED, pairs with `sum`: the cell's new life begins after the end
        // of the old one. Model: loom_cells_are_reused_when_empty.
        let settled = self.settled.load(Ordering::Acquire);
        settled + cells.capacity()
    }

    /// Returns whether all of the `handed_out` messages were settled at the last sum, so that no
    /// guard reads anything any more.
    #[must_use]
    pub fn is_settled(&self, handed_out: u64) -> bool {
        // EMPTIED, pairs with `sum`: the guards have read their last bytes, whichever thread
        // summed their cells.
        self.settled.load(Ordering::Acquire) == handed_out
    }

    /// The contiguous prefix of messages whose space is free at present.
    #[inline]
    #[must_use]
    pub fn released(&self) -> u64 {
        self.released.load(Ordering::Relaxed)
    }

    /// The current counters. Each is exact, but they may be of different age; `then` gets counters
    /// that belong together.
    #[must_use]
    #[inline]
    pub fn prefix(&self) -> Prefix {
        // ENDED, pairs with `sum`: an end that is seen comes with the count at which it
        // happened. A count from before would have to grow after its own end.
        let acknowledgement_ended = self.acknowledgement_ended.load(Ordering::Acquire) != 0;
        Prefix {
            released: self.released.load(Ordering::Relaxed),
            position: self.position.load(Ordering::Relaxed),
            acknowledged: self.acknowledged.load(Ordering::Relaxed),
            acknowledgement_ended,
        }
    }

    /// Advances all counters as far as the cells allow; the caller has the lock. Returns the new
    /// counters if any of which the peer is notified has moved.
    fn sum(&self, cells: &CellBlock) -> Option<Prefix> {
        let before = self.prefix();
        let mut prefix = before;
        let mut settled = self.settled.load(Ordering::Relaxed);

        // All cells may be detached. Without this bound the loop would come round to the first of
        // them and count it again.
        while prefix.released - settled < cells.capacity() {
            let cell = cells.cell(prefix.released + 1);
            match cell.state {
                CellState::Empty | CellState::Held => break,
                CellState::Detached | CellState::Dropped | CellState::Acknowledged => {
                    prefix.released += 1;
                    prefix.position += cell.size;
                }
            }
        }
        while settled < prefix.released {
            match cells.cell(settled + 1).state {
                CellState::Dropped => prefix.acknowledgement_ended = true,
                CellState::Acknowledged => {
                    prefix.acknowledged += u64::from(!prefix.acknowledgement_ended);
                }
                _ => break,
            }
            settled += 1;
            cells.clear(settled);
        }

        self.released.store(prefix.released, Ordering::Relaxed);
        self.position.store(prefix.position, Ordering::Relaxed);
        self.acknowledged
            .store(prefix.acknowledged, Ordering::Relaxed);
        // ENDED, pairs with `prefix`.
        self.acknowledgement_ended
            .store(prefix.acknowledgement_ended.into(), Ordering::Release);
        // EMPTIED, pairs with `last_cell` and `is_settled`.
        self.settled.store(settled, Ordering::Release);
        (prefix != before).then_some(prefix)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::cells::CellLease;
    use crate::consumer::Consumer;
    use crate::model_memory::Words;
    use crate::parking::bell::{Bell, BellLease};
    use crate::producer::{Producer, Released};
    use ibex_base::sync::{Arc, thread};
    use ibex_protocol::format::record::{Layout, RecordKind};

    /// Counts rings. Does not use loom's atomics, because the count is read when all threads have
    /// been joined.
    #[derive(Default)]
    struct Rings(std::sync::atomic::AtomicU32);

    fn bell() -> (BellLease, std::sync::Arc<Rings>) {
        let bell = Bell::lease().unwrap();
        let rings = std::sync::Arc::new(Rings::default());
        let counted = rings.clone();
        bell.set_caller(move || {
            counted.0.fetch_add(1, Ordering::Relaxed);
        });
        (bell, rings)
    }

    fn two_cells() -> (BellLease, CellLease, Arc<Advance>) {
        let (bell, _) = bell();
        let lease = CellBlock::lease(2, bell.bell()).expect("memory");
        (bell, lease, Arc::new(Advance::default()))
    }

    /// Mutants: settle_relaxed, sum_relaxed.
    #[test]
    fn loom_space_is_reused_after_settle() {
        loom::model(|| {
            let (_bell, lease, advance) = two_cells();
            let cells = lease.block();
            let memory = Words::new(32);
            let mut producer = Producer::new(memory.clone(), Layout::packed(8), 10);
            let mut consumer = Consumer::new(memory.clone(), Layout::packed(8));
            memory.write(8, &[1, 1]);
            producer.publish(RecordKind::Data, 16);
            let record = consumer.peek().unwrap().unwrap();
            consumer.advance(&record);
            cells.hold(1, record.size);

            let guard = {
                let memory = memory.clone();
                thread::spawn(move || {
                    assert_eq!(memory.read(8, 2), [1, 1]);
                    cells.settle(1, 3, CellState::Dropped);
                })
            };
            let mut released = None;
            while released.is_none() {
                advance.run(cells, |prefix| {
                    released = Some(Released {
                        messages: prefix.released,
                        position: prefix.position,
                    });
                });
                thread::yield_now();
            }
            producer.refresh(released.unwrap()).unwrap();
            assert!(producer.fits(16));
            memory.write(32, &[2, 2]);
            producer.publish(RecordKind::Data, 16);
            guard.join().unwrap();
        });
    }

    /// Mutants: mark_missing, mark_overwritten, advance_relaxed.
    #[test]
    fn loom_advance_looks_again() {
        loom::model(|| {
            let (_bell, lease, advance) = two_cells();
            let cells = lease.block();
            cells.hold(1, 8);
            cells.hold(2, 16);
            // Only the holder of the lock may access this cell, which loom checks.
            let notified = Arc::new(UnsafeCell::new(()));
            let settle =
                |sequence, size_units, advance: Arc<Advance>, notified: Arc<UnsafeCell<()>>| {
                    cells.settle(sequence, size_units, CellState::Acknowledged);
                    advance.run(cells, |_| notified.with_mut(|_| ()));
                };
            let other = {
                let (advance, notified) = (advance.clone(), notified.clone());
                thread::spawn(move || settle(1, 1, advance, notified))
            };
            settle(2, 2, advance.clone(), notified.clone());
            other.join().unwrap();
            notified.with_mut(|_| ());
            let expected = Prefix {
                released: 2,
                position: 24,
                acknowledged: 2,
                acknowledgement_ended: false,
            };
            assert_eq!(advance.prefix(), expected, "a settled cell was forgotten");
        });
    }

    /// Mutants: ask_without_sum, light_missing, heavy_missing.
    #[test]
    fn loom_settled_while_asked() {
        loom::model(|| {
            let (bell, rings) = bell();
            let lease = CellBlock::lease(2, bell.bell()).expect("memory");
            let cells = lease.block();
            let advance = Arc::new(Advance::default());
            cells.hold(1, 8);
            let guard = thread::spawn(move || cells.settle(1, 1, CellState::Dropped));
            // The receiver's own thread may be summing at the same time.
            let receiver = {
                let advance = advance.clone();
                thread::spawn(move || advance.run(cells, |_| ()))
            };
            advance.ask(cells, |_| ());
            guard.join().unwrap();
            receiver.join().unwrap();
            let rings = rings.0.load(Ordering::Relaxed);
            assert_eq!(cells.has_rung(), rings == 1);
            assert!(
                advance.prefix().released == 1 || rings == 1,
                "the peer waits for a release that nobody will tell it of"
            );
        });
    }

    /// Mutants: last_cell_relaxed, emptied_relaxed.
    #[test]
    fn loom_cells_are_reused_when_empty() {
        loom::model(|| {
            let (_bell, lease, advance) = two_cells();
            let cells = lease.block();
            cells.hold(1, 8);
            cells.settle(1, 1, CellState::Dropped);
            // This runs in a thread of its own, since the main thread would look once, before the
            // other has begun.
            let receiver = {
                let advance = advance.clone();
                thread::spawn(move || {
                    if advance.last_cell(cells) >= 3 {
                        assert_eq!(cells.cell(3).state, CellState::Empty);
                        cells.hold(3, 8);
                    }
                })
            };
            advance.run(cells, |_| ());
            receiver.join().unwrap();
        });
    }
}
