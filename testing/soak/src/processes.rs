//! The processes of a run: this program again, each with a role of its own. None outlives
//! its supervisor: the kernel kills it with the thread that started it.
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

/// This program.
pub(crate) fn program() -> io::Result<PathBuf> {
    env::current_exe()
}

/// How a process is started.
#[derive(Clone, Debug)]
pub(crate) struct Recipe {
    pub(crate) role: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) fabric: Carrier,
    pub(crate) namespace: Option<PathBuf>,
    pub(crate) device: Option<String>,
    /// Whatever else it is to be told.
    pub(crate) more: Vec<String>,
    /// As nobody, to whom limits apply.
    pub(crate) is_nobody: bool,
}

/// A process that runs.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) number: u64,
    recipe: Recipe,
    child: Child,
    /// It ends in order when this is closed.
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

    /// What another one like it is started with.
    pub(crate) fn recipe(&self) -> Recipe {
        self.recipe.clone()
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Ends it as nothing else can, and tells so.
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

    /// Limits something to `most`, or again to what this process itself may have.
    pub(crate) fn limit(&self, resource: Resource, most: Option<u64>) -> io::Result<()> {
        resources::limit(&self.child, resource, most)
    }

    /// Lets it have no more descriptors than it has open.
    pub(crate) fn starve(&self) -> io::Result<()> {
        resources::starve(&self.child)
    }

    /// Lets it have as many descriptors again as this process may.
    pub(crate) fn relieve(&self) -> io::Result<()> {
        resources::relieve(&self.child)
    }

    /// An error if it ended by itself.
    pub(crate) fn check(&mut self) -> io::Result<()> {
        match self.child.try_wait()? {
            None => Ok(()),
            Some(status) => Err(self.failed(&format!("ended: {status}"))),
        }
    }

    /// Asks it to end in order.
    pub(crate) fn ask_to_end(&mut self) {
        self.life = None;
    }

    /// Waits for its end, which has to be one in order.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.ask_to_end();
        // No clock: whoever stops all of us does not make anybody late.
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

    /// What its threads are doing, as far as a debugger or the kernel tells.
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
/// Between two looks whether a process has ended, and how many there are: a minute, far
/// beyond how soon it does.
const LOOK: Duration = Duration::from_millis(5);
const PATIENCE: u32 = 12_000;
