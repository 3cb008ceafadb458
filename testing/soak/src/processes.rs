//! The processes of a run: this program again, each in a role of its own. No process outlives its
//! supervisor: the kernel kills it with the thread that started it.
#![forbid(unsafe_code)]

use std::{
    env, io,
    net::SocketAddr,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, ChildStdin, Command, Stdio},
    thread,
    time::Duration,
};

use ibex_harness::resources;
use rustix::process::{Pid, Resource, Signal, kill_process};

use crate::{
    fact::{Fact, Feed},
    options::Carrier,
};

/// Returns the path of this program.
pub(crate) fn program() -> io::Result<PathBuf> {
    env::current_exe()
}

/// The arguments with which to start a process.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) role: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) fabric: Carrier,
    pub(crate) namespace: Option<PathBuf>,
    pub(crate) device: Option<String>,
    /// Further arguments.
    pub(crate) more: Vec<String>,
    /// Runs the process as the user `nobody`, to whom limits apply.
    pub(crate) is_nobody: bool,
}

/// A running process.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: u64,
    recipe: Recipe,
    child: Child,
    /// The process's standard input; the process ends in order when it is closed.
    life: Option<ChildStdin>,
}

impl Process {
    pub(crate) fn start(recipe: Recipe, number: u64, seed: u64, feed: &Feed) -> io::Result<Self> {
        let mut command = Command::new(program()?);
        command.arg(recipe.role);
        command.args([
            "--process",
            &number.to_string(),
            "--seed",
            &seed.to_string(),
        ]);
        command.args(["--address", &recipe.address.to_string()]);
        command.args(["--fabric", recipe.fabric.name()]);
        if let Some(namespace) = &recipe.namespace {
            command.arg("--namespace").arg(namespace);
        }
        if let Some(device) = &recipe.device {
            command.args(["--device", device]);
        }
        command.args(&recipe.more);
        if recipe.is_nobody {
            command.uid(NOBODY).gid(NOBODY);
        }
        let mut child = command.stdin(Stdio::piped()).stdout(feed.pipe()?).spawn()?;
        let life = child.stdin.take();
        Ok(Self {
            number,
            recipe,
            child,
            life,
        })
    }

    /// Returns the recipe of another process like this one.
    pub(crate) fn recipe(&self) -> Recipe {
        self.recipe.clone()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Kills the process with SIGKILL, and reports that.
    pub(crate) fn kill(&mut self, feed: &Feed) -> io::Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        feed.tell(Fact::Died {
            process: self.number,
        });
        Ok(())
    }

    /// Stops all of its threads, until [`resume`](Self::resume).
    pub(crate) fn stop(&self) -> io::Result<()> {
        Ok(kill_process(self.pid(), Signal::STOP)?)
    }

    pub(crate) fn resume(&self) -> io::Result<()> {
        Ok(kill_process(self.pid(), Signal::CONT)?)
    }

    /// Limits a resource to `most`, or resets the limit to this process's own.
    pub(crate) fn limit(&self, resource: Resource, most: Option<u64>) -> io::Result<()> {
        resources::limit(&self.child, resource, most)
    }

    /// Limits the process's descriptors to those that it has open.
    pub(crate) fn starve(&self) -> io::Result<()> {
        resources::starve(&self.child)
    }

    /// Resets the limit of descriptors to this process's own.
    pub(crate) fn relieve(&self) -> io::Result<()> {
        resources::relieve(&self.child)
    }

    /// Returns an error if the process ended by itself.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.failed(&format!("ended: {status}"))),
        }
    }

    /// Asks the process to end in order.
    pub(crate) fn ask_to_end(&mut self) {
        self.life = None;
    }

    /// Waits for the process to end, which must be in order.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.ask_to_end();
        // Counts pauses instead of time, so that a suspended machine makes no process late.
        for _ in 0..PATIENCE {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => return Err(self.failed(&format!("ended: {status}"))),
                None => thread::sleep(LOOK),
            }
        }
        Err(self.failed(&format!("hangs: {}", self.stacks())))
    }

    fn failed(&self, how: &str) -> io::Error {
        let Self {
            number,
            recipe,
            child,
            ..
        } = self;
        io::Error::other(format!(
            "{} {number} (process {}) {how}",
            recipe.role,
            child.id()
        ))
    }

    /// Returns the stacks of the process's threads, from a debugger or the kernel.
    fn stacks(&self) -> String {
        let pid = self.child.id().to_string();
        let commands = ["-batch", "-nx", "-ex", "thread apply all bt 16", "-p", &pid];
        match Command::new("gdb")
            .args(commands)
            .stdin(Stdio::null())
            .output()
        {
            Ok(said) => String::from_utf8_lossy(&said.stdout).into_owned(),
            Err(error) => format!("no stacks, since gdb: {error}"),
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const NOBODY: u32 = 65534;
/// The pause between two looks at a process, and their number: a minute, far longer than an orderly
/// end takes.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: u32 = 12_000;
