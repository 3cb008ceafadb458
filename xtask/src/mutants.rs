//! Mutants: planted bugs, and the tests that must find them.
//!
//! A passing test says little until it has been seen to fail. So for each ordering, fence and step
//! that a loom model covers, and for the counting of the protocol, a patch adds a bug to a copy of
//! the sources (`testing/mutants`), and `IBEX_MUTANT=NAME` plants it. Each test here must fail with
//! each bug that it names, within a minute, and pass without.

mod finders;

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::{Duration, Instant};

use self::finders::{FINDERS, Finder, Tool};
use crate::failure::Failure;
use crate::mutated_copy;
use crate::step::Step;
use crate::watchdog::Watchdog;
use crate::workspace;

/// The package of the fuzz targets, which is a workspace of its own.
const FUZZ: &str = "ibex-fuzz";

/// Runs the stage `loom` of `cargo xtask test`: all models without a bug, and then with each bug that
/// they must find. Of the orders in which a thread is interrupted more than a few times, which
/// `cargo xtask torture` has, none is needed to find the planted bugs.
pub(crate) fn loom(watchdog: &Watchdog) -> Result<(), Failure> {
    let programs = run_models(Some("4"), watchdog)?;
    find(&searches(&programs, |tool| tool == Tool::Loom))
}

/// Runs the stage `loom` of `cargo xtask torture`: all models, in every order of events.
pub(crate) fn loom_whole(watchdog: &Watchdog) -> Result<(), Failure> {
    run_models(None, watchdog).map(drop)
}

/// Runs all models without a bug, with at most so many preemptions of a thread. Returns their
/// programs.
fn run_models(preemptions: Option<&str>, watchdog: &Watchdog) -> Result<Programs, Failure> {
    let copy = mutated_copy::make(watchdog)?;
    let programs = build_with_loom(copy, watchdog)?;
    for program in programs.values() {
        let mut models = Step::new(program).arg("loom_");
        if let Some(most) = preemptions {
            models = models.env("LOOM_MAX_PREEMPTIONS", most);
        }
        models.run(watchdog)?;
    }
    Ok(programs)
}

/// Runs the stage `mutants` of `cargo xtask torture`: every other finder, with each bug that it must
/// find, in an optimized build of the copy.
pub(crate) fn mutants(watchdog: &Watchdog) -> Result<(), Failure> {
    let copy = mutated_copy::make(watchdog)?;
    let programs = build_with_std(copy, watchdog)?;
    let sleepers = Step::of_line("cargo test --lib --profile bench -p ibex-verbs");
    Step::new(&sleepers.build_program(watchdog)?)
        .arg("tests::sleeping")
        .env("IBEX_TEST_SLEEPS", SLEEPS)
        .run(watchdog)?;
    find(&searches(&programs, |tool| tool != Tool::Loom))
}

/// Runs all searches, two at a time, since a model or a property runs in one thread. Fails if a
/// finder is blind.
fn find(searches: &[Search<'_>]) -> Result<(), Failure> {
    let (first, second) = searches.split_at(searches.len() / 2);
    let run = |searches: &[Search<'_>]| {
        let blind = searches.iter().map(Search::run);
        blind.collect::<Result<Vec<_>, _>>()
    };
    let ends = thread::scope(|scope| {
        let second = scope.spawn(|| run(second));
        [run(first), second.join().expect("a list of searches ends")]
    });
    let mut blind = Vec::new();
    for end in ends {
        blind.extend(end?.into_iter().flatten());
    }
    if blind.is_empty() {
        Ok(())
    } else {
        Err(Failure::new(blind.join("; ")))
    }
}

/// A run of a finder's test.
struct Search<'a> {
    finder: &'static Finder,
    /// The planted bug; without one the test must pass.
    mutant: Option<&'static str>,
    program: &'a str,
}

