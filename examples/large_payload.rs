//! Large payloads without a copy: `loan` lends the memory that is sent from, and the receiver
//! reads the payload where it arrived.
//!
//! `cargo run --release --example large_payload`

use std::{thread, time::Instant};

use ibex::{Address, Node, Raw};

type Error = Box<dyn std::error::Error + Send + Sync>;

fn produce(consumer: Address) -> Result<(), Error> {
    let node = Node::client()?;
    let frames = node.connect(consumer)?.channel("frames").codec::<Raw>();
    let mut frames = frames.sender::<[u8]>()?;
    for number in 0..FRAMES {
        let mut frame = frames.loan(FRAME_BYTES)?;
        // A camera, a file or a compressor would write here.
        frame.fill(number as u8);
        frame.send()?;
    }
    frames.close()?;
    Ok(())
}

fn main() -> Result<(), Error> {
    let node = Node::listen("127.0.0.1:0")?;
    let address = node.local_addr().ok_or("it listens")?;
    let producer = thread::spawn(move || produce(address));
    let peer = node.accept()?;
    let mut frames = peer.channel("frames").codec::<Raw>().receiver::<[u8]>()?;
    let start = Instant::now();
    let mut number = 0;
    while let Some(frame) = frames.next()? {
        assert_eq!((frame.len(), frame[0]), (FRAME_BYTES, number as u8));
        assert_eq!(frame[FRAME_BYTES - 1], number as u8);
        number += 1;
    }
    assert_eq!(number, FRAMES);
    let (bytes, seconds) = (FRAMES * FRAME_BYTES, start.elapsed().as_secs_f64());
    println!(
        "{FRAMES} frames of {} MiB over {} in {seconds:.2} s, {:.1} GB/s",
        FRAME_BYTES >> 20,
        peer.fabric(),
        bytes as f64 / seconds / 1e9,
    );
    producer.join().map_err(|_| "the producer panicked")??;
    Ok(())
}

const FRAME_BYTES: usize = 8 << 20;
const FRAMES: usize = 100;
