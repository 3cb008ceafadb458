//! A command of a stage. It is shown, runs in the root of the repository without input, and is
//! killed with all its children when its stage has hung.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use std::{env, fmt, process};

use crate::failure::Failure;
use crate::process_tree;
use crate::remarks::PassedOn;
use crate::watchdog::Watchdog;
use crate::workspace;

/// A command that has not run yet.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    program: String,
    arguments: Vec<String>,
    environment: Vec<(&'static str, String)>,
    directory: PathBuf,
    aside: bool,
    named_aside: bool,
}

/// The results of a captured command.
#[derive(Debug)]
pub(crate) struct Captured {
    /// The exit status.
    pub(crate) status: ExitStatus,
    /// The standard output.
    pub(crate) stdout: String,
}

impl Step {
    /// Creates a step that runs any program.
    pub(crate) fn new(program: &str) -> Self {
        Self {
            program: program.to_string(),
            arguments: Vec::new(),
            environment: Vec::new(),
            directory: workspace::root().to_path_buf(),
            aside: false,
            named_aside: false,
        }
    }

    /// Creates a step from a command line without quotes: words between blanks.
    pub(crate) fn of_line(line: &str) -> Self {
        let mut words = line.split_whitespace();
        Self::new(words.next().unwrap_or_default()).args(words)
    }

