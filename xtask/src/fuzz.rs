//! Fuzzing: hostile bytes for everything that reads a peer's bytes.
//!
//! The programs, the corpus and the list of targets are in `fuzz/`; a directory of `fuzz/corpus` is
//! a target.

use std::fs;
use std::process::ExitCode;
use std::time::Duration;

use crate::failure::Failure;
use crate::options::FuzzOptions;
use crate::step::{Step, side_by_side};
use crate::tool::{self, CARGO_FUZZ, CLIPPY, CXX, Tool};
use crate::watchdog::Watchdog;
use crate::workspace;

/// Runs the stage `fuzz` of `cargo xtask torture`.
pub(crate) fn long(watchdog: &Watchdog) -> Result<(), Failure> {
    Step::of_line("cargo clippy -p ibex-fuzz --all-targets --all-features -- -D warnings")
        .run(watchdog)?;
    cargo_fuzz("build").run(watchdog)?;
    each_for(TORTURE_TIME, watchdog)
}

fn each_for(time: Duration, watchdog: &Watchdog) -> Result<(), Failure> {
    let steps = targets()?
        .iter()
        .map(|target| fuzz(target, Some(time)))
        .collect::<Result<Vec<_>, _>>()?;
    // Each of the two lists keeps one core busy.
    let (first, second) = steps.split_at(steps.len() / 2);
    side_by_side(&[first, second], watchdog)
}

/// Runs `cargo xtask fuzz`.
pub(crate) fn run(options: &FuzzOptions) -> Result<ExitCode, Failure> {
    let targets = targets()?;
    if !targets.contains(&options.target) {
        let (target, all) = (&options.target, targets.join(", "));
        return Err(Failure::new(format!(
            "there is no target `{target}`; there are {all}"
        )));
    }
    tool::prepare(&TOOLS.iter().collect::<Vec<_>>(), true);
    tool::check(TOOLS)?;
    fuzz(&options.target, options.time)?.run(&Watchdog::patient())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `cargo xtask corpus`.
pub(crate) fn write_corpus() -> Result<ExitCode, Failure> {
    let line = "cargo run -p ibex-fuzz --bin make_corpus";
    Step::of_line(line).run(&Watchdog::patient())?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the step that fuzzes this target for `time`, or without an end.
fn fuzz(target: &str, time: Option<Duration>) -> Result<Step, Failure> {
    // The fuzzer writes its findings into the first directory; the second has the committed seeds.
    let found = format!("fuzz/corpus-work/{target}");
    fs::create_dir_all(workspace::root().join(&found))
        .map_err(|error| Failure::new(format!("{found}: {error}")))?;
    let mut step = cargo_fuzz("run")
        .args([found, format!("fuzz/corpus/{target}")])
        .args([
            "--",
            "-timeout=10",
            "-rss_limit_mb=1024",
            "-print_final_stats=1",
            "-verbosity=0",
        ])
        .env("IBEX_FUZZ_TARGET", target);
    if let Some(time) = time {
        step = step.arg(format!("-max_total_time={}", time.as_secs()));
    }
    Ok(step)
}

/// Returns a command of `cargo fuzz` for the one program of all targets.
fn cargo_fuzz(command: &str) -> Step {
    Step::of_line(&format!(
        "cargo fuzz {command} --features libfuzzer parsers"
    ))
    // The sanitizers are unstable features, which a stable compiler otherwise refuses.
    .env("RUSTC_BOOTSTRAP", "1")
}

/// Returns the names of the targets.
fn targets() -> Result<Vec<String>, Failure> {
    let corpus = workspace::root().join("fuzz/corpus");
    let unreadable = |error| Failure::new(format!("{}: {error}", corpus.display()));
    let entries = fs::read_dir(&corpus).map_err(unreadable)?;
    let mut names: Vec<String> = entries
        .map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()))
        .collect::<Result<_, _>>()
        .map_err(unreadable)?;
    names.sort_unstable();
    Ok(names)
}

/// Tools for fuzzing: libFuzzer is C++.
pub(crate) const TOOLS: &[Tool] = &[CLIPPY, CXX, CARGO_FUZZ];

/// Time for which `cargo xtask torture` fuzzes each target.
const TORTURE_TIME: Duration = Duration::from_secs(60);
