//! Numbers that follow from a seed.
#![forbid(unsafe_code)]

use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
};

/// SplitMix64 (<https://prng.di.unimi.it/splitmix64.c>).
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Creates the generator of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random seed.
    pub fn seed() -> u64 {
        RandomState::new().hash_one(0) >> 32
    }

    /// Returns any word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let word = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// Returns a number from a non-empty range.
    pub fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.word() % (range.end - range.start)
    }

    /// Returns an element of a non-empty slice.
    pub fn one_of<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        &several[self.of(0..several.len() as u64) as usize]
    }

    /// Returns true once in `n` calls on average.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.of(0..n) == 0
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, several: &mut [T]) {
        for last in (1..several.len()).rev() {
            several.swap(last, self.of(0..last as u64 + 1) as usize);
        }
    }
}
