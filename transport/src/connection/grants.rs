//! Memory that the peer was granted to write to, and the messages that arrive in it.
//!
//! The memory does not belong to its receiver: a receiver may go while the peer writes there. The
//! memory stays until the peer's end is gone too, or no more data of the peer can arrive.

use std::sync::Arc;

use ibex_protocol::transfer::{
    eager_write::{LANDING_HEAD_BYTES, LANDINGS_PER_CHANNEL, Landed},
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
        if !unwanted.is_empty() {
            // Freeing a region takes long.
            context.leftovers.push(Box::new(unwanted));
        }
        for granted in &mut self.blocks {
            granted.take_if(|granted| granted.end == end);
        }
    }

    /// Returns the memory that no receiver reads, once no more data of the peer can arrive. The
    /// peer may have been in the middle of writing to it.
    pub(super) fn withdraw(&mut self) -> impl Iterator<Item = LargeBuffer> {
        let blocks = self.blocks.drain(..).flatten();
        let blocks = blocks.filter_map(|granted| Some(Arc::into_inner(granted.block)?.withdraw()));
        let unwanted = self.unwanted.drain(..);
        blocks.chain(unwanted.filter_map(|(_, memory)| memory.withdraw()))
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
    ) {
        if !receivers.ends.contains(end) {
            return;
        }
        // The session may have resumed over another wire since the blocks were leased.
        let path = &common.shared.frame_path;
        let granted = blocks
            .into_iter()
            .filter(|(block, _)| block.is_granted_on(path));
        for (block, memory) in granted.take(LANDINGS_PER_CHANNEL) {
            if let Some(index) = common.session.grant_landing(end, memory) {
                self.place(index, end, block);
            }
        }
    }

    /// Takes back a block that the peer does not need any more.
    pub(super) fn returned(&mut self, index: u16, receivers: &mut Receivers) {
        // The block is freed here. No guard reads it, because all of its messages were released.
        if let Some(granted) = self.take(index)
            && let Some(receiver) = receivers.ends.get_mut(granted.end)
        {
            receiver.has_landings = false;
        }
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
    LANDING_HEAD_BYTES.is_multiple_of(64),
    "messages are aligned"
);
