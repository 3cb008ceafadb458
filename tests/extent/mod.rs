//! The part of its cells that a test program plays.
//!
//! Plain `cargo test`, which should take minutes on any machine, plays each scenario or proof in one
//! cell; the next one gets another cell. `cargo xtask test` sets [`EXTENT`] to `each`: as few cells
//! as there can be, so that each scenario or proof has each of its fabrics, each of its drivers and
//! each way to authenticate. `cargo xtask torture` sets it to `whole`: everything is played. A
//! filter selects among all cells, and `--list` lists them all.
#![allow(dead_code, reason = "each program uses a part")]

use std::{collections::BTreeSet, env};

use libtest_mimic::Arguments;

/// The variable that says how many cells are played.
const EXTENT: &str = "IBEX_TEST_EXTENT";

/// Returns whether everything is played, in all of its length.
pub(crate) fn is_whole() -> bool {
    env::var(EXTENT).as_deref() == Ok("whole")
}

/// Draws the cells to play from `all`, which are of the same kind if they have the same `kind`.
///
/// The parts of a `name` behind slashes say in what cell it is: a fabric, a driver and so on.
pub(crate) fn drawn<T>(
    all: Vec<T>,
    arguments: &Arguments,
    kind: impl Fn(&T) -> String,
    name: impl Fn(&T) -> String,
) -> Vec<T> {
    let extent = env::var(EXTENT);
    let extent = extent.as_deref();
    if arguments.filter.is_some() || arguments.list || extent == Ok("whole") {
        return all;
    }
    let count = all.len();
    let mut kinds: Vec<(String, Vec<T>)> = Vec::new();
    for one in all {
        if arguments.skip.iter().any(|part| name(&one).contains(part)) {
            continue;
        }
        let kind = kind(&one);
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, same)) => same.push(one),
            None => kinds.push((kind, vec![one])),
        }
    }
    let mut played = Vec::new();
    for (number, (_, mut same)) in kinds.into_iter().enumerate() {
        let first = number % same.len();
        same.rotate_left(first);
        match extent {
            Ok("each") => played.extend(few_with_each(same, &name)),
            _ => played.extend(same.into_iter().next()),
        }
    }
    if played.len() < count {
        eprintln!(
            "{} of {count} cells are played; {EXTENT}=each plays some of each fabric, driver and way \
             to authenticate, {EXTENT}=whole plays everything",
            played.len()
        );
    }
    played
}

/// Returns a few of these cells in which each part of a name occurs that occurs in any of them.
fn few_with_each<T>(mut cells: Vec<T>, name: impl Fn(&T) -> String) -> Vec<T> {
    let parts = |cell: &T| -> BTreeSet<(usize, String)> {
        let name = name(cell);
        let parts = name.split('/').map(str::to_owned);
        parts.enumerate().skip(1).collect()
    };
    let mut missing: BTreeSet<_> = cells.iter().flat_map(parts).collect();
    let mut few = Vec::new();
    while !missing.is_empty() {
        let gain = |cell: &T| parts(cell).intersection(&missing).count();
        // The first of those that bring most.
        let best = (0..cells.len()).rev().max_by_key(|&at| gain(&cells[at]));
        let best = cells.remove(best.expect("a part that is missing is in some cell"));
        missing.retain(|part| !parts(&best).contains(part));
        few.push(best);
    }
    few
}
