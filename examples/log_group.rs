//! A log that the program keeps, with three replicas: an entry is committed when two have it. One
//! replica stops, comes back with what it has, and is sent what it lacks while the others go on.
//!
//! `cargo run --release --example log_group`

use std::thread;

use ibex::prelude::*;
use ibex::{
    Node, Peer,
    log::{LogAnswer, LogGroup, LogSent, LogSource, LogTurn},
};

#[ibex::message]
struct Entry {
    number: u64,
    data: Vec<u8>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// The leader's log. A real one is on disk.
struct Log(Vec<Entry>);

impl LogSource<Entry> for Log {
    fn end(&self) -> u64 {
        self.0.len() as u64
    }

    /// Learns how many entries a replica has, and opens the channel.
    fn resume(&mut self, replica: Peer) -> LogAnswer<Entry> {
        Box::pin(async move {
            let mut position = replica.receiver::<u64>("position")?;
            let kept = position.recv_async().await?.to_native();
            Ok((replica.sender("log")?, kept))
        })
    }

    fn send_next(&mut self, at: u64, turn: LogTurn<'_, Entry>) -> Result<LogSent, Error> {
        Ok(turn.send(&self.0[at as usize], at + 1))
    }
}

/// A replica that has `kept` entries. It keeps and acknowledges those that follow until the log
/// ends, or until it has `stops_at` of them, when it stops. Returns how many it has.
fn replicate(node: &Node, mut kept: u64, stops_at: u64) -> Result<u64, Error> {
    let leader = node.accept()?;
    let mut log = leader.receiver::<Entry>("log")?;
    leader.sender::<u64>("position")?.send(&kept)?;
    while kept < stops_at
        && let Some(entry) = log.next()?
    {
        kept += 1;
        assert_eq!(entry.number, kept);
        entry.ack(); // a real one writes it to disk before
    }
    Ok(kept)
}

/// Appends entries up to this number. Two replicas have each of them when the next one follows.
fn append(log: &mut Log, replicas: &mut LogGroup<Entry>, until: u64) -> Result<(), Error> {
    for number in log.end() + 1..=until {
        let data = vec![number as u8; 100];
        log.0.push(Entry { number, data });
        replicas.wait_acked(log, number, QUORUM)?; // whichever two are first
        while let Some(lost) = replicas.next_lost() {
            println!("{lost}"); // its log is another one, say
        }
    }
    println!("{QUORUM} replicas have {until} entries:");
    for replica in replicas.members() {
        println!("    {replica}");
    }
    Ok(())
}

fn main() -> Result<(), Error> {
    let (mut addresses, mut running) = (Vec::new(), Vec::new());
    for stops_at in [ENTRIES / 3, u64::MAX, u64::MAX] {
        let node = Node::listen("127.0.0.1:0")?;
        addresses.push(node.local_addr().ok_or("it listens")?);
        running.push(thread::spawn(move || replicate(&node, 0, stops_at)));
    }

    let node = Node::client()?;
    let peers = node.keep_connected(addresses.clone())?;
    let (mut log, mut replicas) = (Log(Vec::new()), LogGroup::new());
    for address in &addresses {
        replicas.join_at(&peers, address);
    }
    append(&mut log, &mut replicas, ENTRIES / 3)?;
    replicas.wait_acked(&mut log, ENTRIES / 3, addresses.len())?;

    let stopped = running.remove(0).join();
    let kept = stopped.map_err(|_| "a replica panicked")??;
    println!("a replica has stopped, and keeps {kept} entries");
    append(&mut log, &mut replicas, ENTRIES / 3 * 2)?;

    println!("it comes back at its address");
    let back = Node::listen(addresses[0])?;
    running.push(thread::spawn(move || replicate(&back, kept, u64::MAX)));
    append(&mut log, &mut replicas, ENTRIES)?;
    replicas.wait_acked(&mut log, ENTRIES, addresses.len())?;
    drop(replicas); // the log ends

    for replica in running {
        let kept = replica.join().map_err(|_| "a replica panicked")??;
        println!("a replica has {kept} entries");
    }
    Ok(())
}

const ENTRIES: u64 = 9_000;
const QUORUM: usize = 2;
