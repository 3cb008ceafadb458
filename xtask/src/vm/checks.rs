//! The promises of a guest, tested in guests: its device carries messages, and a command's output
//! and exit status reach the caller. The tests on two devices are those of the stage `verbs`.

use std::env;

use crate::failure::Failure;
use crate::step::Step;
use crate::watchdog::Watchdog;

/// A command line of `cargo xtask vm`, and its expected result.
#[derive(Debug)]
struct Check {
    options: &'static [&'static str],
    script: &'static str,
    stdout: &'static str,
    status: i32,
}

// A client that comes too soon is refused, and tries again.
const CHECKS: &[Check] = &[
    Check {
        options: &[],
        script: "
            ibv_rc_pingpong -d rxe0 -g 1 -n 100 >&2 &
            until ibv_rc_pingpong -d rxe0 -g 1 -n 100 192.0.2.1 >&2; do sleep 0.2; done
            wait $! && echo both ends && exit 7",
        stdout: "both ends\n",
        status: 7,
    },
    // Output up to then is not lost, and the running command is ended.
    Check {
        options: &["--time-out", "2"],
        script: "echo so far; sleep 1000",
        stdout: "so far\n",
        status: 124,
    },
    // The command causes a panic, so that no status can be reported.
    Check {
        options: &[],
        script: "echo c >/proc/sysrq-trigger",
        stdout: "",
        status: 125,
    },
];

/// Tests a guest, before the stage `verbs` relies on it. The first guest fetches the packages for
/// all.
pub(crate) fn test(watchdog: &Watchdog) -> Result<(), Failure> {
    CHECKS[0].run(watchdog)
}

/// Runs the stage `guest` of `cargo xtask torture`: guests that never report a status.
pub(crate) fn test_without_status(watchdog: &Watchdog) -> Result<(), Failure> {
    CHECKS[1..].iter().try_for_each(|check| check.run(watchdog))
}

impl Check {
    fn run(&self, watchdog: &Watchdog) -> Result<(), Failure> {
        let xtask = env::current_exe()
            .map_err(|error| Failure::new(format!("the path of this program: {error}")))?;
        let step = Step::new(&xtask.to_string_lossy())
            .args(["vm", "--no-install"])
            .args(self.options.iter().copied())
            .args(["--", "bash", "-c", self.script]);
        let captured = step.capture(watchdog)?;
        let status = captured.status.code();
        if status == Some(self.status) && captured.stdout == self.stdout {
            return Ok(());
        }
        let (wanted, stdout) = (self.status, captured.stdout);
        Err(Failure::new(format!(
            "`{step}` ended with {} and not {wanted}, having written {stdout:?}",
            captured.status
        )))
    }
}
