//! The life of a primary process, from its start to its end or to `kill -9`, with a writer thread
//! that gives it records and a listener thread that reads its reports.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    ops::Range,
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ibex_harness::{Error, draw::Draw};
use rustix::process::{Resource, Signal};

use super::{
    ledger::payload,
    serve::{Serve, Told},
};
use crate::{
    log::Tip,
    processes::{Role, limit, relieve, signal, spawn_with, starve},
};

/// A running primary process.
pub(super) struct Life {
    child: Child,
    /// The address at which it listens.
    pub(super) address: SocketAddr,
    /// Number of the first record that this process is given.
    first: u64,
    is_over: Arc<AtomicBool>,
    acknowledged: Arc<AtomicU64>,
    writer: Option<JoinHandle<u64>>,
    listener: Option<JoinHandle<Result<Heard, Error>>>,
}

/// Results of a primary that has ended.
#[derive(Debug)]
pub(super) struct Past {
    /// Records that were given to it; some may never have reached it.
    pub(super) given: Range<u64>,
    /// Records that it acknowledged.
    pub(super) acknowledged: Range<u64>,
    /// Other reports of the primary.
    pub(super) heard: Heard,
}

/// Reports of a primary.
#[derive(Debug, Default)]
pub(super) struct Heard {
    acknowledged: u64,
    /// Number of times that a replica joined.
    pub(super) joined: u64,
    /// The carrier and the tip of the log, from a primary that completed.
    pub(super) complete: Option<(String, Tip)>,
}

impl Life {
    /// Starts a primary, and a writer that gives it the records from `first` on.
    pub(super) fn start(serve: &Serve, first: u64, draw: Draw) -> Result<Life, Error> {
        let mut child = spawn_with(&Role::Primary(serve.clone()), |command| {
            command.stdin(Stdio::piped());
            if let Some(device) = &serve.device {
                command.env("IBEX_RDMA_DEVICE", device);
            }
        })?;
        let piped = "it was asked for as a pipe";
        let input = child.stdin.take().expect(piped);
        let mut output = BufReader::new(child.stdout.take().expect(piped));
        let is_over = Arc::new(AtomicBool::new(false));
        let acknowledged = Arc::new(AtomicU64::new(0));
        let mut line = String::new();
        output
            .read_line(&mut line)
            .map_err(Error::io("listening to a primary"))?;
        let Told::Listens { address, records } = parse(&line)? else {
            return Err(Error::subject(format!("a primary began with {line:?}")));
        };
        if first == 0 && records > 0 {
            return Err(Error::subject(
                "a log under fire begins empty, and there is one: give another --dir",
            ));
        }
        let (bytes, is_written) = (serve.record_bytes, is_over.clone());
        let writer = thread::spawn(move || write(input, first, bytes, draw, &is_written));
        let listener = {
            let acknowledged = acknowledged.clone();
            thread::spawn(move || listen(output, records, &acknowledged))
        };
        Ok(Life {
            child,
            address,
            first,
            is_over,
            acknowledged,
            writer: Some(writer),
            listener: Some(listener),
        })
    }

    /// Stops the process, until [`resume`](Self::resume).
    pub(super) fn stop(&self) -> Result<(), Error> {
        signal(&self.child, Signal::STOP)
    }

    /// Continues the process.
    pub(super) fn resume(&self) -> Result<(), Error> {
        signal(&self.child, Signal::CONT)
    }

    /// Denies the process further files and sockets, until [`relieve`](Self::relieve).
    pub(super) fn starve(&self) -> Result<(), Error> {
        starve(&self.child)
    }

    /// Limits a resource of the process to `most`, or resets the limit to this process's own.
    pub(super) fn limit(&self, resource: Resource, most: Option<u64>) -> Result<(), Error> {
        limit(&self.child, resource, most)
    }

    /// Lets the process open files and sockets again.
    pub(super) fn relieve(&self) -> Result<(), Error> {
        relieve(&self.child)
    }

