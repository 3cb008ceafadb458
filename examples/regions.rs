//! Regions: payloads in memory of the program's own. A primary ships the segments of its log from two
//! regions that take turns, and its backup serves blocks from the region in which it keeps the log.
//!
//! `cargo run --release --example regions`

use std::{thread, time::Duration};

use ibex::prelude::*;
use ibex::{Address, Node, Peer, Raw, Region};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Fills one region while the other is on its way, and sends each segment with its place in the log.
fn ship(backup: &Peer) -> Result<(), Error> {
    let mut segments = backup.channel("segments").codec::<Raw>().sender::<[u8]>()?;
    let mut regions = [
        Region::zeroed(SEGMENT_BYTES)?,
        Region::zeroed(SEGMENT_BYTES)?,
    ];
    for number in 0..SEGMENTS {
        let region = &mut regions[number % 2];
        // The backup may read the segment before it here still: over shared memory, in this memory.
        while !region.wait_free(Duration::from_secs(10)) {
            println!("the backup has not released segment {}", number - 2);
        }
        let segment = region.get_mut().ok_or("this thread makes all slices")?;
        segment.fill(number as u8); // what a log would write
        let offset = (number * SEGMENT_BYTES) as u64;
        segments.send_region((&offset.to_le_bytes(), &region.slice(..)))?;
    }
    segments.close()?;
    println!(
        "{SEGMENTS} segments of {} MiB went over {}",
        SEGMENT_BYTES >> 20,
        backup.fabric()
    );
    Ok(())
}

/// Asks for blocks of the log, and reads each where it arrives.
fn read(backup: &Peer) -> Result<(), Error> {
    let blocks = backup.channel("blocks").codec::<Raw>();
    let blocks = blocks.caller::<[u8], [u8]>()?;
    for start in (0..SEGMENTS * SEGMENT_BYTES).step_by(BLOCK_BYTES) {
        let block = blocks.call(&(start as u64).to_le_bytes())?;
        let number = start / SEGMENT_BYTES;
        assert!(block.iter().all(|&byte| byte == number as u8));
    }
    println!(
        "all blocks of {} MiB are as they were written",
        BLOCK_BYTES >> 20
    );
    Ok(())
}

/// Stores what the primary ships.
fn store(primary: &Peer, log: &mut [u8]) -> Result<(), Error> {
    let mut segments = primary
        .channel("segments")
        .codec::<Raw>()
        .receiver::<[u8]>()?;
    while let Some(segment) = segments.next()? {
        let offset = u64::from_le_bytes(segment.header().try_into()?) as usize;
        log[offset..][..segment.len()].copy_from_slice(&segment);
        segment.ack();
    }
    Ok(())
}

/// Sends blocks from where the log lies: one region, since a peer maps few of them.
fn serve(node: &Node, log: &Region) -> Result<(), Error> {
    let blocks = node.channel("blocks").codec::<Raw>();
    let mut blocks = blocks.service::<[u8], [u8]>()?;
    while let Some(request) = blocks.next()? {
        let start = u64::from_le_bytes(request[..].try_into()?) as usize;
        if start > log.len() - BLOCK_BYTES {
            request.fail(OUTSIDE, "the log has no such block");
            continue;
        }
        request.reply_region(&log.slice(start..start + BLOCK_BYTES))?;
    }
    Ok(())
}

fn primary(backup: Address) -> Result<(), Error> {
    let node = Node::client()?;
    let backup = node.connect(backup)?;
    ship(&backup)?;
    read(&backup)
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    let mut log = Region::zeroed(SEGMENTS * SEGMENT_BYTES)?;
    let primary = thread::spawn(move || primary(address));
    store(&node.accept()?, log.get_mut().ok_or("it has no slice")?)?;
    thread::scope(|scope| {
        let serving = scope.spawn(|| serve(&node, &log));
        let done = primary.join();
        println!("{}", node.close(Duration::from_secs(10)));
        serving.join().map_err(|_| "the backup panicked")??;
        done.map_err(|_| "the primary panicked")?
    })
}

const SEGMENT_BYTES: usize = 4 << 20;
const SEGMENTS: usize = 16;
const BLOCK_BYTES: usize = 2 << 20;
const OUTSIDE: u32 = 404;
