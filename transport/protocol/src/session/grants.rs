//! Large messages of a session, and the memory that each end grants the other for them.

#[cfg(doc)]
use super::super::transfer::rendezvous::OfferStep;
#[cfg(doc)]
use super::EagerBlocks;
use super::{Arrival, EndChannel, LocalEnd, PeerMisbehaved, Session, SessionEvent};
use crate::{
    format::control::{CloseReason, Control, Role},
    transfer::rendezvous::{Chunk, Lane, LargeRead, RemoteMemory, Way},
};

impl Session {
    /// Gives the peer its blocks back, because sending end `end` rests.
    pub fn return_eager_blocks(&mut self, end: u32) {
        // After a close, the peer gets its memory back without a message.
        let Some(LocalEnd {
            state: EndChannel::Sender(sender),
            close_is_out: false,
            ..
        }) = self.ends.entries.get_mut(end)
        else {
            return;
        };
        let released = sender.counters.released;
        for eager_block in sender.eager_blocks.give_up(released) {
            self.outgoing.say(Control::ReturnEagerBlock {
                channel: end,
                eager_block,
            });
        }
    }

    /// Notes that the next large message of receiving end `end` has to wait for messages to be
    /// released.
    pub fn grant_waits(&mut self, end: u32) {
        if let Some(channel) = self.ends.receiver_mut(end) {
            channel.grant_waits();
            self.queue_changes(end);
        }
    }

    /// Grants memory for the first `bytes` of large message `sequence` of receiving end `end`: more
    /// than the last time, and in the end for all bytes.
    pub fn grant(&mut self, end: u32, sequence: u64, bytes: u64) {
        self.grant_by(end, sequence, Way::Chunks, bytes);
    }

    /// Like [`grant`](Self::grant), for memory that the peer's device writes to. The memory is the
    /// peer's until [the message is written](super::Arrival::Written), the peer's end was closed, or
    /// nothing of the peer can come any more.
    pub fn grant_memory(&mut self, end: u32, sequence: u64, memory: RemoteMemory) {
        debug_assert!(self.config.wires.writes);
        self.grant_by(end, sequence, Way::Memory(memory), memory.bytes());
    }

    /// Lets large message `sequence` of receiving end `end` be read into memory that is there for
    /// all of it. Returns false if the peer does not offer it, or no longer: it is to be granted. The
    /// memory is the device's until the message is complete, or no read can be under way any more:
    /// the [end](super::SessionEvent::Forgotten) or the wires are gone. Poll
    /// [reads](Self::poll_read) afterwards.
    pub fn read_large(&mut self, end: u32, sequence: u64, bytes: u64) -> bool {
        let channel = self.ends.receiver_mut(end);
        let is_read = channel.is_some_and(|channel| {
            channel.large.is_readable(sequence)
                && channel.large.grant(sequence, Way::Read, bytes).is_some()
        });
        if is_read {
            self.ends.turns.reads_of(end);
            self.outgoing.has_errands = true;
        }
        is_read
    }

    fn grant_by(&mut self, end: u32, sequence: u64, way: Way, bytes: u64) {
        let Some(entry) = self.ends.entries.get_mut(end) else {
            return;
        };
        let channel = entry.peer.unwrap_or_default();
        if let EndChannel::Receiver(Some(receiver)) = &mut entry.state
            && receiver.large.grant(sequence, way, bytes).is_some()
            // With the offer, what was granted is sent.
            && !receiver.large.awaits_offer(sequence)
            && let Some(control) = way.control(channel, sequence, bytes)
        {
            self.outgoing.say(control);
        }
    }

    /// Says that the peer may read large message `sequence` of sending end `end` in this memory,
    /// which it may until the offer is [revoked](OfferStep::Revoke); or that it may not.
    pub fn offer(&mut self, end: u32, sequence: u64, memory: Option<RemoteMemory>) {
        let channel = self.ends.sender_mut(end);
        if channel.is_some_and(|channel| channel.large.offer(sequence, memory).is_some()) {
            self.outgoing.say(Control::Offer {
                channel: end,
                sequence,
                memory,
            });
        }
    }

    /// Says that the peer may read large message `sequence` of sending end `end` over a rail too, with
    /// this key, as long as its offer holds. Returns false if it is offered no more.
    pub fn offer_rail(&mut self, end: u32, sequence: u64, rail: u8, key: u32) -> bool {
        let channel = self.ends.sender_mut(end);
        let is_offered = channel.is_some_and(|channel| channel.large.is_offered(sequence));
        if is_offered {
            self.outgoing.say(Control::OfferRail {
                channel: end,
                sequence,
                rail,
                key,
            });
        }
        is_offered
    }

