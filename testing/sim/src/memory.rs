//! Ring memory of the simulation: words in a vector, shared by the ring's two ends.
//!
//! Both ends run on one thread, so the memory ordering does not matter. Old payload stays in place,
//! as in a real ring, so the algorithms could mistake it for a header here as well.
#![forbid(unsafe_code)]

use std::{cell::Cell, fmt, rc::Rc};

use ibex_base::sync::Ordering;
use ibex_ring::RingMemory;

/// A ring's words; clones are the same memory.
#[derive(Clone)]
pub(super) struct SimMemory {
    words: Rc<[Cell<u64>]>,
}

impl SimMemory {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            words: vec![Cell::new(0); capacity / 8].into(),
        }
    }

    /// Writes payload at ring position `position`.
    pub(super) fn write(&self, position: u64, payload: &[u8]) {
        let first = position as usize / 8;
        for (index, bytes) in payload.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            self.word(first + index).set(u64::from_le_bytes(word));
        }
    }

    /// Appends `bytes` bytes, a multiple of 8, from ring position `position` on.
    pub(super) fn read(&self, position: u64, bytes: usize, out: &mut Vec<u8>) {
        let first = position as usize / 8;
        for index in first..first + bytes / 8 {
            out.extend_from_slice(&self.word(index).get().to_le_bytes());
        }
    }

    fn word(&self, index: usize) -> &Cell<u64> {
        &self.words[index % self.words.len()]
    }
}

/// Omits the words, since a broken rule prints both ends of a ring.
impl fmt::Debug for SimMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} words", self.words.len())
    }
}

impl RingMemory for SimMemory {
    fn capacity(&self) -> usize {
        self.words.len() * 8
    }

    fn load(&self, offset: usize, _: Ordering) -> u64 {
        self.word(offset / 8).get()
    }

    fn store(&self, offset: usize, value: u64, _: Ordering) {
        self.word(offset / 8).set(value);
    }
}
