//! Instructions of a message over the fake device. callgrind counts a test that sends some messages
//! and one that sends twice as many, once in full and once only inside the fake device's calls.

use crate::failure::Failure;
use crate::step::Step;
use crate::tool::{Tool, VALGRIND};
use crate::watchdog::Watchdog;
use crate::workspace;

/// Tools for counting.
pub(crate) const TOOLS: &[Tool] = &[VALGRIND];

/// Returns the instructions of both ends for a message of 64 bytes that shares a frame, and for one
/// that has a frame to itself.
pub(crate) fn count(watchdog: &Watchdog) -> Result<[f64; 2], Failure> {
    let target = workspace::target().join("callgrind");
    let program = Step::of_line("cargo test -p ibex-transport --release --lib")
        .aside()
        // rustix's own system calls get wrong answers under valgrind.
        .add_flags("RUSTFLAGS", "--cfg rustix_use_libc")
        .env("CARGO_TARGET_DIR", target.to_string_lossy())
        .build_program(watchdog)?;
    let [shared, own] = ["counted_shared_frames", "counted_own_frames"]
        .map(|test| of_a_message(&program, test, watchdog));
    Ok([shared?, own?])
}

fn of_a_message(program: &str, test: &str, watchdog: &Watchdog) -> Result<f64, Failure> {
    let more = |toggles: &[String]| {
        let all = |messages| total(program, test, messages, toggles, watchdog);
        Ok::<_, Failure>(all(2 * MESSAGES)? - all(MESSAGES)?)
    };
    let toggles = CALLS.map(|call| format!("--toggle-collect={FAKE}::{call}"));
    Ok((more(&[])? - more(&toggles)?) / f64::from(MESSAGES))
}

/// Returns all instructions of a test, or only those inside the functions that toggle.
fn total(
    program: &str,
    test: &str,
    messages: u32,
    toggles: &[String],
    watchdog: &Watchdog,
) -> Result<f64, Failure> {
    let out = workspace::target().join("callgrind/counted");
    let out = out.to_string_lossy();
    let step = Step::of_line("valgrind -q --tool=callgrind")
        .arg(format!("--callgrind-out-file={out}"))
        .args(toggles)
        .arg(program)
        .args(["--exact", &format!("{TESTS}::{test}"), "--test-threads=1"])
        .env("IBEX_TEST_MESSAGES", messages.to_string())
        .aside();
    step.run(watchdog)?;
    let text =
        std::fs::read_to_string(&*out).map_err(|error| Failure::new(format!("{out}: {error}")))?;
    sum(&text).ok_or_else(|| Failure::new(format!("{out}: there is no sum in it")))
}

/// Parses the line `totals: NUMBER`.
fn sum(text: &str) -> Option<f64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))?;
    line.trim().parse().ok()
}

const TESTS: &str = "rdma::tests::sessions::counted";
const FAKE: &str = "ibex_verbs::provider::fake::hot";
/// The calls of the data path, none of which calls another.
const CALLS: [&str; 5] = [
    "post_send",
    "poll_queue",
    "post_receive",
    "post_shared_receive",
    "request_notify",
];
const MESSAGES: u32 = 2000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sum_is_found() {
        assert_eq!(
            sum("events: Ir\nfn=(1)\n1 2\ntotals: 8137098\n"),
            Some(8_137_098.0)
        );
        assert_eq!(sum("events: Ir\n"), None);
    }
}
