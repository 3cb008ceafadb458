//! The processes of a run: this program again, each in a role of its own.
#![forbid(unsafe_code)]

use std::{
    io, net::SocketAddr, os::unix::process::CommandExt, path::PathBuf, process::Stdio,
    time::Duration,
};

use ibex_harness::process::{self, Process};

use crate::{
    fact::{Fact, Feed},
    options::Carrier,
};

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

/// A running process of a role. It ends in order when its standard input is closed.
#[derive(Debug)]
pub(crate) struct Player {
    pub(crate) number: u64,
    recipe: Recipe,
    pub(crate) process: Process,
}

impl Player {
    pub(crate) fn start(recipe: Recipe, number: u64, seed: u64, feed: &Feed) -> io::Result<Self> {
        let mut command = process::again()?;
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
        command.stdin(Stdio::piped()).stdout(feed.pipe()?);
        let process = Process::start(format!("{} {number}", recipe.role), &mut command)?;
        Ok(Self {
            number,
            recipe,
            process,
        })
    }

    /// Returns the recipe of another process like this one.
    pub(crate) fn recipe(&self) -> Recipe {
        self.recipe.clone()
    }

    /// Kills the process with SIGKILL, and reports that.
    pub(crate) fn kill(&mut self, feed: &Feed) -> io::Result<()> {
        self.process.kill()?;
        feed.tell(Fact::Died {
            process: self.number,
        });
        Ok(())
    }

    /// Waits for the process to end, which must be in order.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.process.close_stdin();
        self.process.finish_within(PATIENCE)
    }
}

const NOBODY: u32 = 65534;
/// Far longer than an orderly end takes.
const PATIENCE: Duration = Duration::from_secs(300);
