//! Processes that this one starts, watches over and ends.
//!
//! A process is often this program again, in a role of its own ([`again`]), which it begins with
//! [`stay_with_parent`]: the kernel then kills it with the thread that started it. Every process is
//! killed when its [`Process`] is dropped.
#![forbid(unsafe_code)]

use std::{
    env,
    ffi::OsStr,
    fmt, fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::process::{ExitStatusExt, parent_id},
    },
    path::Path,
    process::{self, Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
    process::{
        Pid, PidfdFlags, Resource, Rlimit, Signal, getrlimit, kill_process, pidfd_open, prlimit,
        set_parent_process_death_signal,
    },
};

/// A process that this one has started. Dropping it kills the process.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    pidfd: OwnedFd,
    ended: Option<ExitStatus>,
    /// Its standard output, once a line of it has come.
    says: Option<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts a process, which errors call `name`.
    ///
    /// # Errors
    ///
    /// The program cannot be started.
    pub fn start(name: impl fmt::Display, command: &mut Command) -> io::Result<Self> {
        let name = name.to_string();
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{name}: {error}"));
        let mut child = command.spawn().map_err(named)?;
        match pidfd_open(Pid::from_child(&child), PidfdFlags::empty()) {
            Ok(pidfd) => Ok(Self {
                name,
                child,
                pidfd,
                ended: None,
                says: None,
            }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(named(error.into()))
            }
        }
    }

    /// Returns its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Takes the pipe to its standard input.
    ///
    /// # Panics
    ///
    /// If the command asked for none, or it was taken.
    pub fn stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("it was asked for as a pipe")
    }

    /// Takes the pipe from its standard output.
    ///
    /// # Panics
    ///
    /// If the command asked for none, or it was taken.
    pub fn stdout(&mut self) -> ChildStdout {
        let taken = self.child.stdout.take();
        taken.expect("it was asked for as a pipe")
    }

    /// Writes a line to the pipe to its standard input.
    ///
    /// # Errors
    ///
    /// The errors of write(2).
    ///
    /// # Panics
    ///
    /// If the command asked for none, or it was taken.
    pub fn say(&mut self, line: &str) -> io::Result<()> {
        let mut input = self.child.stdin.as_ref().expect("it was asked for");
        writeln!(input, "{line}")
    }

    /// Reads its standard output up to a line that contains `mark`. Returns the text behind the
    /// mark.
    ///
    /// # Errors
    ///
    /// Its output has ended, or the errors of read(2).
    ///
    /// # Panics
    ///
    /// If the command asked for no pipe, or it was taken.
    pub fn hear(&mut self, mark: &str) -> io::Result<String> {
        loop {
            let mut line = String::new();
            if self.says().read_line(&mut line)? == 0 {
                return Err(self.failed(&format!("said nothing with \"{mark}\"")));
            }
            if let Some((_, text)) = line.trim_end().split_once(mark) {
                return Ok(text.to_owned());
            }
        }
    }

    /// Waits until it has ended, which must be with success. Returns the rest of its output.
    ///
    /// # Errors
    ///
    /// It failed; the error has the output.
    ///
    /// # Panics
    ///
    /// If the command asked for no pipe, or it was taken.
    pub fn hear_out(&mut self) -> io::Result<String> {
        let mut rest = String::new();
        self.says().read_to_string(&mut rest)?;
        let with_output = |error| io::Error::other(format!("{error}: {rest}"));
        self.finish().map_err(with_output).map(|()| rest)
    }

    fn says(&mut self) -> &mut BufReader<ChildStdout> {
        if self.says.is_none() {
            self.says = Some(BufReader::new(self.stdout()));
        }
        self.says.as_mut().expect("it was just made")
    }

    /// Closes the pipe to its standard input, if there is one. It closes by itself when the process
    /// is waited for without a limit.
    pub fn close_stdin(&mut self) {
        self.child.stdin = None;
    }

    /// Sends a signal to it.
    ///
    /// # Errors
    ///
    /// The errors of kill(2).
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        Ok(kill_process(Pid::from_child(&self.child), signal)?)
    }

    /// Stops all of its threads, until [`resume`](Self::resume).
    ///
    /// # Errors
    ///
    /// The errors of kill(2).
    pub fn stop(&self) -> io::Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets its threads go on.
    ///
    /// # Errors
    ///
    /// The errors of kill(2).
    pub fn resume(&self) -> io::Result<()> {
        self.signal(Signal::CONT)
    }

    /// Limits a resource to `most`, or resets the limit to this process's own.
    ///
    /// # Errors
    ///
    /// The errors of prlimit(2).
    pub fn limit(&self, resource: Resource, most: Option<u64>) -> io::Result<()> {
        let ours = getrlimit(resource);
        let limit = Rlimit {
            current: most.or(ours.current),
            maximum: ours.maximum,
        };
        prlimit(Some(Pid::from_child(&self.child)), resource, limit)?;
        Ok(())
    }

    /// Limits its descriptors to those that it has open, until [`relieve`](Self::relieve).
    ///
    /// # Errors
    ///
    /// It has ended, or the errors of prlimit(2).
    pub fn starve(&self) -> io::Result<()> {
        let open = fs::read_dir(format!("/proc/{}/fd", self.id()))?;
        self.limit(Resource::Nofile, Some(open.count() as u64))
    }

    /// Resets the limit of descriptors to this process's own.
    ///
    /// # Errors
    ///
    /// The errors of prlimit(2).
    pub fn relieve(&self) -> io::Result<()> {
        self.limit(Resource::Nofile, None)
    }

    /// Returns how it ended, if it has.
    ///
    /// # Errors
    ///
    /// The errors of wait(2).
    pub fn ended(&mut self) -> io::Result<Option<ExitStatus>> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait()?;
        }
        Ok(self.ended)
    }

    /// Checks that it has not ended.
    ///
    /// # Errors
    ///
    /// It has ended, which this process did not ask of it.
    pub fn check(&mut self) -> io::Result<()> {
        match self.ended()? {
            None => Ok(()),
            Some(status) => Err(self.failed(&format!("ended: {status}"))),
        }
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    ///
    /// # Errors
    ///
    /// The errors of kill(2) and wait(2).
    pub fn kill(&mut self) -> io::Result<ExitStatus> {
        if self.ended()?.is_none() {
            self.child.kill()?;
        }
        self.wait()
    }

    /// Waits until it has ended.
    ///
    /// # Errors
    ///
    /// The errors of wait(2).
    pub fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = match self.ended {
            Some(status) => status,
            None => self.child.wait()?,
        };
        self.ended = Some(status);
        Ok(status)
    }

    /// Waits until it has ended, which must be with success.
    ///
    /// # Errors
    ///
    /// It failed.
    pub fn finish(&mut self) -> io::Result<()> {
        let status = self.wait()?;
        match status.success() {
            true => Ok(()),
            false => Err(self.failed(&format!("ended: {status}"))),
        }
    }

    /// Waits until it has ended, which must be with success and within `patience`: a watchdog's
    /// time, far longer than it needs.
    ///
    /// # Errors
    ///
    /// It failed or hangs; the error of one that hangs has the stacks of its threads. It is killed.
    pub fn finish_within(&mut self, patience: Duration) -> io::Result<()> {
        wait_for_any([&*self], Instant::now() + patience)?;
        match self.ended()? {
            Some(_) => self.finish(),
            None => {
                let hangs = self.failed(&format!("hangs: {}", self.stacks()));
                self.kill()?;
                Err(hangs)
            }
        }
    }

    /// Returns the stacks of its threads, if a debugger is installed.
    #[must_use]
    pub fn stacks(&self) -> String {
        let pid = self.id().to_string();
        let frames = "thread apply all bt -frame-info short-location 24";
        let stacks = Command::new("gdb")
            .args(["-p", &pid, "-batch", "-nx", "-ex", frames])
            .stdin(Stdio::null())
            .output();
        match stacks {
            Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
            Err(error) => format!("no stacks: gdb: {error}"),
        }
    }

    fn failed(&self, how: &str) -> io::Error {
        io::Error::other(format!("{} (process {}) {how}", self.name, self.id()))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both calls fail only if the process has been waited for.
        let _ = self.kill();
    }
}

