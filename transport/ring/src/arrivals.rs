//! Arrivals: what an engine received, on its way to the receiver and back.
//!
//! A ring with three roles, each a value of its own that one thread holds at a
//! time. The *writer* (the engine) pushes descriptors of frames. The *reader*
//! (the receiver handle) works through them in place. The *retirer* (the thread that
//! advances the channel's counters) drops them, in order, once the messages in
//! them are released; what they own lives until then.
//!
//! Rules, with the indices all counting from 0 without end:
//!
//! 1. `retired <= completed <= published <= retired + capacity`.
//! 2. The writer owns the slots from `published` to `retired + capacity` and
//!    moves `published`.
//! 3. The reader alone owns the slots from `completed` to `published`, and moves `completed`.
//! 4. The retirer owns the slots from `retired` to `completed` and moves
//!    `retired`.
//!
//! So in an empty ring, where `retired` is `published`, the writer owns all slots, and may
//! [give their memory back](ArrivalWriter::rest).

use std::cell::Cell;
use std::mem::MaybeUninit;
use std::ops::Deref;

use ibex_base::sync::{Arc, AtomicU64, Ordering, UnsafeCell};

use super::pages::{NoMemory, Pages};

/// Makes a ring for `capacity` arrivals, rounded up to a power of two, and its
/// three roles.
///
/// The memory is mapped here, once, and touched as it is used.
///
/// # Errors
/// The kernel gives none.
pub fn arrival_ring<T: Send>(capacity: usize) -> Result<ArrivalRing<T>, NoMemory> {
    let capacity = capacity.max(1).next_power_of_two();
    let slots = Pages::new(capacity)?;
    let shared = Arc::new(ArrivalQueue {
        published: CacheLine(AtomicU64::new(0)),
        behind: CacheLine(Behind {
            completed: AtomicU64::new(0),
            retired: AtomicU64::new(0),
        }),
        slots: CacheLine(slots),
    });
    Ok((
        ArrivalWriter {
            shared: Arc::clone(&shared),
            published: 0,
            retired: 0,
        },
        ArrivalReader {
            shared: Arc::clone(&shared),
            completed: 0,
            published: Cell::new(0),
        },
        ArrivalRetirer { shared, retired: 0 },
    ))
}

/// The three roles of a ring.
pub type ArrivalRing<T> = (ArrivalWriter<T>, ArrivalReader<T>, ArrivalRetirer<T>);

/// The engine's end.
pub struct ArrivalWriter<T> {
    shared: Arc<ArrivalQueue<T>>,
    published: u64,
    /// The index as of the last check.
    retired: u64,
}

impl<T> ArrivalWriter<T> {
    /// Hands `arrival` to the reader, or drops it if the ring is full. A caller that must not lose
    /// it asks [`has_room`](Self::has_room) before, or for a [`vacancy`](Self::vacancy).
    #[inline]
    #[must_use = "the arrival is gone if the ring was full"]
    pub fn push(&mut self, arrival: T) -> bool {
        self.vacancy()
            .map(|vacancy| vacancy.fill(arrival))
            .is_some()
    }

    /// The slot for the next arrival, if one is free.
    #[inline(always)]
    #[must_use]
    pub fn vacancy(&mut self) -> Option<Vacancy<'_, T>> {
        if !self.has_room() {
            return None;
        }
        Some(Vacancy {
            slot: self.shared.slot(self.published),
            shared: &self.shared,
            published: &mut self.published,
        })
    }

    /// Returns whether a push would succeed. The answer `true` stays true until the push.
    #[inline]
    #[must_use]
    pub fn has_room(&mut self) -> bool {
        let capacity = self.shared.slots.len() as u64;
        if self.published - self.retired < capacity {
            return true;
        }
        // RETIRE, pairs with `ArrivalRetirer::retire_while`: the slot has been
        // left before we write to it. Model: loom_arrivals.
        self.retired = self.shared.behind.retired.load(Ordering::Acquire);
        self.published - self.retired < capacity
    }

    /// Gives the memory of the slots back until the next push, if the ring is empty.
    /// Returns whether it is; "empty" stays true until a push.
    pub fn rest(&mut self) -> bool {
        // RETIRE, pairs with `ArrivalRetirer::retire_while`. Model: loom_slots_rest.
        self.retired = self.shared.behind.retired.load(Ordering::Acquire);
        let is_empty = self.retired == self.published;
        if is_empty {
            // SAFETY: rule 2: all slots are ours, and none holds an arrival.
            unsafe { self.shared.slots.discard() };
        }
        is_empty
    }
}

