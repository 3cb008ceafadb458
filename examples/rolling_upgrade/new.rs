//! The next release of the program in `old.rs`: an entry has a term now, and a report says how
//! many bytes there are.
//!
//! It speaks to its own release in the new messages and to the last one in the old, whichever
//! is at the other end. When no host runs the last release any more, the old types go.

mod program;

use std::{process::ExitCode, time::Duration};

use ibex::{Peer, Versions};
use program::{ENTRIES, Result};

// [types]
/// As the last release has it; its name is free, its structure is not.
#[ibex::message]
struct EntryV1 {
    offset: u64,
    data: Vec<u8>,
}

#[ibex::message]
struct Entry {
    offset: u64,
    term: u64,
    data: Vec<u8>,
}
// [types]

#[ibex::message]
struct ReportV1 {
    entries: u64,
}

#[ibex::message]
struct Report {
    entries: u64,
    bytes: u64,
}

/// What a replica keeps.
#[derive(Default)]
struct Store {
    entries: u64,
    bytes: u64,
    with_term: u64,
}

impl Store {
    fn append(&mut self, term: Option<u64>, data: &[u8]) {
        assert!(term.is_none_or(|term| term == TERM));
        self.entries += 1;
        self.bytes += data.len() as u64;
        self.with_term += u64::from(term.is_some());
    }
}

const TERM: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> ExitCode {
    program::run(primary, replica)
}

/// Sends entries of whichever version the replica takes, and waits for its report.
fn primary(peer: &Peer) -> Result {
    let log = peer.channel("wal");
    let mut log = log.versioned_sender::<Entry, EntryV1>()?;
    for offset in 0..ENTRIES {
        let data = vec![1; 100];
        match log.opened(PATIENCE)? {
            Versions::Newer(log) => log.send(&Entry {
                offset,
                term: TERM,
                data,
            })?,
            Versions::Older(log) => log.send(&EntryV1 { offset, data })?,
        };
    }
    match log.opened(PATIENCE)? {
        Versions::Newer(log) => log.wait_acked(ENTRIES)?,
        Versions::Older(log) => log.wait_acked(ENTRIES)?,
    }
    drop(log);

    let reports = peer.channel("report");
    let mut reports = reports.versioned_receiver::<Report, ReportV1>()?;
    let report = reports.recv()?;
    match &report {
        Versions::Newer(report) => {
            println!(
                "the replica has {} entries, {} bytes",
                report.entries, report.bytes
            );
        }
        Versions::Older(report) => println!("the replica has {} entries", report.entries),
    }
    report.ack();
    Ok(())
}

// [versions]
/// Takes entries of whichever version the primary sends.
fn receive(peer: &Peer, mut append: impl FnMut(Option<u64>, &[u8])) -> Result {
    let mut log = peer.channel("wal").versioned_receiver::<Entry, EntryV1>()?;
    while let Some(entry) = log.next()? {
        match &entry {
            Versions::Newer(entry) => append(Some(entry.term.into()), &entry.data),
            Versions::Older(entry) => append(None, &entry.data),
        }
        entry.ack();
    }
    Ok(())
}
// [versions]

/// Receives what the primary sends, and reports.
fn replica(peer: &Peer) -> Result {
    let mut store = Store::default();
    receive(peer, |term, data| store.append(term, data))?;
    let Store {
        entries,
        bytes,
        with_term,
    } = store;
    println!("{entries} entries, {with_term} of them with a term");

    let reports = peer.channel("report");
    let mut reports = reports.versioned_sender::<Report, ReportV1>()?;
    match reports.opened(PATIENCE)? {
        Versions::Newer(reports) => {
            reports.send(&Report { entries, bytes })?;
            reports.wait_acked(1)?;
        }
        Versions::Older(reports) => {
            reports.send(&ReportV1 { entries })?;
            reports.wait_acked(1)?;
        }
    }
    Ok(())
}
