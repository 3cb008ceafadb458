//! Large messages of a session, and the memory that each end grants the other for them.

#[cfg(doc)]
use super::Landings;
use super::{EndChannel, LocalEnd, Session};
use crate::{
    format::control::Control,
    transfer::rendezvous::{RemoteMemory, Way},
};

impl Session {
    /// Gives the peer its blocks back, because sending end `end` rests.
    pub fn return_landings(&mut self, end: u32) {
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
        for landing in sender.landings.give_up(released) {
            self.outgoing.say(Control::ReturnLanding {
                channel: end,
                landing,
            });
        }
    }

    /// Notes that the next large message of receiving end `end` has to wait for messages to be
    /// released.
    pub fn grant_waits(&mut self, end: u32) {
        if let Some(channel) = self.ends.receiver_mut(end) {
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
        debug_assert!(self.config.wires.writes);
        self.grant_by(end, sequence, Way::Memory(memory), memory.bytes());
    }

    fn grant_by(&mut self, end: u32, sequence: u64, way: Way, bytes: u64) {
        let Some(entry) = self.ends.entries.get_mut(end) else {
            return;
        };
        let channel = entry.peer.unwrap_or_default();
        if let EndChannel::Receiver(Some(receiver)) = &mut entry.state
            && receiver.large.grant(sequence, way, bytes).is_some()
        {
            self.outgoing.say(way.control(channel, sequence, bytes));
        }
    }

    /// Grants the sender of receiving end `end` a block for later messages, which is that memory.
    /// Returns the block's index, or `None` if no more blocks may be granted. The block is the
    /// peer's until it is [returned](super::SessionEvent::LandingReturned), the peer's end was
    /// closed, or nothing of the peer can come any more. From when a message
    /// [landed](Landings::poll_landed) there until its release, the block is not the peer's.
    pub fn grant_landing(&mut self, end: u32, memory: RemoteMemory) -> Option<u16> {
        debug_assert!(self.config.wires.writes);
        let is_live = self.outgoing.stage.is_live();
        let entry = self.ends.entries.get(end).filter(|_| is_live)?;
        let channel = entry.peer.filter(|_| !entry.closed_there)?;
        let landing = self.landings.grant(end)?;
        self.outgoing.say(Control::GrantLanding {
            channel,
            landing,
            memory,
        });
        Some(landing.index)
    }
}