    /// Appends an argument.
    pub(crate) fn arg(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Appends arguments.
    pub(crate) fn args(mut self, arguments: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Sets an environment variable.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.environment.push((name, value.into()));
        self
    }

    /// Runs the command in this directory instead of the repository's root.
    pub(crate) fn in_directory(mut self, directory: &Path) -> Self {
        self.directory = directory.to_path_buf();
        self
    }

    /// Adds flags to an environment variable, behind those that the user has set.
    pub(crate) fn add_flags(self, name: &'static str, flags: &str) -> Self {
        let users = env::var(name).unwrap_or_default();
        self.env(name, format!("{users} {flags}").trim_start())
    }

    /// Lints the packages that a `cargo build` or `cargo test` compiles, and denies each warning. Clippy is
    /// rustc with more lints, and makes programs as well: nothing is checked once more for it alone.
    pub(crate) fn linted(self) -> Self {
        self.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver")
            // The words of `cargo clippy -- -D warnings`, as it passes them on.
            .env(
                "CLIPPY_ARGS",
                "-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__",
            )
    }

    /// Shows the command and its output on standard error, since neither is a result.
    pub(crate) fn aside(mut self) -> Self {
        self.aside = true;
        self.named_aside()
    }

    /// Shows the command on standard error, since standard output is for its output.
    pub(crate) fn named_aside(mut self) -> Self {
        self.named_aside = true;
        self
    }

    /// Runs the command; anything but success is a failure.
    pub(crate) fn run(&self, watchdog: &Watchdog) -> Result<(), Failure> {
        let mut passed_on = None;
        // On a terminal, the command gets the terminal.
        let (stdout, stderr) = match (self.aside, io::stdout().is_terminal()) {
            (true, _) => (io::stderr().into(), Stdio::inherit()),
            (false, true) => (Stdio::inherit(), Stdio::inherit()),
            (false, false) => {
                let piped = io::pipe().and_then(|(output, input)| {
                    passed_on = Some(PassedOn::of(output));
                    Ok((input.try_clone()?.into(), input.into()))
                });
                piped.map_err(|error| Failure::new(format!("a pipe: {error}")))?
            }
        };
        let hung_test = || passed_on.as_ref().and_then(PassedOn::hung_test);
        let failure = match self.run_to_end(watchdog, hung_test, stdout, stderr) {
            Ok(status) if status.success() => return Ok(()),
            Ok(status) => format!("`{self}` failed: {status}"),
            Err(failure) => failure.to_string(),
        };
        let remarks = passed_on.map(PassedOn::of_failures).unwrap_or_default();
        Err(Failure::new(failure + &remarks))
    }

    /// Runs the command and keeps its standard output.
    pub(crate) fn capture(&self, watchdog: &Watchdog) -> Result<Captured, Failure> {
        // The output goes to a file instead of a pipe: it needs no reader while the command runs,
        // and a process that inherits it cannot delay the end.
        static CAPTURED: AtomicU64 = AtomicU64::new(0);
        let number = CAPTURED.fetch_add(1, Ordering::Relaxed);
        let name = format!("xtask-captured-{}-{number}", process::id());
        let path = workspace::target().join(name);
        let unusable = |error| Failure::new(format!("{}: {error}", path.display()));
        let file = File::create(&path).map_err(unusable)?;
        let status = self.run_to_end(watchdog, || None, file.into(), Stdio::inherit())?;
        let stdout = fs::read(&path).map_err(unusable)?;
        // A leftover file would only take room.
        let _ = fs::remove_file(&path);
        Ok(Captured {
            status,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
        })
    }

    /// Builds the one program of a `cargo test` or `cargo bench` without running it. Returns the
    /// program's path.
    pub(crate) fn build_program(self, watchdog: &Watchdog) -> Result<String, Failure> {
        self.arg("--no-run").build(watchdog)
    }

    /// Runs a `cargo build` of one program. Returns the program's path.
    pub(crate) fn build(self, watchdog: &Watchdog) -> Result<String, Failure> {
        let step = self.args(["--message-format", "json-render-diagnostics"]);
        let built = step.capture(watchdog)?;
        let program = executable(&built.stdout).filter(|_| built.status.success());
        let failed = || Failure::new(format!("`{step}` built no program: {}", built.status));
        program.map(String::from).ok_or_else(failed)
    }

    /// Returns whether the program exists and succeeds, without showing output.
    pub(crate) fn succeeds(&self) -> bool {
        let status = self.command(Stdio::null(), Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    /// Runs the command to its end, or until the watchdog or a test is said to hang. Returns the exit
    /// status.
    fn run_to_end(
        &self,
        watchdog: &Watchdog,
        hung_test: impl Fn() -> Option<String>,
        stdout: Stdio,
        stderr: Stdio,
    ) -> Result<ExitStatus, Failure> {
        if self.named_aside {
            eprintln!("$ {self}");
        } else {
            println!("$ {self}");
        }
        let impossible = |error| Failure::new(format!("`{self}` cannot be run: {error}"));
        let child = self.command(stdout, stderr).spawn().map_err(impossible)?;
        let hung = || {
            let stage = watchdog.has_run_out().then(|| "the stage".to_owned());
            hung_test().map(|name| format!("its test {name}")).or(stage)
        };
        match wait(child, hung).map_err(impossible)? {
            Ok(status) => Ok(status),
            Err((who, running)) => {
                let seconds = watchdog.elapsed().as_secs();
                let running = running.join("\n    ");
                Err(Failure::new(format!(
                    "`{self}` hung and was ended, {seconds} s into the stage, since {who} took too long\n  running:\n    {running}"
                )))
            }
        }
    }

    fn command(&self, stdout: Stdio, stderr: Stdio) -> Command {
        let program = match self.program.as_str() {
            // This is the cargo that runs this program, instead of a wrapper that would choose
            // again.
            "cargo" => env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")),
            program => OsString::from(program),
        };
        let mut command = Command::new(program);
        command
            .args(&self.arguments)
            .env("IBEX_TEST_EXTENT", EXTENT.get().unwrap_or(&"each"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .current_dir(&self.directory)
            .stdin(Stdio::null())
            .stdout(stdout)
            .stderr(stderr);
        command
    }
}

/// The part of their cells that tests play (`tests/extent`), if it is not `each`.
static EXTENT: OnceLock<&str> = OnceLock::new();

/// Makes tests play all their cells from now on.
pub(crate) fn play_everything() {
    EXTENT.get_or_init(|| "whole");
}

/// Runs lists of steps concurrently, each to its end or to its first failure.
pub(crate) fn side_by_side(lists: &[&[Step]], watchdog: &Watchdog) -> Result<(), Failure> {
    lists_at_once(lists, |step| step.run(watchdog))
}

/// Runs lists of steps concurrently, each to its end, whatever fails.
pub(crate) fn all_side_by_side(lists: &[&[Step]], watchdog: &Watchdog) -> Result<(), Failure> {
    let lists: Vec<_> = lists.iter().map(std::slice::from_ref).collect();
    lists_at_once(&lists, |list| {
        let ends = list.iter().map(|step| step.run(watchdog));
        let failures: Vec<_> = ends
            .filter_map(|end| Some(end.err()?.to_string()))
            .collect();
        match failures.is_empty() {
            true => Ok(()),
            false => Err(Failure::new(failures.join("; and "))),
        }
    })
}

/// Runs lists of anything concurrently, by the function `run`.
pub(crate) fn lists_at_once<T: Sync>(
    lists: &[&[T]],
    run: impl Fn(&T) -> Result<(), Failure> + Sync,
) -> Result<(), Failure> {
    let run = |list: &[T]| list.iter().try_for_each(&run);
    let failures: Vec<_> = thread::scope(|scope| {
        let running: Vec<_> = lists.iter().map(|list| scope.spawn(|| run(list))).collect();
        let ends = running.into_iter().map(thread::ScopedJoinHandle::join);
        ends.filter_map(|end| end.expect("a list comes to its end").err())
            .map(|failure| failure.to_string())
            .collect()
    });
    if failures.is_empty() {
        return Ok(());
    }
    Err(Failure::new(failures.join("; and ")))
}

/// Formats the command as typed into a shell.
impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.environment {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&self.program)?;
        self.arguments
            .iter()
            .try_for_each(|argument| write!(f, " {}", quoted(argument)))
    }
}

/// Returns the path of the program from cargo's messages, which are one per line: that of the test,
/// if binaries of its package are built beside it. The path belongs to this repository, so it has
/// no escapes.
fn executable(messages: &str) -> Option<&str> {
    let programs = messages.lines().filter_map(|line| {
        let (_, path) = line.split_once("\"executable\":\"")?;
        Some((line, path.split_once('"')?.0))
    });
    let mut tests = programs
        .clone()
        .filter(|(line, _)| line.contains("\"kind\":[\"test\"]"));
    let program = tests.next().or_else(|| programs.clone().next());
    program.map(|(_, path)| path)
}

fn quoted(word: &str) -> String {
    if word.contains([' ', '"']) {
        format!("'{word}'")
    } else {
        word.to_string()
    }
}

/// Waits for the end of `child`, or until `hung` says what hangs. In that case everything is killed,
/// and the error says what hung, and describes what ran then.
fn wait(
    mut child: Child,
    hung: impl Fn() -> Option<String>,
) -> io::Result<Result<ExitStatus, (String, Vec<String>)>> {
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Ok(status));
        }
        if let Some(who) = hung() {
            let running = process_tree::describe();
            // Shown at once too, since a process in a system call of a driver may not end.
            running
                .iter()
                .for_each(|process| println!("HUNG: {process}"));
            process_tree::kill_all();
            child.wait()?;
            return Ok(Err((who, running)));
        }
        thread::sleep(WAIT_PAUSE);
    }
}

