//! Planted bugs: what a test is worth is what it finds.
//!
//! Built with `--cfg ibex_mutants` the crate has every bug that [`is_mutant`] or
//! [`unless_mutant`] names, and `IBEX_MUTANT=NAME` in the environment plants that one.
//! Built without it each is the constant `false`, so nothing is left of them. The command
//! runner has the list, with the test that has to find each: a loom model, a property or
//! the simulation.
#![forbid(unsafe_code)]

use crate::sync::Ordering;

/// Whether the bug of that name is planted.
#[cfg(ibex_mutants)]
pub(crate) fn is_mutant(name: &str) -> bool {
    // Not loom's: it is the same in every order of events.
    static PLANTED: std::sync::LazyLock<Option<String>> =
        std::sync::LazyLock::new(|| std::env::var("IBEX_MUTANT").ok());
    PLANTED.as_deref() == Some(name)
}

/// Whether the bug of that name is planted: here none is.
#[cfg(not(ibex_mutants))]
#[inline(always)]
pub(crate) const fn is_mutant(_name: &str) -> bool {
    false
}

/// The given ordering, or `Relaxed` in the mutant of that name.
#[inline(always)]
pub(crate) fn unless_mutant(name: &str, strong: Ordering) -> Ordering {
    if is_mutant(name) {
        Ordering::Relaxed
    } else {
        strong
    }
}
