//! Measuring programs of other projects: one process waits, the other connects to it, each on its
//! own core.
//!
//! The connecting process may start before the other listens; it is then started again. Neither
//! outlives this process.

#![forbid(unsafe_code)]

use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Error,
    cores::{Cores, keep_to},
    process::Process,
};

/// A program that plays both ends, with the arguments of both.
pub(crate) struct Foreign {
    pub(crate) program: &'static str,
    /// The operation named in errors if it cannot be started; it names the package.
    pub(crate) starting: &'static str,
    pub(crate) arguments: Vec<String>,
    pub(crate) variables: Vec<(&'static str, String)>,
    /// The address of the waiting end, which is the last argument of the connecting one.
    pub(crate) address: String,
}

impl Foreign {
    /// Runs both ends, the waiting one on the second core. Returns the output of the connecting
    /// one.
    pub(crate) fn run(&self, cores: Cores) -> Result<String, Error> {
        // A process inherits the cores of the thread that starts it.
        keep_to(&cores[1..])?;
        let mut waiting = self.command();
        waiting.stdout(Stdio::null()).stderr(Stdio::null());
        let server = Process::start(self.program, &mut waiting);
        let mut server = server.map_err(Error::io(self.starting))?;
        keep_to(&cores[..1])?;
        let start = Instant::now();
        loop {
            let client = self.command().arg(&self.address).output();
            let client = client.map_err(Error::io(self.starting))?;
            if client.status.success() {
                let _ = server.wait();
                return Ok(String::from_utf8_lossy(&client.stdout).into_owned());
            }
            let ended = server.ended();
            let ended = ended.map_err(Error::io("waiting for a program of others"))?;
            if ended.is_some() || start.elapsed() > PATIENCE {
                let said = String::from_utf8_lossy(&client.stderr);
                return Err(Error::subject(format!(
                    "{} failed, {}: {}",
                    self.program,
                    client.status,
                    said.lines().next().unwrap_or("without a word")
                )));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns the error for output without figures.
    pub(crate) fn void(&self) -> Error {
        Error::subject(format!("{} printed no figures", self.program))
    }

    fn command(&self) -> Command {
        let mut command = Command::new(self.program);
        let variables = self.variables.iter();
        command
            .args(&self.arguments)
            .envs(variables.map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    }
}

/// Time for both processes to start and measure; in an emulator that takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
