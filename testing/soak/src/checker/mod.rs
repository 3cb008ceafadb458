//! The checker: a process that learns through a pipe what the others send and receive. At the start
//! of each run it must prove that it finds faults.
#![forbid(unsafe_code)]

mod ledger;
mod proof;

use std::{
    io::{self, BufRead, BufReader},
    process::Stdio,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

pub(crate) use ledger::Verdict;
pub(crate) use proof::prove;

use ibex_harness::process::{self, Process};

use crate::fact::{Fact, Feed};
use ledger::Ledger;

/// Runs the checker's process: reads until all writers are gone, and prints the verdict. Meanwhile
/// it reports each resumed session, and each thousand of messages.
pub(crate) fn run() -> io::Result<()> {
    let mut ledger = Ledger::default();
    let mut pipe = BufReader::with_capacity(1 << 20, io::stdin().lock());
    while let Some(fact) = Fact::read(&mut pipe)? {
        if matches!(fact, Fact::Resumed { .. }) {
            println!("{RESUMED}");
        }
        ledger.take(fact);
        let messages = ledger.messages();
        if matches!(fact, Fact::Received { .. }) && messages.is_multiple_of(THOUSAND) {
            println!("{MESSAGES} {messages}");
        }
    }
    serde_json::to_writer(io::stdout(), &ledger.close()).map_err(io::Error::other)
}

/// A running checker.
pub(crate) struct Checker {
    process: Process,
    progress: Arc<Progress>,
    /// The last line of its output.
    said: JoinHandle<io::Result<String>>,
}

/// What a running checker has reported so far.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Ends that resumed.
    pub(crate) resumes: AtomicU64,
    /// Received messages, in whole thousands.
    pub(crate) messages: AtomicU64,
}

/// The line by which it reports a resumed session.
const RESUMED: &str = "resumed";
/// The beginning of a line that reports the number of messages, and the step between such lines.
const MESSAGES: &str = "messages";
const THOUSAND: u64 = 1000;

impl Checker {
    /// Starts a checker. Returns the pipe that feeds it, too.
    pub(crate) fn start() -> io::Result<(Self, Feed)> {
        let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        // This is the largest size without privileges; a smaller pipe is only slower.
        let _ = rustix::pipe::fcntl_setpipe_size(&writer, 1 << 20);
        let mut command = process::again()?;
        command
            .arg("checker")
            .stdin(Stdio::from(reader))
            .stdout(Stdio::piped());
        let mut process = Process::start("the checker", &mut command)?;
        let lines = BufReader::new(process.stdout()).lines();
        let progress = Arc::<Progress>::default();
        let noted = progress.clone();
        let said = thread::spawn(move || {
            let mut last = String::new();
            for line in lines {
                last = line?;
                if last == RESUMED {
                    noted.resumes.fetch_add(1, Ordering::Relaxed);
                } else if last.starts_with(MESSAGES) {
                    noted.messages.fetch_add(THOUSAND, Ordering::Relaxed);
                }
            }
            Ok(last)
        });
        let checker = Self {
            process,
            progress,
            said,
        };
        Ok((checker, Feed::new(writer)))
    }

    /// Returns the live counts.
    pub(crate) fn progress(&self) -> Arc<Progress> {
        self.progress.clone()
    }

    /// Returns the verdict, once no process is left that could add facts.
    pub(crate) fn verdict(mut self) -> io::Result<Verdict> {
        let said = self.said.join().expect("no panics")?;
        self.process.finish()?;
        serde_json::from_str(&said).map_err(io::Error::other)
    }
}
