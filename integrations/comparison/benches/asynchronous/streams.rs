//! Bulk data in writes of 64 KiB: a byte stream, or a channel with the raw codec. The answering
//! process sends, and the measuring one compares every byte.

use ibex::{Peer, Raw, Receiver, io::Stream};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt};

use crate::{
    end::{Link, Session},
    laps::{self, Exchange},
    order::{Order, Work},
    pattern::Pattern,
    session::Failure,
};

pub(crate) async fn measure(link: Link, order: Order) -> Result<f64, Failure> {
    let length = order.work.exchange_bytes();
    let pattern = Pattern::new();
    let session = session(link)?;
    match order.work {
        Work::RawChannel => {
            let blocks = session.peer.channel(BLOCKS).codec::<Raw>().receiver()?;
            laps::rate(Blocks { blocks, pattern }, order.count, length).await
        }
        work => {
            let bytes = Bytes {
                stream: session.connect_stream().await?,
                block: vec![0; length],
                is_read_in_place: work == Work::StreamInPlace,
                pattern,
            };
            laps::rate(bytes, order.count, length).await
        }
    }
}

pub(crate) async fn answer(link: Link, order: Order) -> Result<(), Failure> {
    let count = laps::warm_up_count(order.count) + order.count;
    let block = Pattern::new().bytes(order.work.exchange_bytes());
    let session = session(link)?;
    match order.work {
        Work::RawChannel => send_blocks(&session.peer, &block, count).await,
        _ => write_blocks(session.accept_stream().await?, &block, count).await,
    }
}

fn session(link: Link) -> Result<Session, Failure> {
    match link {
        Link::Ibex(session) => Ok(session),
        Link::Socket(_) => Err("streams are compared with channels".into()),
    }
}

struct Bytes {
    stream: Stream,
    block: Vec<u8>,
    is_read_in_place: bool,
    pattern: Pattern,
}

impl Exchange for Bytes {
    async fn exchange(&mut self, _: u64) -> Result<(), Failure> {
        let mut came = 0;
        while came < self.block.len() {
            came += match self.is_read_in_place {
                true => self.compare_in_place(came).await?,
                false => self.read(came).await?,
            };
        }
        Ok(())
    }
}

impl Bytes {
    /// Reads into the block behind the `came` bytes that it has.
    async fn read(&mut self, came: usize) -> Result<usize, Failure> {
        let rest = &mut self.block[came..];
        let length = self.stream.read(rest).await?;
        self.pattern.verify(came, &rest[..length])?;
        unless_over(length)
    }

    async fn compare_in_place(&mut self, came: usize) -> Result<usize, Failure> {
        let piece = self.stream.fill_buf().await?;
        let length = piece.len().min(self.block.len() - came);
        self.pattern.verify(came, &piece[..length])?;
        self.stream.consume(length);
        unless_over(length)
    }
}

fn unless_over(length: usize) -> Result<usize, Failure> {
    match length {
        0 => Err("the stream ended early".into()),
        length => Ok(length),
    }
}

async fn write_blocks(mut stream: Stream, block: &[u8], count: u64) -> Result<(), Failure> {
    for _ in 0..count {
        stream.write_all(block).await?;
    }
    Ok(stream.shutdown().await?)
}

struct Blocks {
    blocks: Receiver<[u8], Raw>,
    pattern: Pattern,
}

impl Exchange for Blocks {
    async fn exchange(&mut self, _: u64) -> Result<(), Failure> {
        let block = self.blocks.recv_async().await?;
        self.pattern.verify(0, &block)
    }
}

async fn send_blocks(peer: &Peer, block: &[u8], count: u64) -> Result<(), Failure> {
    let mut blocks = peer.channel(BLOCKS).codec::<Raw>().sender::<[u8]>()?;
    for _ in 0..count {
        blocks.send_async(block).await?;
    }
    Ok(())
}

const BLOCKS: &str = "blocks";
