//! The fuzzed program: one for all targets, so that it is built once.
//!
//! The first byte of an input selects the target. With IBEX_FUZZ_TARGET=NAME that byte is ignored,
//! and every input goes to the target of that name.
#![no_main]

use std::env;
use std::sync::LazyLock;

use ibex_fuzz::Target;
use libfuzzer_sys::{Corpus, fuzz_target};

static FOCUS: LazyLock<Option<&Target>> = LazyLock::new(|| {
    let name = env::var("IBEX_FUZZ_TARGET").ok()?;
    let target = Target::by_name(&name);
    Some(target.unwrap_or_else(|| panic!("IBEX_FUZZ_TARGET={name}: there is no such target")))
});

fuzz_target!(|input: &[u8]| -> Corpus {
    let Some((&selector, bytes)) = input.split_first() else {
        return Corpus::Reject;
    };
    let Some(target) = FOCUS.or_else(|| Target::by_selector(selector)) else {
        return Corpus::Reject;
    };
    (target.accepts)(bytes);
    Corpus::Keep
});
