//! Blocks that the peer was granted ahead, and the messages that come in them.
//!
//! They are the pair's and not their receiver's: a receiver may go while the peer writes
//! there, and its blocks stay as they are until the peer's end is gone too.

use std::sync::Arc;

use ibex_protocol::transfer::{
    eager_write::{LANDING_HEAD_BYTES, LANDINGS_PER_CHANNEL, Landed, lands},
    rendezvous::RemoteMemory,
};
use ibex_ring::memory::LargeBuffer;

use super::{Link, Wires};
use crate::{
    connection::{Context, MemoryWanted, Purpose},
    endpoint::receive_end::{LargeArrival, LargePlace},
    rdma::LandingBlock,
};

/// The blocks of a pair, by index.
#[derive(Default)]
pub(super) struct Landings {
    blocks: Vec<Option<Granted>>,
}

struct Granted {
    /// The receiving end.
    end: u32,
    /// Whoever reads a message there has it too.
    block: Arc<LandingBlock>,
}

impl Landings {
    fn place(&mut self, index: u16, end: u32, block: LandingBlock) {
        let index = usize::from(index);
        if self.blocks.len() <= index {
            self.blocks.resize_with(index + 1, || None);
        }
        let block = Arc::new(block);
        self.blocks[index] = Some(Granted { end, block });
    }

    pub(super) fn block(&self, index: u16) -> Option<&Arc<LandingBlock>> {
        let granted = self.blocks.get(usize::from(index))?.as_ref()?;
        Some(&granted.block)
    }

    fn take(&mut self, index: u16) -> Option<Granted> {
        self.blocks.get_mut(usize::from(index))?.take()
    }

    /// The peer's end is gone.
    pub(super) fn forget(&mut self, end: u32) {
        for granted in &mut self.blocks {
            granted.take_if(|granted| granted.end == end);
        }
    }

    /// Nothing of the peer comes any more. Gives what nobody reads: the peer may have been
    /// in the middle of writing there.
    pub(super) fn withdraw(&mut self) -> impl Iterator<Item = LargeBuffer> {
        let granted = self.blocks.drain(..).flatten();
        granted.filter_map(|granted| Some(Arc::into_inner(granted.block)?.withdraw()))
    }
}

impl Link {
    /// A message of `length` waits for its memory: if such may come in blocks, the next
    /// ones shall. As many as may be are got off the turn; where they are there already,
    /// the sender hears which are its own again.
    pub(super) fn want_landings(&mut self, end: u32, length: u64, context: &mut Context<'_>) {
        let Some(receiver) = self.receivers.get_mut(end) else {
            return;
        };
        if !lands(length) {
            return;
        }
        if receiver.has_landings {
            receiver.end.answer_ask();
            self.session.released(end, &receiver.end.counters());
        } else if self.shared.grants_landings() {
            receiver.has_landings = true;
            context.wanted.push(MemoryWanted {
                session: self.shared.clone(),
                end,
                purpose: Purpose::Landings,
            });
        }
    }

    /// Grants blocks to the sender of a receiving end.
    pub(crate) fn grant_landings(&mut self, end: u32, blocks: Vec<(LandingBlock, RemoteMemory)>) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        if !self.receivers.contains(end) {
            return;
        }
        // The session may have resumed over another device since they were leased.
        let site = pair.site().clone();
        let ours = blocks.into_iter().filter(|(block, _)| block.is_of(&site));
        for (block, memory) in ours.take(LANDINGS_PER_CHANNEL) {
            if let Some(index) = self.session.grant_landing(end, memory) {
                pair.landings.place(index, end, block);
            }
        }
    }

    /// The peer needs a block no more.
    pub(super) fn landing_returned(&mut self, index: u16) {
        let Wires::Pair(pair) = &mut self.wires else {
            return;
        };
        // It goes here, as nobody reads there: all of its messages were released.
        if let Some(granted) = pair.landings.take(index)
            && let Some(receiver) = self.receivers.get_mut(granted.end)
        {
            receiver.has_landings = false;
        }
    }

    /// A message lies whole in its block.
    pub(super) fn landed(&mut self, landed: Landed, time: u64, context: &mut Context<'_>) {
        let Landed {
            end,
            sequence,
            length,
            index,
        } = landed;
        let Wires::Pair(pair) = &self.wires else {
            return;
        };
        if let Some(receiver) = self.receivers.get(end)
            && let Some(block) = pair.landings.block(index)
        {
            let arrival = LargeArrival {
                sequence,
                length,
                time,
                place: LargePlace::Landed(block.clone()),
            };
            receiver.large_came(arrival, context);
            self.shared.counters.landed.add(1);
        }
    }
}

const _: () = assert!(
    LANDING_HEAD_BYTES.is_multiple_of(64),
    "messages are aligned"
);
