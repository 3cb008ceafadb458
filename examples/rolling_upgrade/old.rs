//! The last release of a program that is being upgraded host by host; `new.rs` is the next.
//!
//! This release knows the messages as they were when it was built, and nothing of versions:
//!
//! ```text
//! cargo run --release --example rolling_upgrade_old -- replica shm
//! cargo run --release --example rolling_upgrade_new -- primary shm ADDRESS
//! ```
//!
//! The first prints its address. Any two of the four programs (old and new, primary and replica)
//! work together; `tests/rolling_upgrade.rs` builds and runs all of them.

mod program;

use std::process::ExitCode;

use ibex::Peer;
use program::{ENTRIES, Result};

#[ibex::message]
struct Entry {
    offset: u64,
    data: Vec<u8>,
}

#[ibex::message]
struct Report {
    entries: u64,
}

fn main() -> ExitCode {
    program::run(primary, replica)
}

/// Sends entries, and waits for the report.
fn primary(peer: &Peer) -> Result {
    let mut log = peer.sender::<Entry>("wal")?;
    for offset in 0..ENTRIES {
        let data = vec![1; 100];
        log.send(&Entry { offset, data })?;
    }
    log.wait_acked(ENTRIES)?;
    log.close()?;

    let mut reports = peer.receiver::<Report>("report")?;
    let report = reports.recv()?;
    println!("the replica has {} entries", report.entries);
    report.ack();
    Ok(())
}

/// Receives entries until the channel ends, and reports.
fn replica(peer: &Peer) -> Result {
    let mut log = peer.receiver::<Entry>("wal")?;
    let mut entries = 0;
    while let Some(entry) = log.next()? {
        assert_eq!((entry.offset, entry.data.len()), (entries.into(), 100));
        entries += 1;
        entry.ack();
    }
    println!("{entries} entries");

    let mut reports = peer.sender::<Report>("report")?;
    reports.send(&Report { entries })?;
    reports.wait_acked(1)?;
    Ok(())
}