/// A slot that is free. An arrival that is put into it is never dropped on the way, and so
/// needs no address before.
pub struct Vacancy<'a, T> {
    slot: &'a UnsafeCell<MaybeUninit<T>>,
    shared: &'a ArrivalQueue<T>,
    published: &'a mut u64,
}

impl<T> Vacancy<'_, T> {
    /// Hands `arrival` to the reader.
    ///
    /// Inlined, so that an arrival is put together in its slot.
    #[inline(always)]
    pub fn fill(self, arrival: T) {
        self.slot.with_mut(|slot| {
            // SAFETY:
            // 1. Valid and aligned: a slot of the ring, which `shared` keeps.
            // 2. Ours alone: rule 2, as `has_room` checked before.
            // 3. Nothing to drop in it: never used, or moved out by `retire_while`,
            //    which RETIRE made visible.
            unsafe { (*slot).write(arrival) };
        });
        *self.published += 1;
        // ARRIVE, pairs with `ArrivalReader::is_empty`: a reader that sees the index sees the
        // arrival. Model: loom_arrivals.
        self.shared
            .published
            .store(*self.published, Ordering::Release);
    }
}

/// The receiver's end.
pub struct ArrivalReader<T> {
    shared: Arc<ArrivalQueue<T>>,
    completed: u64,
    /// The index as of the last check.
    published: Cell<u64>,
}

impl<T> ArrivalReader<T> {
    /// The first arrival that is not completed yet.
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<&T> {
        if self.is_empty() {
            return None;
        }
        self.shared.slot(self.completed).with(|slot| {
            // SAFETY:
            // 1. Valid and aligned: a slot of the ring, which `shared` keeps.
            // 2. Initialised: its index is below `published`, and ARRIVE made
            //    the write visible.
            // 3. Nobody writes to it while the reference lives: the retirer
            //    stops at `completed` (rule 4) and the writer behind it (rule
            //    1), and the reference borrows `self`, which `advance` needs
            //    exclusively to move `completed`.
            Some(unsafe { (*slot).assume_init_ref() })
        })
    }

    /// Returns whether there is no arrival. The answer `false` stays true until one is completed.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        if self.completed != self.published.get() {
            return false;
        }
        // ARRIVE, pairs with `Vacancy::fill`. Model: loom_arrivals.
        self.published
            .set(self.shared.published.load(Ordering::Acquire));
        self.completed == self.published.get()
    }

    /// Leaves the arrival that `peek` shows to the retirer.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline]
    pub fn advance(&mut self) {
        assert!(
            self.completed < self.published.get(),
            "advanced beyond what was peeked"
        );
        self.completed += 1;
        // COMPLETE, pairs with `ArrivalRetirer::retire_while`: our last check of
        // the slot is over. Model: loom_arrivals.
        self.shared
            .behind
            .completed
            .store(self.completed, Ordering::Release);
    }
}

/// The end that drops what is done.
pub struct ArrivalRetirer<T> {
    shared: Arc<ArrivalQueue<T>>,
    retired: u64,
}

impl<T> ArrivalRetirer<T> {
    /// Drops completed arrivals from the head for as long as `is_done` returns true.
    pub fn retire_while(&mut self, mut is_done: impl FnMut(&T) -> bool) {
        // COMPLETE, pairs with `ArrivalReader::advance`. Model: loom_arrivals.
        let completed = self.shared.behind.completed.load(Ordering::Acquire);
        while self.retired < completed {
            let slot = self.shared.slot(self.retired);
            let done = slot.with(|slot| {
                // SAFETY: valid, initialised and ours alone: rule 4, with
                // COMPLETE having made visible all that the reader saw.
                is_done(unsafe { (*slot).assume_init_ref() })
            });
            if !done {
                return;
            }
            let arrival = slot.with_mut(|slot| {
                // SAFETY: as above. It is moved out once: `retired` passes it below, and no role
                // reads a slot behind `retired` (rule 1).
                unsafe { (*slot).assume_init_read() }
            });
            self.retired += 1;
            // RETIRE, pairs with `ArrivalWriter::has_room`.
            self.shared
                .behind
                .retired
                .store(self.retired, Ordering::Release);
            // The arrival is dropped last and on its own, so that a drop that panics leaves the
            // ring whole.
            drop(arrival);
        }
    }
}

