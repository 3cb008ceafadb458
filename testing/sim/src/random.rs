//! Numbers from a seed: SplitMix64, which takes any seed and is two lines long.
//!
//! Sebastiano Vigna's reference: <https://prng.di.unimi.it/splitmix64.c>.
#![forbid(unsafe_code)]

/// A generator; the same seed gives the same numbers on every machine.
#[derive(Clone, Debug)]
pub(super) struct Random {
    state: u64,
}

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Returns an independent generator for a part of the simulation, so that one part's draws do
    /// not shift another's.
    pub(super) fn fork(&mut self) -> Self {
        Self::new(self.next())
    }

    pub(super) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.state)
    }

    /// Returns a number from 0 to `bound - 1`; 0 if `bound` is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound.max(1)
    }

    /// Returns true in `per_mille` of 1000 cases.
    pub(super) fn chance(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }

    pub(super) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }
}

/// Spreads a number over all 64 bits.
pub(super) fn mix(number: u64) -> u64 {
    let number = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ (number >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ (number >> 31)
}
