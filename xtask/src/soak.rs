//! `cargo xtask soak`: real processes under real faults, over one fabric.
//!
//! The program is the crate `soak`. Over verbs it runs in the guest with two devices and a
//! link between them, or on the device of this machine that `IBEX_TEST_DEVICE` names.

use std::env;
use std::process::ExitCode;

use crate::failure::Failure;
use crate::step::{Step, side_by_side};
use crate::tested;
use crate::tool;
use crate::verbs;
use crate::vm;
use crate::watchdog::Watchdog;

/// Runs `cargo xtask soak`, which passes its arguments to the program.
pub(crate) fn run(arguments: &[String]) -> Result<ExitCode, Failure> {
    soak(arguments, &Watchdog::patient())?;
    Ok(ExitCode::SUCCESS)
}

/// Runs for a short time over each fabric of this machine, with a new seed each time.
pub(crate) fn stage(watchdog: &Watchdog) -> Result<(), Failure> {
    for_seconds(STAGE_SECONDS, watchdog)
}

/// Runs the stage `soak` of `cargo xtask torture`.
pub(crate) fn long(watchdog: &Watchdog) -> Result<(), Failure> {
    for_seconds(TORTURE_SECONDS, watchdog)
}

fn for_seconds(seconds: &str, watchdog: &Watchdog) -> Result<(), Failure> {
    tested::build_programs(watchdog)?;
    let [shm, tcp] =
        ["shm", "tcp"].map(|fabric| [Step::new(&tested::soak()).args(words(fabric, seconds))]);
    side_by_side(&[&shm, &tcp], watchdog)
}

/// Returns the step that runs it over the guest's devices, which carry less: a part of the stage
/// `verbs`, which has built the program.
pub(crate) fn on_verbs(label: &str) -> Result<Step, Failure> {
    let words = words("verbs", GUEST_STAGE_SECONDS);
    Ok(in_the_guest(&["--label", label], &tested::soak())?.args(words))
}

fn soak(arguments: &[String], watchdog: &Watchdog) -> Result<(), Failure> {
    if !arguments.iter().any(|argument| argument == "verbs") {
        let program = "cargo run --release -p ibex-soak --";
        return Step::of_line(program)
            .args(arguments)
            .named_aside()
            .run(watchdog);
    }
    let program = build_for_verbs(watchdog)?;
    let step = match env::var_os("IBEX_TEST_DEVICE") {
        Some(_) => Step::new(&program),
        None => {
            tool::prepare(&vm::TOOLS.iter().collect::<Vec<_>>(), true);
            in_the_guest(&[], &program)?
        }
    };
    step.args(arguments).named_aside().run(watchdog)
}

fn build_for_verbs(watchdog: &Watchdog) -> Result<String, Failure> {
    let build = "cargo rustc --release -p ibex-soak --bin soak --features verbs";
    Step::of_line(build).aside().build(watchdog)
}

fn in_the_guest(options: &[&str], program: &str) -> Result<Step, Failure> {
    let step = verbs::in_the_guest(options)?;
    Ok(step.args(["--pair", "--time-out", GUEST_SECONDS, "--", program]))
}

fn words(fabric: &str, seconds: &str) -> Vec<String> {
    ["--fabric", fabric, "--seconds", seconds]
        .map(String::from)
        .into()
}

/// The seconds of the stage: enough for each kind of fault once, and for some of them again.
const STAGE_SECONDS: &str = "12";
const TORTURE_SECONDS: &str = "300";
const GUEST_STAGE_SECONDS: &str = "30";
/// The longest time in the guest, longer than any soak test.
const GUEST_SECONDS: &str = "86400";