/// Waits until one of the processes that have not been seen to end does, or until `deadline`.
///
/// # Errors
///
/// The errors of poll(2).
pub fn wait_for_any<'a>(
    processes: impl IntoIterator<Item = &'a Process>,
    deadline: Instant,
) -> io::Result<()> {
    let running = processes
        .into_iter()
        .filter(|process| process.ended.is_none());
    let mut fds: Vec<_> = running
        .map(|process| PollFd::from_borrowed_fd(process.pidfd.as_fd(), PollFlags::IN))
        .collect();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
        match poll(&mut fds, Some(&timeout)) {
            Err(Errno::INTR) => {}
            ended => return ended.map(drop).map_err(io::Error::from),
        }
    }
}

/// Returns whether SIGKILL ended a process.
#[must_use]
pub fn was_killed(status: ExitStatus) -> bool {
    status.signal() == Some(Signal::KILL.as_raw())
}

/// Returns a command that runs this program again. The new process may call [`stay_with_parent`].
///
/// # Errors
///
/// The path of this program is unknown.
pub fn again() -> io::Result<Command> {
    Ok(ours(env::current_exe()?))
}

/// Copies this program to `path`, by cp(1): a process that another thread has just forked may have
/// a file open that this process writes, and exec(3) of such a file fails.
///
/// # Errors
///
/// The path of this program is unknown, or there is no room.
pub fn copy_this_program(path: &Path) -> io::Result<()> {
    let mut copying = Command::new("cp");
    copying.arg(env::current_exe()?).arg(path);
    Process::start("cp", &mut copying)?.finish()
}

/// Returns a command that runs a program of ours, which may call [`stay_with_parent`]. The program
/// may also be one that becomes ours by exec(3), as `nsenter` does.
pub fn ours(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.env(PARENT, process::id().to_string());
    command
}

