//! The checker: a process of its own, told over a pipe what the others send and receive, and
//! held at the start of each run to what it must find.
#![forbid(unsafe_code)]

mod ledger;
mod proof;

use std::{
    io::{self, BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

pub(crate) use ledger::Verdict;
pub(crate) use proof::prove;

use crate::{
    fact::{Fact, Feed},
    processes,
};
use ledger::Ledger;

/// The checker's process: reads until nobody can write any more, and says what it found.
/// Meanwhile it says of each session that goes on that it does.
pub(crate) fn run() -> io::Result<()> {
    let mut ledger = Ledger::default();
    let mut pipe = BufReader::with_capacity(1 << 20, io::stdin().lock());
    while let Some(fact) = Fact::read(&mut pipe)? {
        if matches!(fact, Fact::Resumed { .. }) {
            println!("{RESUMED}");
        }
        ledger.take(fact);
    }
    serde_json::to_writer(io::stdout(), &ledger.close()).map_err(io::Error::other)
}

/// A checker that runs.
pub(crate) struct Checker {
    child: Child,
    /// So far.
    resumes: Arc<AtomicU64>,
    /// Its last line.
    said: JoinHandle<io::Result<String>>,
}

/// What it says of a session that goes on.
const RESUMED: &str = "resumed";

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
        let mut child = command.spawn()?;
        let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let resumes = Arc::<AtomicU64>::default();
        let counter = resumes.clone();
        let said = thread::spawn(move || {
            let mut last = String::new();
            for line in lines {
                last = line?;
                counter.fetch_add(u64::from(last == RESUMED), Ordering::Relaxed);
            }
            Ok(last)
        });
        let checker = Self {
            child,
            resumes,
            said,
        };
        Ok((checker, Feed::new(writer)))
    }

    /// How often an end of a session went on, as far as it has heard, and hears later.
    pub(crate) fn resumes(&self) -> Arc<AtomicU64> {
        self.resumes.clone()
    }

    /// What it found, once nobody is left who could tell it something.
    pub(crate) fn verdict(mut self) -> io::Result<Verdict> {
        let said = self.said.join().expect("no panics")?;
        let status = self.child.wait()?;
        if !status.success() {
            return Err(io::Error::other(format!("the checker: {status}")));
        }
        serde_json::from_str(&said).map_err(io::Error::other)
    }
}
