//! A log with three replicas: each entry is encoded once, sent to all, and committed when two have
//! it. One replica dies on the way, and the log continues with the others.
//!
//! `cargo run --release --example group`

use std::{sync::mpsc, thread, time::Duration};

use ibex::{Address, Node, group::WhenFull};

#[ibex::message]
struct Entry {
    number: u64,
    data: Vec<u8>,
}

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Keeps and acknowledges entries until the log ends, or until `dies_after` of them, when this
/// replica dies.
fn replicate(at: &mpsc::Sender<Address>, dies_after: u64) -> Result<u64, Error> {
    let node = Node::listen("127.0.0.1:0")?;
    at.send(node.local_addr().ok_or("it listens")?)?;
    let mut log = node.accept()?.receiver::<Entry>("log")?;
    let mut kept = 0;
    while kept < dies_after
        && let Some(entry) = log.next()?
    {
        kept += 1;
        assert_eq!(entry.number, kept);
        entry.ack(); // a real one writes it to disk before
    }
    Ok(kept)
}

fn main() -> Result<(), Error> {
    let (at, addresses) = mpsc::channel();
    let replicas = [ENTRIES / 2, u64::MAX, u64::MAX].map(|dies_after| {
        let at = at.clone();
        thread::spawn(move || replicate(&at, dies_after))
    });

    let node = Node::client()?;
    // The group drops a replica that takes nothing for a second.
    let slow = WhenFull::DropAfter(Duration::from_secs(1));
    let mut log = node.group::<Entry>("log")?.when_full(slow);
    for address in addresses.iter().take(replicas.len()) {
        log.join(&node.connect(address)?)?;
    }
    for number in 1..=ENTRIES {
        let data = vec![number as u8; 100];
        let sequence = log.send(&Entry { number, data })?;
        log.wait_acked(sequence, QUORUM)?; // whichever two are first
        while let Some(lost) = log.next_lost() {
            println!("at entry {number}: {lost}");
        }
    }
    println!("{QUORUM} replicas have {} entries", log.acked(QUORUM));
    log.close();

    for replica in replicas {
        let kept = replica.join().map_err(|_| "a replica panicked")??;
        println!("a replica kept {kept}");
    }
    Ok(())
}

const ENTRIES: u64 = 10_000;
const QUORUM: usize = 2;