    /// Takes in that an offer holds for a rail too. A message may have been read before that came.
    pub(super) fn handle_offered_rail(
        &mut self,
        channel: u32,
        sequence: u64,
        rail: u8,
        key: u32,
    ) -> Result<(), PeerMisbehaved> {
        if let Some((_, receiver)) = self.ends.addressee(channel)? {
            receiver.large.offer_rail(sequence, rail, key);
            self.ends.lane_is_free();
        }
        Ok(())
    }

    /// Takes in the peer's offer of a large message, or that there is none.
    pub(super) fn handle_offer(
        &mut self,
        channel: u32,
        sequence: u64,
        memory: Option<RemoteMemory>,
    ) -> Result<(), PeerMisbehaved> {
        let Some((end, receiver)) = self.ends.addressee(channel)? else {
            return Ok(());
        };
        if let (Some(length), Some(memory)) = (receiver.large.length_to_offer(sequence), memory)
            && memory.bytes() != length
        {
            return Err(PeerMisbehaved::OfferedLength {
                sequence,
                length,
                offered: memory.bytes(),
            });
        }
        let offered = receiver.large.offer(sequence, memory);
        let offered = offered.ok_or(PeerMisbehaved::UnwantedOffer { sequence })?;
        if offered.is_new {
            self.events.push_back(SessionEvent::LargeAnnounced {
                end,
                sequence,
                length: offered.length,
                is_offered: memory.is_some(),
            });
        }
        if let Some((way, bytes)) = offered.granted
            && let Some(grant) = way.control(channel, sequence, bytes)
        {
            self.outgoing.say(grant);
        }
        Ok(())
    }

    /// The next piece of the peer's messages to read, if another one may be under way and one of these
    /// lanes leads to it; the first that does is taken. Tell the
    /// session [when it is here](Self::handle_read), in the order in which pieces were polled. Drain
    /// it whenever frames are asked for.
    ///
    /// While the goodbye waits for nothing but reads, no other begins, as a peer that goes on sending
    /// would hold it back. Behind the goodbye they go on: the peer's own waits for its messages to be
    /// read.
    pub fn poll_read(&mut self, lanes: &[Lane]) -> Option<LargeRead> {
        match self.outgoing.goodbye_is_due() && self.ends.all_is_sent() {
            true => None,
            false => self.ends.next_read(lanes),
        }
    }

    /// Takes in that a piece is here which was [read](Self::poll_read), the oldest of
    /// those. The last piece of a message is followed by
    /// [`handle_large_complete`](Self::handle_large_complete).
    pub fn handle_read(&mut self, end: u32, chunk: Chunk) -> Arrival {
        self.ends.turns.reads_under_way -= 1;
        self.ends.lane_is_free();
        self.outgoing.has_errands = true;
        let Some(LocalEnd {
            closed_here,
            closing,
            state: EndChannel::Receiver(Some(channel)),
            ..
        }) = self.ends.entries.get_mut(end)
        else {
            return Arrival::Unwanted;
        };
        let complete = channel.large.read(chunk);
        if !*closed_here {
            return Arrival::Chunk {
                end,
                chunk,
                complete,
            };
        }
        if !channel.large.is_reading()
            && let Some((_, reason)) = *closing
        {
            self.say_receiver_closed(end, reason);
        }
        Arrival::Unwanted
    }

    /// Reports that a receiving end was closed. It is sent when nothing of the end is being read any
    /// more, since the peer then revokes its offers: a read would fail, and break the wire.
    pub(super) fn say_receiver_closed(&mut self, end: u32, reason: CloseReason) {
        self.outgoing.say(Control::Close {
            end,
            role: Role::Receiver,
            reason,
            final_sequence: 0,
        });
    }

    /// Grants the sender of receiving end `end` a block for later messages, which is that memory.
    /// Returns the block's index, or `None` if no more blocks may be granted. The block is the
    /// peer's until it is [returned](super::SessionEvent::EagerBlockReturned), the peer's end was
    /// closed, or nothing of the peer can come any more. From when a message
    /// [landed](EagerBlocks::poll_landed) there until its release, the block is not the peer's.
    pub fn grant_eager_block(&mut self, end: u32, memory: RemoteMemory) -> Option<u16> {
        debug_assert!(self.config.wires.writes);
        let is_live = self.outgoing.stage.is_live();
        let entry = self.ends.entries.get(end).filter(|_| is_live)?;
        let channel = entry.peer.filter(|_| !entry.closed_there)?;
        let eager_block = self.eager_blocks.grant(end)?;
        self.outgoing.say(Control::GrantEagerBlock {
            channel,
            eager_block,
            memory,
        });
        Some(eager_block.index)
    }
}
