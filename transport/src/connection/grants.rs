//! Memory that the peer was granted to write to, and the messages that come in it.
//!
//! It is not its receiver's: a receiver may go while the peer writes there, and its memory stays
//! as it is until the peer's end is gone too, or nothing of the peer comes any more.

use std::sync::Arc;

use ibex_protocol::transfer::{
    eager_write::{LANDING_HEAD_BYTES, LANDINGS_PER_CHANNEL, Landed},
    rendezvous::RemoteMemory,
};
use ibex_ring::{
    memory::{LargeBuffer, LargeLease},
    parking::Wakers,
};

use super::{core::Common, receivers::Receivers};
use crate::{
    endpoint::receive_end::{LargeArrival, LargePlace},
    wire::GrantedBlock,
};

/// Memory that the peer may be writing to.
#[derive(Default)]
pub(crate) struct Grants {
    /// Blocks that it was granted ahead, by index.
    blocks: Vec<Option<Granted>>,
    /// Memory for messages that nobody wants any more, by the receiving end.
    unwanted: Vec<(u32, LargeLease)>,
}

struct Granted {
    /// The receiving end that it was granted for.
    end: u32,
    /// The block, which the reader of a message there holds as well.
    block: Arc<GrantedBlock>,
}

impl Grants {
    fn place(&mut self, index: u16, end: u32, block: GrantedBlock) {
        let index = usize::from(index);
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        let block = Arc::new(block);
        self.blocks[index] = Some(Granted { end, block });
    }

    pub(super) fn block(&self, index: u16) -> Option<&Arc<GrantedBlock>> {
        let granted = self.blocks.get(usize::from(index))?.as_ref()?;
        Some(&granted.block)
    }

    fn take(&mut self, index: u16) -> Option<Granted> {
        self.blocks.get_mut(usize::from(index))?.take()
    }

    /// Keeps memory that the peer may be writing to, of an end that nobody has any more.
    pub(super) fn keep(&mut self, end: u32, granted: impl Iterator<Item = LargeLease>) {
        self.unwanted.extend(granted.map(|memory| (end, memory)));
    }

    /// Frees the memory of an end whose peer is gone: everything that it wrote is there.
    pub(super) fn forget(&mut self, end: u32) {
        self.unwanted.retain(|(granted, _)| *granted != end);
        for granted in &mut self.blocks {
            granted.take_if(|granted| granted.end == end);
        }
    }

    /// Returns the memory that nobody reads, as nothing of the peer comes any more: it may have
    /// been in the middle of writing there.
    pub(super) fn withdraw(&mut self) -> impl Iterator<Item = LargeBuffer> {
        let blocks = self.blocks.drain(..).flatten();
        let blocks = blocks.filter_map(|granted| Some(Arc::into_inner(granted.block)?.withdraw()));
        let unwanted = self.unwanted.drain(..);
        blocks.chain(unwanted.map(|(_, memory)| memory.withdraw()))
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
        // The session may have resumed over another wire since they were leased.
        let route = &common.shared.carrier;
        let granted = blocks
            .into_iter()
            .filter(|(block, _)| block.is_granted_on(route));
        for (block, memory) in granted.take(LANDINGS_PER_CHANNEL) {
            if let Some(index) = common.session.grant_landing(end, memory) {
                self.place(index, end, block);
            }
        }
    }

    /// The peer needs a block no more.
    pub(super) fn returned(&mut self, index: u16, receivers: &mut Receivers) {
        // It goes here, as nobody reads there: all of its messages were released.
        if let Some(granted) = self.take(index)
            && let Some(receiver) = receivers.ends.get_mut(granted.end)
        {
            receiver.has_landings = false;
        }
    }

    /// A message lies whole in its block.
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
