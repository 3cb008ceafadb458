//! The life of a primary process, from its start to its end or to `kill -9`, with a writer thread
//! that gives it records and a listener thread that reads its reports.

use std::{
    io::{self, BufRead, BufReader, Write},
    net::SocketAddr,
    ops::Range,
    process::{ChildStdin, ChildStdout, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use ibex_harness::{Error, draw::Draw, process::Process};

use super::{
    ledger::payload,
    serve::{Serve, Told},
};
use crate::{
    log::Tip,
    processes::{Role, start_with},
};

/// A running primary process.
pub(super) struct Life {
    pub(super) process: Process,
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
        let mut process = start_with(&Role::Primary(serve.clone()), |command| {
            command.stdin(Stdio::piped());
            if let Some(device) = &serve.device {
                command.env("IBEX_RDMA_DEVICE", device);
            }
        })?;
        let input = process.stdin();
        let mut output = BufReader::new(process.stdout());
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
            process,
            address,
            first,
            is_over,
            acknowledged,
            writer: Some(writer),
            listener: Some(listener),
        })
    }

    /// Returns the number of records that it has acknowledged so far.
    pub(super) fn acknowledged(&self) -> u64 {
        self.acknowledged.load(Ordering::Relaxed)
    }

    /// Kills the process as `kill -9` does.
    pub(super) fn kill(mut self) -> Result<Past, Error> {
        let killed = self.process.kill();
        killed.map_err(Error::io("killing a primary"))?;
        self.past()
    }

    /// Ends the input, and waits until every replica has all records.
    pub(super) fn complete(mut self) -> Result<Past, Error> {
        let past = self.past()?;
        let finished = self.process.finish();
        finished.map_err(Error::io("waiting for a primary"))?;
        if past.heard.complete.is_none() {
            return Err(Error::subject("a primary ended before it had completed"));
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
