//! Memory that the peer was granted to write to, and the messages that arrive in it.
//!
//! The memory does not belong to its receiver: a receiver may go while the peer writes there. The
//! memory stays until the peer's end is gone too, or no more data of the peer can arrive.

use std::sync::Arc;

use ibex_protocol::transfer::{
    eager_write::{EAGER_BLOCK_HEAD_BYTES, Landed},
    rendezvous::RemoteMemory,
};
use ibex_ring::{memory::LargeBuffer, parking::Wakers};

use super::{context::Context, core::Common, receivers::Receivers};
use crate::{
    endpoint::receive_end::{LargeArrival, LargePlace},
    wire::{ArrivalMemory, GrantedBlock},
};

/// Memory that the peer may be writing to.
#[derive(Default)]
pub(crate) struct Grants {
    /// Blocks that the peer was granted ahead, by index.
    blocks: Vec<Option<BlockGrant>>,
    /// Memory for messages that no receiver wants any more, with the id of the receiving end.
    unwanted: Vec<(u32, ArrivalMemory)>,
}

struct BlockGrant {
    /// The receiving end that the block was granted for.
    end: u32,
    /// The block, which the reader of a message in it holds as well.
    block: Arc<GrantedBlock>,
}

impl Grants {
    fn place(&mut self, index: u16, end: u32, block: GrantedBlock) {
        let index = usize::from(index);
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        let block = Arc::new(block);
        self.blocks[index] = Some(BlockGrant { end, block });
    }

    pub(super) fn block(&self, index: u16) -> Option<&Arc<GrantedBlock>> {
        let granted = self.blocks.get(usize::from(index))?.as_ref()?;
        Some(&granted.block)
    }

    fn take(&mut self, index: u16) -> Option<BlockGrant> {
        self.blocks.get_mut(usize::from(index))?.take()
    }

    /// Keeps memory of a closed end that the peer may be writing to.
    pub(super) fn keep(&mut self, end: u32, granted: impl Iterator<Item = ArrivalMemory>) {
        self.unwanted.extend(granted.map(|memory| (end, memory)));
    }

    /// Frees the memory of an end whose peer is gone, because all of the peer's writes have
    /// arrived.
    pub(super) fn forget(&mut self, end: u32, context: &mut Context<'_>) {
        let is_of_end = |(granted, _): &mut (u32, ArrivalMemory)| *granted == end;
        let unwanted: Vec<_> = self.unwanted.extract_if(.., is_of_end).collect();
        let of_end = |block: &mut Option<BlockGrant>| block.take_if(|block| block.end == end);
        let blocks: Vec<_> = self.blocks.iter_mut().filter_map(of_end).collect();
        if !unwanted.is_empty() || !blocks.is_empty() {
            context.leave((unwanted, blocks));
        }
    }

    /// Returns the memory of the node that no receiver reads, once no more data of the peer can
    /// arrive. The peer may have been in the middle of writing to it. Regions go back to their ends
    /// behind the turn.
    pub(super) fn withdraw(
        &mut self,
        context: &mut Context<'_>,
    ) -> impl Iterator<Item = LargeBuffer> {
        let blocks = self.blocks.drain(..).flatten();
        let blocks = blocks.filter_map(|granted| Some(Arc::into_inner(granted.block)?.withdraw()));
        let mut unwanted = Vec::new();
        for (_, memory) in self.unwanted.drain(..) {
            match memory {
                ArrivalMemory::Lease(lease) => unwanted.push(lease.withdraw()),
                ArrivalMemory::Region(region) => context.leave(region),
            }
        }
        blocks.chain(unwanted)
    }
}

impl Grants {
    /// Grants blocks to the sender of a receiving end.
    pub(crate) fn grant(
        &mut self,
        end: u32,
        blocks: Vec<(GrantedBlock, RemoteMemory)>,
        receivers: &Receivers,
        common: &mut Common,
        context: &mut Context<'_>,
    ) {
        let is_there = receivers.ends.contains(end);
        for (block, memory) in blocks {
            // The session may have resumed over another wire since the block was leased.
            let is_granted = is_there && block.is_granted_on(&common.shared.frame_path);
            let index = is_granted.then(|| common.session.grant_eager_block(end, memory));
            match index.flatten() {
                Some(index) => self.place(index, end, block),
                None => context.leave(block),
            }
        }
    }

    /// Takes back a block that the peer does not need any more.
    pub(super) fn returned(
        &mut self,
        index: u16,
        receivers: &mut Receivers,
        context: &mut Context<'_>,
    ) {
        let Some(granted) = self.take(index) else {
            return;
        };
        if let Some(receiver) = receivers.ends.get_mut(granted.end) {
            receiver.has_eager_blocks = false;
        }
        // No guard reads the block, because all of its messages were released.
        context.leave(granted);
    }

    /// Hands on a message that lies complete in its block.
    pub(super) fn landed(
        &self,
        landed: Landed,
        time: u64,
        receivers: &Receivers,
        common: &Common,
        wakers: &mut Wakers,
    ) {
        let Landed {
            end,
            sequence,
            length,
            index,
        } = landed;
        if let Some(receiver) = receivers.ends.get(end)
            && let Some(block) = self.block(index)
        {
            let arrival = LargeArrival {
                sequence,
                length,
                time,
                place: LargePlace::Landed(block.clone()),
            };
            receiver.large_came(arrival, wakers);
            common.shared.counters.landed.add(1);
        }
    }
}

const _: () = assert!(
    EAGER_BLOCK_HEAD_BYTES.is_multiple_of(64),
    "messages are aligned"
);
