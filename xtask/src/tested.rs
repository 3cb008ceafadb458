//! The build that all stages share that run programs.
//!
//! Cargo compiles a crate once for each set of features that its selection asks for. So every such
//! stage selects the same packages with the same features, and differs only in the targets that it
//! names. The features are those that tests need beside the default ones; the stage `features`
//! checks the sets that users select.

use std::path::{Path, PathBuf};

use crate::failure::Failure;
use crate::step::{Step, all_side_by_side};
use crate::watchdog::Watchdog;
use crate::workspace;

/// The packages and features of the shared build. A feature of `ibex-tests` gives `ibex-harness` its
/// own, but not the crate behind it unless it is named as well.
const SELECTION: &str = "--profile tested --workspace --exclude xtask --exclude ibex-benches --exclude ibex-refused \
     --features ibex-tests/fake-device,ibex-examples/verbs,ibex-harness/verbs,\
     ibex-replication/verbs";

/// Returns `cargo test` with these targets, and arguments for their programs behind `--`.
pub(crate) fn test(targets: &str) -> Step {
    Step::of_line(&format!("cargo test {SELECTION} {targets}"))
}

/// Builds the tests, examples and binaries that `targets` names in one call, so that both cores are
/// busy to the end.
pub(crate) fn build(targets: &str, watchdog: &Watchdog) -> Result<(), Failure> {
    Step::of_line(&format!("cargo build {SELECTION} {targets}")).run(watchdog)
}

/// Tests that are built. Their programs are run without cargo, which would wait for the compiler of
/// a stage beside this one.
pub(crate) struct Tests(Vec<Test>);

/// A test's program.
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
    let targets = lists.iter().filter_map(|list| list.split(" -- ").next());
    let targets: Vec<_> = targets.collect();
    let step = test(&format!(
        "--no-run --message-format json-render-diagnostics {}",
        targets.join(" ")
    ));
    let built = step.capture(watchdog)?;
    if !built.status.success() {
        return Err(Failure::new(format!("`{step}` failed: {}", built.status)));
    }
    Ok(Tests(
        built.stdout.lines().filter_map(Test::of_message).collect(),
    ))
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
        let (targets, arguments) = list.split_once(" -- ").unwrap_or((list, ""));
        let mut words = targets.split_whitespace();
        let mut steps = Vec::new();
        while let Some(word) = words.next() {
            let (kind, name) = match word {
                "--lib" => ("lib", None),
                "--bins" => ("bin", None),
                "--example" => ("example", words.next()),
                _ => ("test", words.next()),
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

/// Builds all examples and the programs beside them.
pub(crate) fn build_programs(watchdog: &Watchdog) -> Result<(), Failure> {
    build(
        "--examples --bin ibex --bin quickstart --bin replication --bin soak",
        watchdog,
    )
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