    /// Returns the number of records that it has acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Returns an error if the process has ended.
    pub(super) fn check(&mut self) -> Result<(), Error> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(Error::PeerEnded {
                pid: self.child.id(),
                status: status.to_string(),
            }),
            Err(error) => Err(Error::io("looking at a primary")(error)),
        }
    }

    /// Kills the process as `kill -9` does.
    pub(super) fn kill(mut self) -> Result<Past, Error> {
        self.child.kill().map_err(Error::io("killing a primary"))?;
        self.past()
    }

    /// Ends the input, and waits until every replica has all records.
    pub(super) fn complete(mut self) -> Result<Past, Error> {
        let past = self.past()?;
        let pid = self.child.id();
        let status = self
            .child
            .wait()
            .map_err(Error::io("waiting for a primary"))?;
        if past.heard.complete.is_none() || !status.success() {
            let status = status.to_string();
            return Err(Error::PeerEnded { pid, status });
        }
        Ok(past)
    }

    fn past(&mut self) -> Result<Past, Error> {
        self.is_over.store(true, Ordering::Relaxed);
        let (writer, listener) = (self.writer.take(), self.listener.take());
        let next = writer.map_or(Ok(self.first), JoinHandle::join);
        let heard = listener.map_or(Ok(Ok(Heard::default())), JoinHandle::join);
        let (next, heard) = (next.expect("no panics"), heard.expect("no panics")?);
        Ok(Past {
            given: self.first..next,
            // The log keeps records in the order in which they were given.
            acknowledged: self.first..self.first + heard.acknowledged,
            heard,
        })
    }
}

impl Drop for Life {
    fn drop(&mut self) {
        // Both calls fail only if the process was already waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes records at a moderate pace, until `is_over` or until the primary stops reading. Returns
/// the number after the last record that was begun.
fn write(
    mut input: ChildStdin,
    first: u64,
    record_bytes: usize,
    mut draw: Draw,
    is_over: &AtomicBool,
) -> u64 {
    let mut next = first;
    while !is_over.load(Ordering::Relaxed) {
        for _ in 0..draw.of(1..9) {
            let written = input.write_all(&payload(next, record_bytes));
            next += 1;
            if written.is_err() {
                return next;
            }
        }
        thread::sleep(Duration::from_millis(draw.of(1..5)));
    }
    next
}

/// Reads a primary's reports until it ends, and stores its progress in `acknowledged`. The log held
/// `before` records when the process started.
fn listen(
    output: BufReader<ChildStdout>,
    before: u64,
    acknowledged: &AtomicU64,
) -> Result<Heard, Error> {
    let mut heard = Heard::default();
    for line in output.lines() {
        let line = line.map_err(Error::io("listening to a primary"))?;
        match parse(&line) {
            Ok(Told::Listens { .. }) => {}
            Ok(Told::Acknowledged(records)) => {
                heard.acknowledged = records - before;
                acknowledged.store(heard.acknowledged, Ordering::Relaxed);
            }
            Ok(Told::Joined { replica, has }) => {
                heard.joined += 1;
                note(&format!("replica {replica} is there and has {has} bytes"));
            }
            Ok(Told::Lost { replica, why }) => note(&format!("replica {replica} is gone: {why}")),
            Ok(Told::Complete { tip, carrier }) => {
                heard.acknowledged = tip.number - before;
                heard.complete = Some((carrier, tip));
            }
            // The primary was killed in the middle of the line.
            Err(_) if heard.complete.is_none() => {}
            Err(error) => return Err(error),
        }
    }
    Ok(heard)
}

fn note(text: &str) {
    // A closed standard error must not end this process.
    let _ = writeln!(io::stderr(), "fire: {text}");
}

fn parse(line: &str) -> Result<Told, Error> {
    serde_json::from_str(line).map_err(|source| Error::PeerSpoke {
        expected: "what a primary says",
        line: line.to_owned(),
        source,
    })
}
