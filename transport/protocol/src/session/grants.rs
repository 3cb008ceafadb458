//! Large messages of a session, and the memory that each end grants the other for them.

use super::{End, EndState, PeerMisbehaved, Session};
use crate::{
    format::control::Control,
    transfer::{
        eager_write::{Landed, LandingId},
        rendezvous::{RemoteMemory, Way},
    },
};

impl Session {
    /// Notes that a large message is to be published as announcement `sequence`. Call this before
    /// [`mark_ready`](Self::mark_ready) shows the record. If this returns a block, the announcement
    /// names it.
    pub fn announce_large(&mut self, end: u32, sequence: u64, length: u64) -> Option<LandingId> {
        self.sender_mut(end)?.announce(sequence, length)
    }

    /// Returns whether bytes of large message `sequence` may still be wanted for a frame.
    #[must_use]
    pub fn sends_large(&self, end: u32, sequence: u64) -> bool {
        match self.ends.get(end).map(|end| &end.state) {
            Some(EndState::Sender(channel)) => channel.sends_large(sequence),
            _ => false,
        }
    }

    /// Gives the peer its blocks back, because sending end `end` rests.
    pub fn return_landings(&mut self, end: u32) {
        // After a close, the peer gets its memory back without a message.
        let Some(End {
            state: EndState::Sender(sender),
            close_is_out: false,
            ..
        }) = self.ends.get_mut(end)
        else {
            return;
        };
        let released = sender.counters.released;
        for landing in sender.landings.give_up(released) {
            self.has_errands = true;
            self.control.push_back(Control::ReturnLanding {
                channel: end,
                landing,
            });
        }
    }

    /// Notes that the next large message of receiving end `end` has to wait for messages to be
    /// released.
    pub fn grant_waits(&mut self, end: u32) {
        if let Some(channel) = self.receiver_mut(end) {
            channel.grant_waits();
            self.queue_news(end);
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
        debug_assert!(self.config.writes);
        self.grant_by(end, sequence, Way::Memory(memory), memory.bytes());
    }

    fn grant_by(&mut self, end: u32, sequence: u64, way: Way, bytes: u64) {
        let Some(entry) = self.ends.get_mut(end) else {
            return;
        };
        let channel = entry.peer.unwrap_or_default();
        if let EndState::Receiver(Some(receiver)) = &mut entry.state
            && receiver.large.grant(sequence, way, bytes).is_some()
        {
            self.has_errands = true;
            self.say(match way {
                Way::Chunks => Control::Grant {
                    channel,
                    sequence,
                    bytes,
                },
                Way::Memory(memory) => Control::GrantMemory {
                    channel,
                    sequence,
                    memory,
                },
            });
        }
    }

    /// Grants the sender of receiving end `end` a block for later messages, which is that memory.
    /// Returns the block's index, or `None` if no more blocks may be granted. The block is the
    /// peer's until it is [returned](super::Event::LandingReturned), the peer's end was closed, or nothing
    /// of the peer can come any more. From when a message [landed](Self::poll_landed) there until
    /// its release, the block is not the peer's.
    pub fn grant_landing(&mut self, end: u32, memory: RemoteMemory) -> Option<u16> {
        debug_assert!(self.config.writes);
        let entry = self.ends.get(end).filter(|_| self.stage.is_live())?;
        let channel = entry.peer.filter(|_| !entry.closed_there)?;
        let landing = self.landings.grant(end)?;
        self.has_errands = true;
        self.control.push_back(Control::GrantLanding {
            channel,
            landing,
            memory,
        });
        Some(landing.index)
    }

    /// The next message that lies whole in a block. Drain it behind
    /// [`handle_frame`](Self::handle_frame), when its records are placed.
    #[inline]
    #[must_use]
    pub fn poll_landed(&mut self) -> Option<Landed> {
        self.landings.landed.pop_front()
    }

    /// The end whose block the peer may have written to now.
    pub fn landing_of(&self, landing: LandingId) -> Result<u32, PeerMisbehaved> {
        let end = self.landings.granted_to(landing);
        end.ok_or(PeerMisbehaved::WrongLanding { id: landing })
    }

    /// Blocks that the peer has, or that have a message.
    #[must_use]
    pub fn landings(&self) -> usize {
        self.landings.count()
    }

    /// Notes that this many pieces, the oldest ones, have come to the peer's memory.
    pub fn writes_are_done(&mut self, writes: u32) {
        self.writes_under_way -= writes;
        while let Some(end) = self.awaiting_writes.pop() {
            self.mark_ready(end);
        }
    }
}
