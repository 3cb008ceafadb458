//! Numbers that follow from a seed.
#![forbid(unsafe_code)]

use std::{
    hash::{BuildHasher, RandomState},
    ops::Range,
};

/// A generator of numbers that look random: SplitMix64
/// (<https://prng.di.unimi.it/splitmix64.c>), which takes any seed. A seed gives the same numbers
/// on every machine.
#[derive(Clone, Debug)]
pub struct Draw(u64);

impl Draw {
    /// Creates the generator of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a random seed.
    #[must_use]
    pub fn seed() -> u64 {
        RandomState::new().hash_one(0) >> 32
    }

    /// Returns an independent generator, so that the draws of one part of a run do not shift those
    /// of another.
    #[must_use]
    pub fn fork(&mut self) -> Self {
        Self::new(self.word())
    }

    /// Returns any word.
    pub fn word(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.word() % bound.max(1)
    }

    /// Returns a place in a slice of `length` elements; 0 if it has none.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// Returns a number from a non-empty range.
    pub fn of(&mut self, range: Range<u64>) -> u64 {
        range.start + self.below(range.end - range.start)
    }

    /// Returns an element of a non-empty slice.
    pub fn one_of<'a, T>(&mut self, several: &'a [T]) -> &'a T {
        &several[self.index(several.len())]
    }

    /// Returns a copy of an element of a non-empty slice.
    pub fn pick<T: Copy>(&mut self, several: &[T]) -> T {
        *self.one_of(several)
    }

    /// Returns true once in `n` calls on average.
    pub fn once_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns true in `per_mille` of 1000 calls on average.
    pub fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    /// Shuffles a slice.
    pub fn shuffle<T>(&mut self, several: &mut [T]) {
        for last in (1..several.len()).rev() {
            several.swap(last, self.index(last + 1));
        }
    }

    /// Fills a slice with bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for piece in bytes.chunks_mut(8) {
            piece.copy_from_slice(&self.word().to_le_bytes()[..piece.len()]);
        }
    }
}

/// Spreads a number over all 64 bits: the finalizer of SplitMix64.
#[must_use]
pub fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference() {
        // Of Sebastiano Vigna's splitmix64.c, from the seed 1234567.
        let mut draw = Draw::new(1_234_567);
        let expected = [
            6_457_827_717_110_365_317,
            3_203_168_211_198_807_973,
            9_817_491_932_198_370_423,
        ];
        assert_eq!(expected.map(|_| draw.word()), expected);
    }

    #[test]
    fn a_shuffle_keeps_all_and_bytes_are_those_of_words() {
        let mut several: Vec<u32> = (0..100).collect();
        Draw::new(1).shuffle(&mut several);
        assert_ne!(several, (0..100).collect::<Vec<_>>());
        several.sort_unstable();
        assert_eq!(several, (0..100).collect::<Vec<_>>());
        let mut bytes = [0; 11];
        Draw::new(2).fill(&mut bytes);
        let mut words = Draw::new(2);
        let words = [words.word().to_le_bytes(), words.word().to_le_bytes()].concat();
        assert_eq!(bytes[..], words[..11]);
    }
}
