//! A drawn part of the scenarios, for a device on which all of them take too long.

use std::{env, fmt};

/// One of several parts that the seed makes of all scenarios. Each scenario is in one of them.
pub(crate) struct Part {
    number: u64,
    of: u64,
    seed: u64,
}

impl Part {
    /// The part that `IBEX_TEST_PART=NUMBER/OF/SEED` names, the first by 0.
    pub(crate) fn of_this_run() -> Option<Self> {
        let value = env::var("IBEX_TEST_PART").ok()?;
        let numbers: Result<Vec<u64>, _> = value.split('/').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[number, of, seed]) if number < of => Some(Self { number, of, seed }),
            _ => panic!("IBEX_TEST_PART is NUMBER/OF/SEED, as in 0/2/17, and not \"{value}\""),
        }
    }

    /// Returns whether a scenario is in it.
    pub(crate) fn has(&self, scenario: &str) -> bool {
        // FNV-1a, whose low bits differ little for names that do: folded.
        let offset_basis = 0xcbf2_9ce4_8422_2325;
        let bytes = self.seed.to_le_bytes().into_iter().chain(scenario.bytes());
        let hash = bytes.fold(offset_basis, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        (hash ^ hash >> 32) % self.of == self.number
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, of, seed } = self;
        write!(f, "part {number} of {of}, drawn by {seed}")
    }
}