/// Returns a search for every finder with such a tool, and each of its mutants. Finders that are no
/// models also run without one; models have done so together.
fn searches(programs: &Programs, is_chosen: impl Fn(Tool) -> bool) -> Vec<Search<'_>> {
    let of_finder = |finder: &'static Finder| {
        let program = &programs[finder.package];
        let without = (finder.tool != Tool::Loom).then_some(None);
        let with = finder.mutants.iter().map(|mutant| Some(*mutant));
        without.into_iter().chain(with).map(move |mutant| Search {
            finder,
            mutant,
            program,
        })
    };
    let chosen = FINDERS.iter().filter(|finder| is_chosen(finder.tool));
    chosen.flat_map(of_finder).collect()
}

impl Search<'_> {
    /// Runs the test. Returns the reason if the finder is blind.
    fn run(&self) -> Result<Option<String>, Failure> {
        let (test, tool) = (self.finder.test, self.finder.tool);
        let begun = Instant::now();
        let fails = self.finder.fails(self.mutant, self.program)?;
        let seconds = begun.elapsed().as_secs_f64();
        Ok(match (self.mutant, fails) {
            (Some(mutant), true) => {
                println!("  {tool} finds {mutant} in {seconds:.1} s: {test}");
                None
            }
            (Some(mutant), false) => Some(format!("{test} does not find {mutant}")),
            (None, true) => Some(format!("{test} fails without a mutant")),
            (None, false) => None,
        })
    }
}

/// The test program of each crate, by the crate's name.
type Programs = BTreeMap<&'static str, String>;

/// Builds the tests of the crates that have models with loom, in a target folder of their own.
fn build_with_loom(copy: &str, watchdog: &Watchdog) -> Result<Programs, Failure> {
    let target = workspace::target().join("loom");
    let build = |package: &str| {
        Step::of_line("cargo test --lib --release -p")
            .args([package, "--manifest-path", copy])
            .args(LOOM_PROFILE)
            .env("CARGO_TARGET_DIR", target.to_string_lossy())
            .add_flags("RUSTFLAGS", "--cfg loom")
    };
    build_all(&[Tool::Loom], build, watchdog)
}

/// Builds the tests of the other finders with the release profile, so that they share the
/// dependencies of release builds.
fn build_with_std(copy: &str, watchdog: &Watchdog) -> Result<Programs, Failure> {
    let build = |package: &str| {
        Step::of_line("cargo test --lib --profile bench -p")
            .args([package, "--manifest-path", copy])
            .env("CARGO_TARGET_DIR", workspace::target().to_string_lossy())
    };
    let tools = [Tool::Proptest, Tool::Simulation, Tool::Fake, Tool::Target];
    build_all(&tools, build, watchdog)
}

/// Builds the test program of each crate that uses one of these tools.
fn build_all(
    tools: &[Tool],
    build: impl Fn(&str) -> Step,
    watchdog: &Watchdog,
) -> Result<Programs, Failure> {
    let finders = FINDERS.iter();
    let of_tools = finders.filter(|finder| tools.contains(&finder.tool));
    let packages: BTreeSet<_> = of_tools.map(|finder| finder.package).collect();
    let built = packages.into_iter().map(|package| {
        let program = build(package).build_program(watchdog)?;
        Ok((package, program))
    });
    built.collect()
}

impl Finder {
    /// Runs the test, with a bug planted if one is named. Returns whether it failed by an assertion
    /// of its own or of loom's; a test that crashes or is killed does not count. Fails if there is
    /// not exactly one such test.
    fn fails(&self, mutant: Option<&str>, program: &str) -> Result<bool, Failure> {
        let mut run = Step::new(program).arg(self.test);
        if self.tool != Tool::Loom {
            // Models are found by the last part of their names.
            run = run.arg("--exact");
        }
        if self.tool == Tool::Proptest {
            // The first failure suffices, and must not be recorded: the next run has to find it
            // again.
            run = run
                .env("PROPTEST_CASES", CASES)
                .env("PROPTEST_RNG_SEED", "1")
                .env("PROPTEST_MAX_SHRINK_ITERS", "0")
                .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true");
        }
        if let Some(mutant) = mutant {
            run = run.env("IBEX_MUTANT", mutant);
            if self.tool == Tool::Target {
                run = run.env("IBEX_FUZZ_EXECUTIONS", EXECUTIONS);
            }
        }
        let ran = run.capture(&Watchdog::after(TIME_TO_FIND))?;
        if !ran.stdout.contains("running 1 test\n") {
            let test = self.test;
            return Err(Failure::new(format!(
                "{program} does not have exactly one test {test}"
            )));
        }
        Ok(ran.status.code() == Some(TESTS_FAILED))
    }
}

