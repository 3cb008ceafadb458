//! The arena of a node's rings for channels over a network.
//!
//! A ring exists while a channel is used: it is leased at the first send and comes back when the
//! lease is dropped. The arena keeps a bounded number of rings per size class, with their memory, so
//! that a channel that pauses and goes on maps nothing; and with each ring what fabrics have
//! [attached](Attachments) to it. A ring that is not leased for a while goes back to the system.

use std::mem;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use ibex_base::fork;
use rustix::io::Errno;

use super::{Attachments, MemoryError, MemoryUse, MirroredMapping};

/// The smallest size class.
pub const SMALLEST_RING_BYTES: usize = 64 << 10;
/// The largest size class.
pub const LARGEST_RING_BYTES: usize = 4 << 20;

/// A node's stock of private rings; a clone is the same stock.
#[derive(Clone, Debug, Default)]
pub struct RingArena {
    stock: Arc<FreeRings>,
}

impl RingArena {
    /// An empty stock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A ring of at least `min_bytes`: the smallest class that holds them. Its producer populates
    /// it ([`Backing`](super::Backing)), as far as no earlier one has.
    ///
    /// The ring's bytes are left from the last channel. No consumer reads them: a producer zeroes
    /// the word where its first record will begin, and each publish the one where the next will.
    ///
    /// # Errors
    /// [`MemoryError`] if `min_bytes` is above [`LARGEST_RING_BYTES`] or there is
    /// not enough memory.
    pub fn lease(&self, min_bytes: usize) -> Result<RingLease, MemoryError> {
        let Some(class) = class_of(min_bytes) else {
            return Err(MemoryError::new(
                MemoryUse::Ring,
                min_bytes,
                "size class",
                Errno::INVAL,
            ));
        };
        let kept = self.stock.lock(class).pop();
        let ring = match kept {
            Some(kept) => kept.ring,
            None => Ring {
                memory: Arc::new(MirroredMapping::create_private(
                    SMALLEST_RING_BYTES << class,
                )?),
                attachments: Attachments::default(),
            },
        };
        Ok(RingLease {
            ring: Some(ring),
            class,
            stock: Arc::clone(&self.stock),
        })
    }

    /// Takes out the rings that were not leased since the last call, to be unmapped.
    #[must_use]
    pub fn take_surplus(&self) -> Vec<Ring> {
        let mut surplus = Vec::new();
        for class in 0..CLASSES {
            let mut free = self.stock.lock(class);
            surplus.extend(
                free.extract_if(.., |kept| kept.was_seen)
                    .map(|kept| kept.ring),
            );
            for kept in &mut *free {
                kept.was_seen = true;
            }
        }
        surplus
    }

    /// Returns how many rings are kept, leased ones not counted.
    #[must_use]
    pub fn kept(&self) -> usize {
        (0..CLASSES).map(|class| self.stock.lock(class).len()).sum()
    }
}

/// A ring that goes back to its arena when it is dropped.
///
/// The owner that drops the lease guarantees that no address inside is still in use, since the
/// memory is the next channel's from then on.
#[derive(Debug)]
pub struct RingLease {
    /// Taken by `drop` alone.
    ring: Option<Ring>,
    class: usize,
    stock: Arc<FreeRings>,
}

impl RingLease {
    /// The first byte of the first window.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.memory().base()
    }

    /// Length of one window.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.memory().capacity()
    }

    /// The ring itself. An owner that keeps the ring beyond the lease must not read or write it.
    #[must_use]
    pub fn memory(&self) -> &Arc<MirroredMapping> {
        &self.ring().memory
    }

    /// Returns what fabrics have attached to the ring.
    #[must_use]
    pub fn attachments(&self) -> &Attachments {
        &self.ring().attachments
    }

    /// Returns the attachments to add to them; they stay with the ring when the lease ends.
    pub fn attachments_mut(&mut self) -> &mut Attachments {
        let ring = self.ring.as_mut().expect("only `drop` takes the ring");
        &mut ring.attachments
    }

    fn ring(&self) -> &Ring {
        self.ring.as_ref().expect("only `drop` takes the ring")
    }
}

