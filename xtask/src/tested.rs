//! The build that all stages share that run programs.
//!
//! Cargo compiles a crate once for each set of features that its selection asks for. So every such
//! stage selects the same packages with the same features, and differs only in the targets that it
//! names. The features are those that tests need beside the default ones; `cargo xtask
//! release-check` checks the sets that users select. Clippy compiles it, so no crate is checked apart.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::failure::Failure;
use crate::step::{Step, all_side_by_side};
use crate::watchdog::Watchdog;
use crate::workspace;

/// The packages and features of the shared build. A feature of `ibex-tests` gives `ibex-harness` its
/// own, but not the crate behind it unless it is named as well.
const SELECTION: &str = "--profile tested --workspace --exclude xtask --exclude ibex-refused \
     --features ibex-tests/fake-device,ibex-examples/verbs,ibex-harness/verbs,ibex-replication/verbs,\
     ibex-hyper/fake-device,ibex-iceoryx2/fake-device,ibex-metrics/fake-device,ibex-openraft/fake-device,\
     ibex-tonic/fake-device";

/// Returns `cargo test` with these targets, and arguments for their programs behind `--`.
pub(crate) fn test(targets: &str) -> Step {
    Step::of_line(&format!("cargo test {SELECTION} {targets}")).linted()
}

/// The programs that this run has built. None is asked of cargo again, which would wait for the
/// compiler of a stage beside this one. Tests are run without cargo for the same reason.
static BUILT: Mutex<Built> = Mutex::new(Built {
    has_programs: false,
    targets: Vec::new(),
    tests: Tests(Vec::new()),
});

struct Built {
    /// True if the programs of [`build_programs`] are there.
    has_programs: bool,
    /// The targets whose tests are there, as cargo's options.
    targets: Vec<String>,
    tests: Tests,
}

fn built() -> MutexGuard<'static, Built> {
    BUILT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Tests that are built.
#[derive(Clone)]
pub(crate) struct Tests(Vec<Test>);

/// A test's program.
#[derive(Clone)]
struct Test {
    /// The kind of its target, and the target's name.
    kind: String,
    name: String,
    program: String,
    /// The folder of its package, where cargo would run it.
    directory: PathBuf,
}

/// Builds the tests of all these lists in one call; arguments for their programs stand behind ` --
/// `.
pub(crate) fn build_tests(lists: &[&str], watchdog: &Watchdog) -> Result<Tests, Failure> {
    let named = lists.iter().flat_map(|list| targets(list));
    let mut built = built();
    let missing: Vec<_> = named
        .filter(|target| !built.targets.contains(target))
        .collect();
    if !missing.is_empty() {
        let step = test(&format!(
            "--no-run --message-format json-render-diagnostics {}",
            missing.join(" ")
        ));
        let output = step.capture(watchdog)?;
        if !output.status.success() {
            return Err(Failure::new(format!("`{step}` failed: {}", output.status)));
        }
        let tests = output.stdout.lines().filter_map(Test::of_message);
        built.tests.0.extend(tests);
        built.targets.extend(missing);
    }
    Ok(built.tests.clone())
}

/// Returns the targets that a list names, each with its option.
fn targets(list: &str) -> Vec<String> {
    let (targets, _) = list.split_once(" -- ").unwrap_or((list, ""));
    let mut words = targets.split_whitespace();
    let mut found = Vec::new();
    while let Some(option) = words.next() {
        let name = match option {
            "--lib" | "--bins" => None,
            _ => words.next(),
        };
        found.push(match name {
            Some(name) => format!("{option} {name}"),
            None => option.to_owned(),
        });
    }
    found
}

/// Builds tests, then runs concurrent lists of them, each to its end.
pub(crate) fn at_once(lists: &[&str], watchdog: &Watchdog) -> Result<(), Failure> {
    let tests = build_tests(lists, watchdog)?;
    let lists: Vec<_> = lists.iter().map(|list| tests.of_list(list)).collect();
    let lists: Vec<_> = lists.iter().map(|list| &list[..]).collect();
    all_side_by_side(&lists, watchdog)
}

