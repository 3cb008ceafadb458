//! The next release of the program in `old.rs`: an entry has a term now, and a report says how
//! many bytes there are.
//!
//! It speaks to its own release in the new messages and to the last one in the old, whichever
//! is at the other end. When no host runs the last release any more, the old types go.

mod program;

use std::time::Duration;

use ibex::{Peer, Versions};
use program::{ENTRIES, Result};

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

#[ibex::message]
struct ReportV1 {
    entries: u64,
}

#[ibex::message]
struct Report {
    entries: u64,
    bytes: u64,
}

const TERM: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(10);

fn main() -> Result {
    program::run(primary, replica)
}

/// Sends entries of whichever version the replica takes, and waits for its report.
fn primary(peer: &Peer) -> Result {
    let log = peer.channel("wal").versions::<Entry, EntryV1>();
    let mut log = log.sender()?;
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

    let reports = peer.channel("report").versions::<Report, ReportV1>();
    let mut reports = reports.receiver()?;
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

/// Takes entries of whichever version the primary sends, and reports.
fn replica(peer: &Peer) -> Result {
    let log = peer.channel("wal").versions::<Entry, EntryV1>();
    let mut log = log.receiver()?;
    let (mut entries, mut bytes, mut with_term) = (0, 0, 0);
    while let Some(entry) = log.next()? {
        let (offset, data) = match &entry {
            Versions::Newer(entry) => {
                assert_eq!(entry.term, TERM);
                with_term += 1;
                (entry.offset, &entry.data)
            }
            Versions::Older(entry) => (entry.offset, &entry.data),
        };
        assert_eq!(offset, entries);
        entries += 1;
        bytes += data.len() as u64;
        entry.ack();
    }
    println!("{entries} entries, {with_term} of them with a term");

    let reports = peer.channel("report").versions::<Report, ReportV1>();
    let mut reports = reports.sender()?;
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