impl Drop for RingLease {
    fn drop(&mut self) {
        if fork::is_child() {
            // In a forked child, the stock may be locked for ever.
            mem::forget(self.ring.take());
            return;
        }
        let mut free = self.stock.lock(self.class);
        if free.len() < KEPT_PER_CLASS
            && let Some(ring) = self.ring.take()
        {
            free.push(FreeRing {
                ring,
                was_seen: false,
            });
        }
    }
}

/// A ring and what belongs to it.
#[derive(Debug)]
pub struct Ring {
    memory: Arc<MirroredMapping>,
    attachments: Attachments,
}

/// A ring that waits for its next lease.
#[derive(Debug)]
struct FreeRing {
    ring: Ring,
    /// The ring was free when surplus was taken last.
    was_seen: bool,
}

/// The free rings, by class.
#[derive(Debug, Default)]
struct FreeRings {
    free: [Mutex<Vec<FreeRing>>; CLASSES],
}

impl FreeRings {
    /// A list of free rings is whole after every statement, so a panic elsewhere
    /// while it was locked does not spoil it.
    fn lock(&self, class: usize) -> std::sync::MutexGuard<'_, Vec<FreeRing>> {
        self.free[class]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// The smallest class that holds `min_bytes`: class `n` is 64 KiB times 2^n.
fn class_of(min_bytes: usize) -> Option<usize> {
    let bytes = min_bytes.max(SMALLEST_RING_BYTES);
    (bytes <= LARGEST_RING_BYTES)
        .then(|| (bytes.next_power_of_two() / SMALLEST_RING_BYTES).trailing_zeros() as usize)
}

const CLASSES: usize = (LARGEST_RING_BYTES / SMALLEST_RING_BYTES).trailing_zeros() as usize + 1;

/// Free rings that are kept of each class; at most 8 × 8 MiB in all.
const KEPT_PER_CLASS: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_the_smallest_class_that_holds_it() {
        let arena = RingArena::new();
        for (asked, given) in [
            (0, 64 << 10),
            (64 << 10, 64 << 10),
            ((64 << 10) + 1, 128 << 10),
            (1 << 20, 1 << 20),
            ((2 << 20) + 1, 4 << 20),
            (4 << 20, 4 << 20),
        ] {
            assert_eq!(arena.lease(asked).unwrap().capacity(), given);
        }
        assert!(arena.lease((4 << 20) + 1).is_err());
        assert!(arena.lease(usize::MAX).is_err());
    }

    #[test]
    fn a_ring_that_came_back_is_leased_again() {
        let arena = RingArena::new();
        let first = arena.lease(0).unwrap();
        let address = first.base();
        drop(first);
        assert_eq!(arena.kept(), 1);

        let second = arena.clone().lease(0).unwrap();
        assert_eq!(second.base(), address);
        assert_eq!(arena.kept(), 0);
    }

    #[test]
    fn only_so_many_are_kept() {
        let arena = RingArena::new();
        let leases: Vec<_> = (0..KEPT_PER_CLASS + 3)
            .map(|_| arena.lease(0).unwrap())
            .collect();
        drop(leases);
        assert_eq!(arena.kept(), KEPT_PER_CLASS);
    }

    #[test]
    fn rings_that_nobody_leases_again_go_back() {
        let arena = RingArena::new();
        let leases = [(); 3].map(|()| arena.lease(0).unwrap());
        drop(leases);
        assert!(arena.take_surplus().is_empty(), "they have just come back");
        drop(arena.lease(0).unwrap());
        assert_eq!(arena.take_surplus().len(), 2);
        assert_eq!(arena.kept(), 1, "the one that was leased since");
        assert_eq!(arena.take_surplus().len(), 1);
        assert_eq!(arena.kept(), 0);
    }

    #[test]
    fn a_lease_may_outlive_its_arena() {
        let lease = RingArena::new().lease(0).unwrap();
        // SAFETY: the lease is ours and the byte is inside the ring.
        unsafe { lease.base().as_ptr().write(1) };
    }
}
