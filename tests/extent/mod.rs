//! The part of its cells that a test program plays.
//!
//! `cargo xtask test` sets [`WHOLE`], and everything is played. Plain `cargo test`, which should
//! take minutes on any machine, plays each scenario or proof on one fabric under one driver; the
//! next one gets another pair. It prints that. With a filter or `--list`, all named cells are
//! played.

use std::env;

use libtest_mimic::Arguments;

/// The variable that asks for all cells.
const WHOLE: &str = "IBEX_TEST_WHOLE";

/// Draws the cells to play from `all`: one of each `kind`, or all of them.
pub(crate) fn drawn<T>(all: Vec<T>, arguments: &Arguments, kind: impl Fn(&T) -> String) -> Vec<T> {
    let has_chosen = arguments.filter.is_some() || arguments.list || !arguments.skip.is_empty();
    if has_chosen || env::var_os(WHOLE).is_some() {
        return all;
    }
    let count = all.len();
    let mut kinds: Vec<(String, Vec<T>)> = Vec::new();
    for one in all {
        let kind = kind(&one);
        match kinds.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, same)) => same.push(one),
            None => kinds.push((kind, vec![one])),
        }
    }
    let draw = |(number, (_, mut same)): (usize, (String, Vec<T>))| {
        let drawn = number % same.len();
        same.swap_remove(drawn)
    };
    let drawn: Vec<_> = kinds.into_iter().enumerate().map(draw).collect();
    if drawn.len() < count {
        eprintln!(
            "{} of {count} are played, one of each kind; `cargo xtask test` plays all of them, and \
             so does {WHOLE}=1",
            drawn.len()
        );
    }
    drawn
}
