//! iceoryx2's published conformance tests for carriers, unchanged, over each fabric, and further
//! promises. A trial is called `/fabric/suite/test`; `verbs` runs if there is a device.

mod carried;
mod suites;

use std::process::ExitCode;

use ibex_integrations_testing::{Over, fabrics};
use iceoryx2_bb_testing::{
    DEFAULT_TEST_THREADS, RunMode, TestCase, inventory,
    libtest_mimic::{self, Arguments, Trial},
};

fn main() -> ExitCode {
    let fabrics = fabrics();
    let published = fabrics.iter().flat_map(|over| published(*over));
    let carried = fabrics.iter().flat_map(|over| carried::trials(*over));
    let trials = published.chain(carried).collect();
    let mut arguments = Arguments::from_args();
    // The number of threads is that of iceoryx2's own harness.
    arguments.test_threads.get_or_insert(DEFAULT_TEST_THREADS);
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// Returns the published tests over a fabric.
fn published(over: Over) -> Vec<Trial> {
    let start = format!("/{over}/");
    let named = inventory::iter::<TestCase>().map(|case| {
        // The names of the program and the file come first.
        let modules: Vec<_> = case.module.split("::").skip(2).collect();
        (format!("/{}/{}", modules.join("/"), case.name), case)
    });
    let mut named: Vec<_> = named.filter(|(name, _)| name.starts_with(&start)).collect();
    named.sort_by(|(one, _), (other, _)| one.cmp(other));
    // No test gets lost on the way here, and none is ignored.
    assert_eq!(named.len(), suites::PUBLISHED, "tests over {over:?}");
    let trials = named.into_iter().map(|(name, case)| {
        assert!(
            matches!(case.run_mode, RunMode::Normal),
            "{name} would not run"
        );
        let test = case.test_fn;
        Trial::test(name, move || {
            test();
            Ok(())
        })
    });
    trials.collect()
}
