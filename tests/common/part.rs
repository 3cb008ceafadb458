//! A drawn part of the scenarios, for a device on which all of them take too long.

use std::{env, fmt};

/// A part of all scenarios, drawn from a seed. Each scenario is in exactly one part, or in every
/// fourth one.
pub(crate) struct Part {
    number: u64,
    of: u64,
    seed: u64,
}

impl Part {
    /// Returns the part that `IBEX_TEST_PART=NUMBER/OF/SEED` names; numbers begin at 0.
    pub(crate) fn of_this_run() -> Option<Self> {
        let value = env::var("IBEX_TEST_PART").ok()?;
        let numbers: Result<Vec<u64>, _> = value.split('/').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[number, of, seed]) if number < of => Some(Self { number, of, seed }),
            _ => panic!("IBEX_TEST_PART is NUMBER/OF/SEED, as in 0/2/17, and not \"{value}\""),
        }
    }

    /// Returns whether a scenario is in this part. One that no device made of memory can play is in
    /// every fourth part: any four parts that follow each other have all of these.
    pub(crate) fn has(&self, scenario: &str, needs_processes: bool) -> bool {
        // The hash is FNV-1a, folded because its low bits differ little for similar names.
        let offset_basis = 0xcbf2_9ce4_8422_2325;
        let bytes = self.seed.to_le_bytes().into_iter().chain(scenario.bytes());
        let hash = bytes.fold(offset_basis, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let of = if needs_processes { 4 } else { self.of };
        (hash ^ hash >> 32) % of == self.number % of
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, of, seed } = self;
        write!(f, "part {number} of {of}, drawn by {seed}")
    }
}
