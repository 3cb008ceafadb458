//! Blocks that a node has granted ahead, with the messages written to them.
#![forbid(unsafe_code)]

use std::collections::BTreeMap;

use ibex_protocol::transfer::{
    eager_write::{EAGER_BLOCK_BYTES, Landed, lands},
    rendezvous::RemoteMemory,
};

use super::Node;
use crate::{
    Checked, ensure,
    ledger::{Ledger, Message},
};

/// The blocks by address. No address is used twice, so that a write to a returned block is
/// detected.
#[derive(Debug, Default)]
pub(super) struct EagerBlocks {
    blocks: BTreeMap<u64, Block>,
    /// The addresses of the blocks that the session knows by number.
    by_index: BTreeMap<u16, u64>,
    granted: u64,
}

#[derive(Debug)]
struct Block {
    end: u32,
    bytes: Vec<u8>,
    /// The message that an application may read in the block.
    holds: Option<Message>,
}

impl EagerBlocks {
    /// Places the bytes of a write.
    pub(super) fn place(&mut self, address: u64, bytes: &[u8], is_first: bool) -> Checked {
        let block = self.blocks.get_mut(&address);
        let block = block.ok_or_else(|| format!("block {address} is written, which is gone"))?;
        ensure!(
            block.holds.is_none(),
            "block {address} is written while {:?} is read there",
            block.holds
        );
        if is_first {
            block.bytes.clear();
        }
        block.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Checks the blocks when the sender learns that messages up to `released` of an end are
    /// released.
    pub(super) fn check_released(&mut self, end: u32, released: u64) -> Checked {
        let of_end = self.blocks.values_mut().filter(|block| block.end == end);
        for block in of_end {
            block.holds.take_if(|message| message.sequence <= released);
        }
        Ok(())
    }

    /// Takes back a block that the peer returns.
    pub(super) fn returned(&mut self, index: u16) -> Checked {
        let address = self.by_index.remove(&index).ok_or("no block comes back")?;
        let block = self.blocks.remove(&address).ok_or("no block comes back")?;
        ensure!(
            block.holds.is_none(),
            "a block comes back with {:?}",
            block.holds
        );
        Ok(())
    }

    /// Forgets all blocks that hold no message, since the peer has none any more. Messages are
    /// still read to their end.
    pub(super) fn grants_are_over(&mut self) {
        self.blocks.retain(|_, block| block.holds.is_some());
        self.by_index.clear();
    }

    /// Forgets an end that is gone on both sides.
    pub(super) fn forget(&mut self, end: u32) {
        self.blocks.retain(|_, block| block.end != end);
        let blocks = &self.blocks;
        self.by_index
            .retain(|_, address| blocks.contains_key(address));
    }
}

impl Node {
    /// Grants blocks to the sender of a channel with messages of medium size. Their number follows
    /// from the sequence, so that nothing is drawn.
    pub(super) fn grant_eager_blocks(&mut self, end: u32, sequence: u64, length: u64) {
        if !self.wires.writes || !lands(length) {
            return;
        }
        for _ in 0..sequence % 4 {
            let address = self.eager_blocks.granted + 1;
            let memory = RemoteMemory::new(address, 0, EAGER_BLOCK_BYTES as u64);
            if let Some(index) =
                memory.and_then(|memory| self.session.grant_eager_block(end, memory))
            {
                self.eager_blocks.granted = address;
                self.eager_blocks.by_index.insert(index, address);
                self.eager_blocks.blocks.insert(
                    address,
                    Block {
                        end,
                        bytes: Vec::new(),
                        holds: None,
                    },
                );
            }
        }
    }

    /// Takes messages that arrived in blocks.
    pub(super) fn take_landed(&mut self, ledger: &Ledger) -> Checked {
        while let Some(landed) = self.session.eager_blocks.poll_landed() {
            let Landed {
                end,
                sequence,
                length,
                index,
            } = landed;
            let receiver = self
                .receivers
                .get(&end)
                .ok_or("a message for no receiver")?;
            let message = receiver.message(sequence);
            let address = self.eager_blocks.by_index.get(&index);
            let block = address.and_then(|address| self.eager_blocks.blocks.get_mut(address));
            let block = block.ok_or_else(|| format!("{message:?} is in no block"))?;
            ensure!(
                block.end == end,
                "{message:?} is in the block of another end"
            );
            ensure!(
                block.bytes.len() == length,
                "of {message:?}, {} of {length} bytes are written",
                block.bytes.len()
            );
            ledger.check(message, length as u64, 0, &block.bytes)?;
            block.holds = Some(message);
            self.counts.landed += 1;
        }
        Ok(())
    }
}