/// Lets the kernel kill this process when the thread that started it ends. Call it at the beginning
/// of a process that was started by [`again`] or [`ours`].
///
/// # Errors
///
/// The parent is gone already, or the errors of prctl(2).
pub fn stay_with_parent() -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let parent = parent_id().to_string();
    match env::var(PARENT) {
        Ok(started) if started != parent => {
            let gone = format!("the parent, process {started}, is gone");
            Err(io::Error::other(gone))
        }
        _ => Ok(()),
    }
}

/// The variable with the id of the process that started this one.
const PARENT: &str = "HARNESS_PARENT";

/// Returns a figure of the memory of a process, in KiB: `field` of `/proc/PID/smaps_rollup`
/// (proc_pid_smaps(5)) if it is a proportional share, such as `Pss`, and else of `/proc/PID/status`
/// (proc_pid_status(5)), such as `RssAnon`.
///
/// # Errors
///
/// The process is over, or the kernel does not know the field.
pub fn memory_kib(pid: u32, field: &str) -> io::Result<u64> {
    let file = match field.starts_with("Pss") {
        true => "smaps_rollup",
        false => "status",
    };
    let path = format!("/proc/{pid}/{file}");
    let text = fs::read_to_string(&path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(field));
    let figure = line.and_then(|line| line.strip_prefix(':')?.split_whitespace().next());
    let figure = figure.and_then(|figure| figure.parse().ok());
    figure.ok_or_else(|| io::Error::other(format!("no {field} in {path}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(300);

    fn shell(script: &str) -> Process {
        let mut command = Command::new("sh");
        let command = command.args(["-c", script]);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        Process::start("a shell", piped).expect("sh")
    }

    #[test]
    fn success_and_failure_are_told_apart() {
        let mut good = shell("read word; echo they said $word; echo bye");
        assert_eq!(good.ended().unwrap(), None);
        good.check().unwrap();
        good.say("go").unwrap();
        good.finish_within(PATIENCE).unwrap();
        assert_eq!(good.hear("said ").unwrap(), "go");
        assert_eq!(good.hear_out().unwrap(), "bye\n");
        assert!(good.hear("").is_err());
        good.finish().unwrap();
        let mut bad = shell("exit 3");
        let pid = bad.id();
        let failed = bad.finish_within(PATIENCE).unwrap_err().to_string();
        let expected = format!("a shell (process {pid}) ended: exit status: 3");
        assert_eq!(failed, expected);
        assert_eq!(bad.check().unwrap_err().to_string(), expected);
    }

    #[test]
    fn a_program_that_does_not_exist_is_named() {
        let mut command = Command::new("no-such-program");
        let error = Process::start("the server", &mut command).unwrap_err();
        assert!(error.to_string().starts_with("the server: "), "{error}");
    }

    #[test]
    fn a_process_that_hangs_is_shown_and_killed() {
        let mut hanging = shell("echo up; exec sleep 86398");
        assert_eq!(hanging.hear("").unwrap(), "up");
        hanging.stop().unwrap();
        hanging.resume().unwrap();
        let hangs = hanging.finish_within(Duration::ZERO).unwrap_err();
        assert!(hangs.to_string().contains("hangs: "), "{hangs}");
        assert!(was_killed(hanging.wait().unwrap()));
    }

    #[test]
    fn any_of_several_is_waited_for_and_a_dropped_one_is_killed() {
        let (waiting, mut ending) = (shell("read word"), shell("exit 0"));
        wait_for_any([&waiting, &ending], Instant::now() + PATIENCE).unwrap();
        assert!(ending.ended().unwrap().is_some());
        let pid = Pid::from_raw(waiting.id().cast_signed()).unwrap();
        drop(waiting);
        assert_eq!(rustix::process::test_kill_process(pid), Err(Errno::SRCH));
    }

    /// The parent of a process started by `again` kills it with itself; the parent is a process of
    /// this test.
    #[test]
    fn a_process_does_not_outlive_its_parent() {
        const ROLE: &str = "HARNESS_TEST_ROLE";
        let name = "process::tests::a_process_does_not_outlive_its_parent";
        let start = |role: &str| {
            let mut command = again().unwrap();
            command
                .args([name, "--exact", "--nocapture"])
                .env(ROLE, role);
            command.stdin(Stdio::null()).stdout(Stdio::piped());
            Process::start(role, &mut command).unwrap()
        };
        match env::var(ROLE).as_deref() {
            Ok("child") => {
                stay_with_parent().unwrap();
                println!("up {}", process::id());
                std::thread::park();
            }
            Ok(_) => {
                let mut child = start("child");
                println!("up {}", child.hear("up ").unwrap());
                std::thread::park();
            }
            Err(_) => {
                let mut parent = start("parent");
                let pid = parent.hear("up ").unwrap().parse().unwrap();
                let child = pidfd_open(Pid::from_raw(pid).unwrap(), PidfdFlags::empty()).unwrap();
                parent.kill().unwrap();
                let mut ended = [PollFd::new(&child, PollFlags::IN)];
                let patience = Timespec::try_from(PATIENCE).unwrap();
                assert_eq!(poll(&mut ended, Some(&patience)), Ok(1));
            }
        }
    }
}
