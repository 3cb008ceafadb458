//! What arrives for one end: parts of large messages, and memory for those that it sends.
#![forbid(unsafe_code)]

use super::{EndChannel, EndTable, LocalEnd, PeerMisbehaved, ReceiveChannel};
use crate::{
    format::{control::Role, frame::FrameHeader},
    session::Arrival,
    transfer::{
        eager_write::EagerBlockId,
        rendezvous::{RemoteMemory, Way},
    },
};

impl EndTable {
    /// Returns our receiving end to which the peer's sending end `channel` sends. `None` if the end
    /// was closed here: a frame that still comes was sent before the peer learned of the close.
    #[inline]
    pub(crate) fn addressee(
        &mut self,
        channel: u32,
    ) -> Result<Option<(u32, &mut ReceiveChannel)>, PeerMisbehaved> {
        match self.paired_entry(Role::Sender, channel) {
            Some((
                end,
                LocalEnd {
                    closed_here,
                    closed_there: false,
                    state: EndChannel::Receiver(Some(receiver)),
                    ..
                },
            )) => Ok((!*closed_here).then_some((end, receiver))),
            _ => Err(PeerMisbehaved::UnknownChannel { channel }),
        }
    }

    /// Finds the place of a chunk.
    pub(crate) fn handle_chunk(&mut self, header: &FrameHeader) -> Result<Arrival, PeerMisbehaved> {
        let Some((end, channel)) = self.addressee(header.channel)? else {
            return Ok(Arrival::Unwanted);
        };
        let (chunk, complete) = channel
            .large
            .place(header.sequence, header.body_bytes())
            .ok_or(PeerMisbehaved::UngrantedChunk)?;
        Ok(Arrival::Chunk {
            end,
            chunk,
            complete,
        })
    }

    /// Takes in that a large message is written into its memory.
    pub(crate) fn handle_written(
        &mut self,
        header: &FrameHeader,
    ) -> Result<Arrival, PeerMisbehaved> {
        let Some((end, channel)) = self.addressee(header.channel)? else {
            return Ok(Arrival::Unwanted);
        };
        let sequence = channel
            .large
            .written(header.sequence)
            .filter(|_| header.body_bytes() == 0)
            .ok_or(PeerMisbehaved::UngrantedWrite)?;
        Ok(Arrival::Written { end, sequence })
    }

    /// Takes in a grant for a large message of sending end `channel`.
    pub(crate) fn handle_grant(
        &mut self,
        channel: u32,
        sequence: u64,
        way: Way,
        allowed: u64,
    ) -> Result<(), PeerMisbehaved> {
        // A grant for an end that is gone here was under way when the end went.
        let Some(sender) = self.sender_mut(channel) else {
            return Ok(());
        };
        if let Way::Memory(memory) = way
            && let Some(length) = sender.large.length_of(sequence)
            && memory.bytes() != length
        {
            return Err(PeerMisbehaved::GrantedLength {
                sequence,
                length,
                granted: memory.bytes(),
            });
        }
        let is_due = sender.large.decline(sequence);
        sender
            .large
            .grant(sequence, way, allowed)
            .filter(|_| is_due)
            .ok_or(PeerMisbehaved::UnwantedGrant { sequence })?;
        self.turns.offers_of(channel);
        self.mark_ready(channel);
        Ok(())
    }

    /// Takes in that the peer has read a large message of sending end `channel`.
    pub(crate) fn handle_taken(
        &mut self,
        channel: u32,
        sequence: u64,
    ) -> Result<(), PeerMisbehaved> {
        // The word of a message of an end that is gone here was under way when the end went.
        let Some(sender) = self.sender_mut(channel) else {
            return Ok(());
        };
        if !sender.large.taken(sequence) {
            return Err(PeerMisbehaved::UnofferedTaken { sequence });
        }
        self.turns.offers_of(channel);
        Ok(())
    }

    /// Takes in a block for messages of sending end `channel`.
    pub(crate) fn handle_granted_eager_block(
        &mut self,
        channel: u32,
        id: EagerBlockId,
        memory: RemoteMemory,
    ) -> Result<(), PeerMisbehaved> {
        // The peer gets the block of an end that is gone here back when the end goes there.
        let Some(sender) = self.sender_mut(channel) else {
            return Ok(());
        };
        match sender.eager_blocks.add(id, memory) {
            true => Ok(()),
            false => Err(PeerMisbehaved::TooManyEagerBlocks { channel }),
        }
    }
}