impl Tests {
    /// Returns the steps that run the tests of this list.
    pub(crate) fn of_list(&self, list: &str) -> Vec<Step> {
        let arguments = list
            .split_once(" -- ")
            .map_or("", |(_, arguments)| arguments);
        let mut steps = Vec::new();
        for target in targets(list) {
            let (kind, name) = match target.split_once(' ') {
                None if target == "--lib" => ("lib", None),
                None => ("bin", None),
                Some(("--example", name)) => ("example", Some(name)),
                Some((_, name)) => ("test", Some(name)),
            };
            let is_meant =
                |test: &&Test| test.kind == kind && name.is_none_or(|name| test.name == name);
            steps.extend(
                self.0
                    .iter()
                    .filter(is_meant)
                    .map(|test| test.step(arguments)),
            );
        }
        steps
    }

    /// Returns the path of the program of this test.
    pub(crate) fn program(&self, name: &str) -> String {
        let found = self
            .0
            .iter()
            .find(|test| test.kind == "test" && test.name == name);
        found.expect("the test is built").program.clone()
    }
}

impl Test {
    /// Returns the test that one of cargo's messages is about.
    fn of_message(message: &str) -> Option<Self> {
        let text = |before: &str| {
            let (_, behind) = message.split_once(before)?;
            behind.split_once('"').map(|(text, _)| text.to_owned())
        };
        let program = text("\"executable\":\"")?;
        let kind = text("\"target\":{\"kind\":[\"")?;
        // Binaries are built beside the tests of their package. The target says whether it has tests,
        // and the profile whether these are them.
        let (_, profile) = message.split_once("\"profile\":{")?;
        let (profile, _) = profile.split_once('}')?;
        profile.contains("\"test\":true").then_some(())?;
        Some(Self {
            kind: match kind.as_str() {
                // A library of macros has tests as any other.
                "proc-macro" => "lib".to_owned(),
                _ => kind,
            },
            name: text("\"name\":\"")?,
            program,
            directory: Path::new(&text("\"manifest_path\":\"")?)
                .parent()?
                .to_owned(),
        })
    }

    fn step(&self, arguments: &str) -> Step {
        Step::new(&self.program)
            .args(arguments.split_whitespace())
            .in_directory(&self.directory)
            // A test whose helper thread has panicked may hang, and what is kept back is lost then.
            .env("RUST_TEST_NOCAPTURE", "1")
    }
}

/// Builds all examples, the programs beside them and the benchmarks, in one call, so that both cores are
/// busy to the end.
pub(crate) fn build_programs(watchdog: &Watchdog) -> Result<(), Failure> {
    let mut built = built();
    if !built.has_programs {
        let programs = "--examples --bin ibex --bin quickstart --bin replication --bin simulate --bin soak \
                        --bench asynchronous --bench load --bench many --bench pingpong --bench sealed";
        Step::of_line(&format!("cargo build {SELECTION} {programs}"))
            .linted()
            .run(watchdog)?;
        built.has_programs = true;
    }
    Ok(())
}

/// Returns the path of an example, once [`build_programs`] has built it.
pub(crate) fn example(name: &str) -> String {
    binary(&format!("examples/{name}"))
}

/// Returns the path of the program `soak`, once [`build_programs`] has built it.
pub(crate) fn soak() -> String {
    binary("soak")
}

/// Returns the path of a binary, once it is built.
pub(crate) fn binary(name: &str) -> String {
    let path = workspace::target().join("tested").join(name);
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_found_in_the_messages_and_by_their_lists() {
        let message = |kind, name, is_test| {
            format!(
                "{{\"manifest_path\":\"/p/Cargo.toml\",\"target\":{{\"kind\":[\"{kind}\"],\"name\":\
                 \"{name}\",\"test\":true}},\"profile\":{{\"test\":{is_test}}},\"executable\":\"/t/{kind}-{name}\"}}"
            )
        };
        let messages = [
            message("lib", "a", true),
            message("proc-macro", "b", true),
            message("bin", "c", false),
            message("test", "d", true),
            message("example", "e", true),
        ];
        let tests = Tests(
            messages
                .iter()
                .filter_map(|one| Test::of_message(one))
                .collect(),
        );
        let steps = |list| {
            let steps = tests.of_list(list);
            steps.iter().map(ToString::to_string).collect::<Vec<_>>()
        };
        let run = |what: &str| format!("RUST_TEST_NOCAPTURE=1 /t/{what}");
        assert_eq!(
            steps("--lib --bins --example e"),
            [run("lib-a"), run("proc-macro-b"), run("example-e")]
        );
        assert_eq!(steps("--test d -- /shm/ x"), [run("test-d /shm/ x")]);
        assert_eq!(tests.program("d"), "/t/test-d");
    }
}
