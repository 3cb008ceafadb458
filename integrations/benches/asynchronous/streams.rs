//! Bulk data in writes of 64 KiB: a byte stream, or a channel with the raw codec. The answering
//! process sends, and the measuring one compares every byte.

use ibex::{Peer, Raw, Receiver};

use crate::{
    laps::{self, Exchange},
    order::{Order, Work},
    pattern::Pattern,
    session::{Failure, Link, Session},
};

pub(crate) async fn measure(link: Link, order: Order) -> Result<f64, Failure> {
    let length = order.work.exchange_bytes();
    let pattern = Pattern::new();
    match (order.work, link) {
        (Work::RawChannel, Link::Ibex(Session { peer, .. })) => {
            let blocks = peer.channel(BLOCKS).codec::<Raw>().receiver()?;
            laps::rate(Blocks { blocks, pattern }, order.count, length).await
        }
        _ => Err("streams over ibex need byte streams".into()),
    }
}

pub(crate) async fn answer(link: Link, order: Order) -> Result<(), Failure> {
    let count = laps::warm_up_count(order.count) + order.count;
    let block = Pattern::new().bytes(order.work.exchange_bytes());
    match (order.work, link) {
        (Work::RawChannel, Link::Ibex(Session { peer, .. })) => {
            send_blocks(&peer, &block, count).await
        }
        _ => Err("streams over ibex need byte streams".into()),
    }
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
