//! A log that grows, sent from its file: the primary appends records and maps each new part as a region,
//! and the replica appends what comes to a file of its own.
//!
//! `cargo run --release --example growing_log`

use std::{
    env,
    fs::{self, File, OpenOptions},
    io::Write,
    path::{Path, PathBuf},
    process, thread,
};

use ibex::{Address, Node, Raw, Region};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The file of a log, to which this program only appends.
struct Log {
    path: PathBuf,
    file: File,
    end: u64,
}

impl Log {
    fn create(name: &str) -> Result<Self, Error> {
        let path = env::temp_dir().join(format!("ibex-{name}-{}", process::id()));
        let file = OpenOptions::new()
            .read(true)
            .append(true)
            .create_new(true)
            .open(&path)?;
        Ok(Self { path, file, end: 0 })
    }

    fn append(&mut self, records: &[u8]) -> Result<(), Error> {
        self.file.write_all(records)?;
        self.end += records.len() as u64;
        Ok(())
    }

    /// Maps what was appended since `sent`. The region stays as it is while the log grows.
    fn part(&self, sent: u64) -> Result<Region, Error> {
        // SAFETY: this file is only appended to, never cut, and known to no other process. This process
        // runs no code in a fork.
        Ok(unsafe { Region::map(&self.file, sent..self.end) }?)
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Appends records, and sends each part with its place in the log.
fn primary(replica: Address, log: &mut Log) -> Result<(), Error> {
    let node = Node::client()?;
    let parts = node.connect(replica)?.channel("parts").codec::<Raw>();
    let mut parts = parts.sender::<[u8]>()?;
    let mut sent = 0;
    for number in 0..ROUNDS {
        for record in 0..RECORDS {
            log.append(&[(number + record) as u8; RECORD_BYTES])?;
        }
        // The message has what it needs of the region, which may be dropped.
        let part = log.part(sent)?;
        parts.send_region((&sent.to_le_bytes(), &part.slice(..)))?;
        sent = log.end;
    }
    parts.close()?;
    Ok(())
}

/// Appends the parts. A program that restarts asks for the parts from its own end (`ibex::log`).
fn replica(node: &Node, log: &mut Log) -> Result<(), Error> {
    let peer = node.accept()?;
    let mut parts = peer.channel("parts").codec::<Raw>().receiver::<[u8]>()?;
    while let Some(part) = parts.next()? {
        let offset = u64::from_le_bytes(part.header().try_into()?);
        if offset != log.end {
            return Err(format!("a part of {offset} came at {}", log.end).into());
        }
        log.append(&part)?;
        part.ack();
    }
    println!("{} MiB went over {}", log.end >> 20, peer.fabric());
    Ok(())
}

fn is_equal(one: &Path, other: &Path) -> Result<bool, Error> {
    Ok(fs::read(one)? == fs::read(other)?)
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    let (mut original, mut copy) = (Log::create("primary")?, Log::create("replica")?);
    thread::scope(|scope| {
        let sending = scope.spawn(|| primary(address, &mut original));
        replica(&node, &mut copy)?;
        sending.join().map_err(|_| "the primary panicked")?
    })?;
    assert!(is_equal(&original.path, &copy.path)?);
    println!("both files are equal");
    Ok(())
}

const ROUNDS: usize = 16;
const RECORDS: usize = 100;
const RECORD_BYTES: usize = 10_001;
