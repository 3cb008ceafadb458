//! The checker: a process of its own, told over a pipe what the others send and receive, and
//! held at the start of each run to what it must find.
#![forbid(unsafe_code)]

mod ledger;
mod proof;

use std::{
    io::{self, BufReader},
    process::{Child, Command, Stdio},
};

pub(crate) use ledger::Verdict;
pub(crate) use proof::prove;

use crate::{
    fact::{Fact, Feed},
    processes,
};
use ledger::Ledger;

/// The checker's process: reads until nobody can write any more, and says what it found.
pub(crate) fn run() -> io::Result<()> {
    let mut ledger = Ledger::default();
    let mut pipe = BufReader::with_capacity(1 << 20, io::stdin().lock());
    while let Some(fact) = Fact::read(&mut pipe)? {
        ledger.take(fact);
    }
    serde_json::to_writer(io::stdout(), &ledger.close()).map_err(io::Error::other)
}

/// A checker that runs.
pub(crate) struct Checker {
    child: Child,
}

impl Checker {
    /// Starts one, and gives the way to tell it.
    pub(crate) fn start() -> io::Result<(Self, Feed)> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // As much as one may have without rights; with less it is only slower.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20);
        let mut command = Command::new(processes::program()?);
        command
            .arg("checker")
            .stdin(Stdio::from(reader))
            .stdout(Stdio::piped());
        let child = command.spawn()?;
        Ok((Self { child }, Feed::new(writer)))
    }

    /// What it found, once nobody is left who could tell it something.
    pub(crate) fn verdict(self) -> io::Result<Verdict> {
        let said = self.child.wait_with_output()?;
        if !said.status.success() {
            return Err(io::Error::other(format!("the checker: {}", said.status)));
        }
        serde_json::from_slice(&said.stdout).map_err(io::Error::other)
    }
}