/// Of what models are built with, only that is optimized in which they spend their time.
const LOOM_PROFILE: [&str; 3] = [
    "--config=profile.release.package.'*'.opt-level=0",
    "--config=profile.release.package.loom.opt-level=3",
    "--config=profile.release.package.generator.opt-level=3",
];
/// The exit status of a test program whose tests failed.
const TESTS_FAILED: i32 = 101;
/// The longest search for a mutant.
const TIME_TO_FIND: Duration = Duration::from_secs(60);
/// Number of sleeps over the fake device while another thread completes into its queue.
const SLEEPS: &str = "1000000";
/// Cases of a property, unless it fails before.
const CASES: &str = "2000";
/// Inputs within which a fuzz target must find a mutant.
const EXECUTIONS: &str = "1000000";

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use std::fs;
    use std::path::Path;

    /// Returns the words between each `before` and the next `end` in these texts.
    fn found(texts: &[String], before: &str, end: char) -> BTreeSet<String> {
        let pieces = texts.iter().flat_map(|text| text.split(before).skip(1));
        pieces
            .filter_map(|piece| Some(piece.split_once(end)?.0.to_string()))
            .collect()
    }

    fn read(path: &Path, sources: &mut Vec<String>) {
        if path.is_dir() {
            fs::read_dir(path)
                .unwrap()
                .for_each(|entry| read(&entry.unwrap().path(), sources));
        } else {
            sources.push(fs::read_to_string(path).unwrap());
        }
    }

    /// Returns the lines that the patches add.
    fn planted() -> Vec<String> {
        let patches = mutated_copy::patches().unwrap();
        let read = |patch| {
            let patch = fs::read_to_string(patch).unwrap();
            let added = patch.lines().filter(|line| line.starts_with('+'));
            added.collect::<Vec<_>>().join("\n")
        };
        patches.into_iter().map(read).collect()
    }

    #[test]
    fn every_mutant_of_the_patches_is_in_the_table() {
        let named = FINDERS
            .iter()
            .flat_map(|finder| finder.mutants)
            .map(|mutant| (*mutant).to_string());
        // `unless_mutant("name", ..)` ends in the same letters.
        assert_eq!(
            named.collect::<BTreeSet<_>>(),
            found(&planted(), "_mutant(\"", '"')
        );
    }

    /// A test that moves to another module would be noticed an hour later.
    #[test]
    fn every_test_in_the_table_is_in_its_module() {
        for finder in FINDERS.iter().filter(|one| one.tool != Tool::Target) {
            let (module, name) = finder.test.rsplit_once("::").unwrap_or(("", finder.test));
            let module = module.rsplit("::").next().unwrap_or_default();
            let mut named = Command::new("git");
            named.current_dir(workspace::root());
            named.args(["grep", "-l", &format!("fn {name}("), "--", "*.rs"]);
            let files = String::from_utf8(named.output().unwrap().stdout).unwrap();
            let is_there = files.lines().any(|file| {
                let text = fs::read_to_string(workspace::root().join(file)).unwrap();
                let mut parts = file.split(['/', '.']);
                parts.any(|part| part == module) || text.contains(&format!("mod {module} {{"))
            });
            assert!(
                is_there || module.is_empty() && !files.is_empty(),
                "{}: {files:?}",
                finder.test
            );
        }
    }

    #[test]
    fn every_model_in_the_sources_is_in_the_table() {
        let named = FINDERS
            .iter()
            .filter(|finder| finder.tool == Tool::Loom)
            .map(|finder| finder.test.to_string())
            .collect::<BTreeSet<_>>();
        let mut sources = Vec::new();
        read(&workspace::root().join("transport"), &mut sources);
        let found = found(&sources, "fn loom_", '(')
            .into_iter()
            .map(|name| format!("loom_{name}"));
        assert_eq!(named, found.collect());
    }
}
