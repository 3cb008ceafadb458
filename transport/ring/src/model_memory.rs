//! A ring of single words for the tests: in std, inside loom, and with a writer
//! that crashes between any two stores.
//!
//! Payload goes through the same words as headers, so stale payload can be
//! taken for a header here as in real memory; and loom watches each payload
//! access for one that races with it.

use ibex_base::sync::{Arc, AtomicU64, Ordering};

use super::ring_memory::RingMemory;

/// The ring; clones are the same memory.
#[derive(Clone)]
pub(crate) struct Words {
    shared: Arc<ModelRing>,
}

struct ModelRing {
    words: Vec<AtomicU64>,
    /// Stores until the writer crashes. Not loom's: it is the test's, not the
    /// ring's.
    stores_left: std::sync::atomic::AtomicUsize,
    #[cfg(loom)]
    payload: Vec<loom::cell::UnsafeCell<()>>,
}

impl Words {
    pub(crate) fn new(capacity: usize) -> Self {
        Self::crashing_after(capacity, usize::MAX)
    }

    /// Creates a memory that performs only the first `stores` stores.
    pub(crate) fn crashing_after(capacity: usize, stores: usize) -> Self {
        let count = capacity / 8;
        Self {
            shared: Arc::new(ModelRing {
                words: (0..count).map(|_| AtomicU64::new(0)).collect(),
                stores_left: stores.into(),
                #[cfg(loom)]
                payload: (0..count)
                    .map(|_| loom::cell::UnsafeCell::new(()))
                    .collect(),
            }),
        }
    }

    /// Writes payload from `offset` on, as an encoder does into a slot.
    pub(crate) fn write(&self, offset: usize, payload: &[u64]) {
        for (index, word) in payload.iter().enumerate() {
            let offset = offset + 8 * index;
            #[cfg(loom)]
            self.shared.payload[self.index(offset)].with_mut(|_| ());
            self.store(offset, *word, Ordering::Relaxed);
        }
    }

    /// Reads payload from `offset` on, as a guard does.
    pub(crate) fn read(&self, offset: usize, words: usize) -> Vec<u64> {
        (0..words)
            .map(|index| {
                let offset = offset + 8 * index;
                #[cfg(loom)]
                self.shared.payload[self.index(offset)].with(|_| ());
                self.load(offset, Ordering::Relaxed)
            })
            .collect()
    }

    fn index(&self, offset: usize) -> usize {
        offset / 8 % self.shared.words.len()
    }
}

impl RingMemory for Words {
    fn capacity(&self) -> usize {
        self.shared.words.len() * 8
    }

    fn load(&self, offset: usize, order: Ordering) -> u64 {
        self.shared.words[self.index(offset)].load(order)
    }

    fn store(&self, offset: usize, value: u64, order: Ordering) {
        use std::sync::atomic::Ordering::Relaxed;
        let left = self.shared.stores_left.load(Relaxed);
        if left > 0 {
            self.shared.stores_left.store(left - 1, Relaxed);
            self.shared.words[self.index(offset)].store(value, order);
        }
    }
}

// SAFETY: without loom, all fields are atomics anyway. In loom, `payload` holds no bytes, and its
// purpose is to find conflicting accesses.
#[cfg(loom)]
unsafe impl Sync for ModelRing {}
// SAFETY: as for `Sync`.
#[cfg(loom)]
unsafe impl Send for ModelRing {}
