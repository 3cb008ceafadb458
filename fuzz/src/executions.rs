//! A short search without a fuzzer: seeds that are changed at random.
//!
//! The search tries as many inputs as [`EXECUTIONS`] says, a few by default. The command runner
//! lets it find planted bugs, within a million.

use std::env;

use ibex_harness::draw::Draw;

use super::{TARGETS, Target};

/// The most changes of one input.
const MOST_CHANGES: u64 = 4;
/// The variable with the number of inputs to try.
const EXECUTIONS: &str = "IBEX_FUZZ_EXECUTIONS";

#[test]
fn sealed_acceptor_takes_anything() {
    takes_anything("sealed_acceptor", 1);
}

#[test]
fn sealed_records_take_anything() {
    takes_anything("sealed_records", 1);
}

#[test]
fn all_other_targets_take_anything() {
    let others = TARGETS.iter().map(|target| target.name);
    for name in others.filter(|name| !name.starts_with("sealed_")) {
        // Without TLS in front, an execution takes microseconds.
        takes_anything(name, 20);
    }
}

fn takes_anything(name: &str, times: u64) {
    let executions =
        env::var(EXECUTIONS).map_or(2_000_u64, |count| count.parse().expect("a number"));
    let target = Target::by_name(name).expect("a target");
    let seeds = (target.seeds)();
    let mut draw = Draw::new(1);
    for execution in 0..times * executions {
        let mut input = seeds[below(seeds.len(), &mut draw)].bytes.clone();
        for _ in 0..draw.word() % (MOST_CHANGES + 1) {
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
    let at = below(input.len(), draw);
    match draw.word() % 6 {
        0 => input.truncate(at),
        1 => input.insert(at.min(input.len()), draw.word() as u8),
        2 if !input.is_empty() => drop(input.remove(at)),
        3 => {
            let piece = input[at..].to_vec();
            let length = below(piece.len(), draw).min(64);
            input.splice(at..at, piece[..length].iter().copied());
        }
        4 if !input.is_empty() => input[at] ^= 1 << below(8, draw),
        _ if !input.is_empty() => input[at] = draw.word() as u8,
        _ => {}
    }
}

/// Returns a number below `bound`; 0 if `bound` is 0.
fn below(bound: usize, draw: &mut Draw) -> usize {
    draw.of(0..bound.max(1) as u64) as usize
}