/// Short compared to any command, long compared to one poll.
const WAIT_PAUSE: Duration = Duration::from_millis(20);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_reads_as_it_would_be_typed() {
        let step = Step::of_line("cargo test --lib").arg("name=\"a\"");
        let step = step.env("RUSTFLAGS", "--cfg loom");
        assert_eq!(
            step.to_string(),
            "RUSTFLAGS='--cfg loom' cargo test --lib 'name=\"a\"'"
        );
    }

    #[test]
    fn the_program_is_found_in_the_messages() {
        let library = r#"{"target":{"kind":["lib"]},"executable":null}"#;
        let of_library = r#"{"target":{"kind":["lib"]},"executable":"/loom/deps/ibex-1","x":1}"#;
        let binary = r#"{"target":{"kind":["bin"]},"executable":"/release/log"}"#;
        let test = r#"{"target":{"kind":["test"]},"executable":"/release/deps/log-2"}"#;
        let found = |lines: &[&str]| executable(&lines.join("\n")).map(String::from);
        assert_eq!(
            found(&[library, of_library]).as_deref(),
            Some("/loom/deps/ibex-1")
        );
        assert_eq!(
            found(&[test, binary]).as_deref(),
            Some("/release/deps/log-2")
        );
        assert_eq!(
            found(&[binary, test]).as_deref(),
            Some("/release/deps/log-2")
        );
        assert_eq!(found(&[binary]).as_deref(), Some("/release/log"));
        assert_eq!(executable("{}"), None);
    }

    /// Runs in a process of its own, since it would also kill the children of other tests.
    #[test]
    fn a_command_that_fails_is_named_and_one_that_hangs_is_ended_with_its_children() {
        if env::var_os("XTASK_TEST_ALONE").is_none() {
            let name = "step::tests::a_command_that_fails_is_named_and_one_that_hangs_is_ended_with_its_children";
            let mut alone = Command::new(env::current_exe().unwrap());
            alone.args([name, "--exact"]).env("XTASK_TEST_ALONE", "1");
            let output = alone.output().unwrap();
            assert!(output.status.success(), "{output:?}");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(said.contains("1 passed"), "{said}");
            return;
        }
        let patient = Watchdog::patient();
        let failure = Step::new("false").run(&patient).unwrap_err().to_string();
        assert!(
            failure.starts_with("`false` failed: exit status: 1"),
            "{failure}"
        );
        let failure = Step::new("no-such-program")
            .run(&patient)
            .unwrap_err()
            .to_string();
        assert!(
            failure.starts_with("`no-such-program` cannot be run: "),
            "{failure}"
        );

        process_tree::adopt_orphans();
        let mark = "86399.25"; // seconds: a sleep that nobody else sleeps
        let script = format!("sleep {mark} & setsid sleep {mark}");
        let hanging = Step::new("sh").arg("-c").arg(script);
        let soon = Watchdog::after(Duration::from_secs(2));
        let failure = hanging.run(&soon).unwrap_err().to_string();
        assert!(failure.contains("hung and was ended"), "{failure}");
        assert!(
            failure.contains(&format!("sleep {mark}; threads sleep")),
            "{failure}"
        );
        let left = process_tree::describe();
        assert!(
            !left.iter().any(|process| process.contains(mark)),
            "{left:?}"
        );
    }
}