/// The state that the three ends share.
///
/// The order of the fields matters: processors fetch cache lines in pairs, and no pair here is
/// written by two threads.
#[repr(C)]
struct ArrivalQueue<T> {
    published: CacheLine<AtomicU64>,
    slots: CacheLine<Pages<UnsafeCell<MaybeUninit<T>>>>,
    behind: CacheLine<Behind>,
}

/// A value with a cache line to itself.
#[repr(align(64))]
struct CacheLine<T>(T);

impl<T> Deref for CacheLine<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        &self.0
    }
}

/// The indices behind the writer, moved mostly by one thread: a receiver's handle retires what it
/// has completed.
struct Behind {
    completed: AtomicU64,
    retired: AtomicU64,
}

impl<T> ArrivalQueue<T> {
    #[inline]
    fn slot(&self, index: u64) -> &UnsafeCell<MaybeUninit<T>> {
        &self.slots[index as usize & (self.slots.len() - 1)]
    }
}

impl<T> Drop for ArrivalQueue<T> {
    fn drop(&mut self) {
        // No other role is left, and the drop of the last `Arc` made their stores visible.
        let retired = self.behind.retired.load(Ordering::Relaxed);
        let published = self.published.load(Ordering::Relaxed);
        for index in retired..published {
            self.slot(index).with_mut(|slot| {
                // SAFETY: initialised and not moved out: between `retired` and
                // `published` (rules 2 and 4).
                unsafe { (*slot).assume_init_drop() };
            });
        }
    }
}

// SAFETY: a slot is reached by one role at a time (rules 2 to 4), each role is
// one value that is not `Clone`, and the arrivals move between their threads,
// which `T: Send` allows. No `&T` is shared between two threads.
unsafe impl<T: Send> Sync for ArrivalQueue<T> {}
// SAFETY: as for `Sync`.
unsafe impl<T: Send> Send for ArrivalQueue<T> {}

ibex_base::debug_fields!([T] ArrivalWriter<T>: |writer| published = writer.published);

ibex_base::debug_fields!([T] Vacancy<'_, T>: |vacancy| published = vacancy.published);

ibex_base::debug_fields!([T] ArrivalReader<T>: |reader| completed = reader.completed);

ibex_base::debug_fields!([T] ArrivalRetirer<T>: |retirer| retired = retirer.retired);

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use ibex_base::sync::thread;

    /// Mutants: arrive_relaxed, complete_relaxed, retire_relaxed, room_relaxed.
    #[test]
    fn loom_arrivals() {
        loom::model(|| {
            let (mut writer, mut reader, mut retirer) = arrival_ring(1).expect("memory");
            // Each role does as much as it can without waiting. Among the orders that loom tries
            // are those in which that is everything.
            assert!(writer.push(1));
            let engine = thread::spawn(move || {
                if writer.has_room() {
                    assert!(writer.push(2));
                }
            });
            let handle = thread::spawn(move || {
                for number in 1..=2 {
                    if reader.peek().is_some() {
                        assert_eq!(reader.peek(), Some(&number));
                        reader.advance();
                    }
                }
            });
            retirer.retire_while(|number| {
                assert_eq!(*number, 1);
                true
            });
            engine.join().unwrap();
            handle.join().unwrap();
        });
    }

    /// Mutants: rest_relaxed, retire_relaxed.
    #[test]
    fn loom_slots_rest() {
        loom::model(|| {
            let (mut writer, mut reader, mut retirer) = arrival_ring(1).expect("memory");
            assert!(writer.push(1));
            let handle = thread::spawn(move || {
                assert_eq!(reader.peek(), Some(&1));
                reader.advance();
                retirer.retire_while(|_| true);
                reader.peek().copied()
            });
            if writer.rest() {
                assert!(writer.push(2));
            }
            assert!(matches!(handle.join().unwrap(), None | Some(2)));
        });
    }
}
