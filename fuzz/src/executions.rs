//! A short search without a fuzzer: seeds that are changed at random, for the targets that have TLS
//! in front.
//!
//! The search tries as many inputs as [`EXECUTIONS`] says, a few by default. The command runner
//! lets it find planted bugs, within a million.

use std::env;

use super::Target;

/// The most changes of one input.
const MOST_CHANGES: u64 = 4;
/// The variable with the number of inputs to try.
const EXECUTIONS: &str = "IBEX_FUZZ_EXECUTIONS";

#[test]
fn sealed_acceptor_takes_anything() {
    takes_anything("sealed_acceptor");
}

#[test]
fn sealed_records_take_anything() {
    takes_anything("sealed_records");
}

fn takes_anything(name: &str) {
    let executions = env::var(EXECUTIONS).map_or(2_000, |count| count.parse().expect("a number"));
    let target = Target::by_name(name).expect("a target");
    let seeds = (target.seeds)();
    let mut draw = Draw(1);
    for execution in 0..executions {
        let mut input = seeds[draw.below(seeds.len())].bytes.clone();
        for _ in 0..draw.next() % (MOST_CHANGES + 1) {
            change(&mut input, &mut draw);
        }
        let outcome = std::panic::catch_unwind(|| (target.accepts)(&input));
        assert!(
            outcome.is_ok(),
            "execution {execution} of {name}: {input:?}"
        );
    }
}

/// Changes, adds or removes one byte or several.
fn change(input: &mut Vec<u8>, draw: &mut Draw) {
    let at = draw.below(input.len());
    match draw.next() % 6 {
        0 => input.truncate(at),
        1 => input.insert(at.min(input.len()), draw.next() as u8),
        2 if !input.is_empty() => drop(input.remove(at)),
        3 => {
            let piece = input[at..].to_vec();
            let length = draw.below(piece.len()).min(64);
            input.splice(at..at, piece[..length].iter().copied());
        }
        4 if !input.is_empty() => input[at] ^= 1 << draw.below(8),
        _ if !input.is_empty() => input[at] = draw.next() as u8,
        _ => {}
    }
}

/// SplitMix64, by Sebastiano Vigna: <https://prng.di.unimi.it/splitmix64.c>.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// Returns a number below `bound`; 0 if `bound` is 0.
    fn below(&mut self, bound: usize) -> usize {
        self.next() as usize % bound.max(1)
    }
}
