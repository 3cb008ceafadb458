//! The ends of a session's channels: those of this side, and what the peer opened.
//!
//! - An id is given once: ids only grow, on both sides.
//! - An end is paired with at most one of the peer's, of the other role and the same name, in the
//!   order in which they were opened.
//! - An end is gone once both sides have closed it and each knows of the other's close. Then
//!   nothing here names it, but for a turn to wait for a write, which is skipped.
//!
//! The ends have [turns](turns): to send, to report changes, and to wait for a write.
#![forbid(unsafe_code)]

use std::{mem, sync::Arc};

mod arriving;
mod new_wires;
mod pairing;
#[cfg(test)]
mod tests;
mod turns;

use super::{
    CannotOpen, DataPath, PeerMisbehaved, SessionEvent, receive_channel::ReceiveChannel,
    send_channel::SendChannel,
};
use crate::{
    format::{
        control::{ChannelSpec, CloseReason, Control, Role},
        counters::Counters,
    },
    id_map::IdMap,
    transfer::eager_write::EagerBlockId,
};
use turns::EndTurns;

/// The ends of a session's channels, on both sides, and their turns to send and to report changes.
#[derive(Debug)]
pub struct EndTable {
    pub(super) entries: IdMap<LocalEnd>,
    next: u32,
    /// The newest end that the peer opened.
    pub(super) newest_of_peer: u32,
    /// Our ends by those of the peer that they are paired with, by its role.
    pub(super) by_peer: [IdMap<u32>; 2],
    /// The peer's ends that wait for a counterpart here, oldest first.
    pub(super) unpaired: Vec<PeerOpen>,
    /// The memory that they take.
    unpaired_bytes: u64,
    pub(crate) turns: EndTurns,
}

/// An end of this side.
#[derive(Debug)]
pub(crate) struct LocalEnd {
    pub(super) name: Arc<str>,
    pub(super) spec: Arc<ChannelSpec>,
    /// The peer's id of the other end, once both are open.
    pub(super) peer: Option<u32>,
    pub(super) state: EndChannel,
    /// The local handle was dropped.
    pub(super) closed_here: bool,
    /// Another end of the name and role may be opened here.
    name_is_free: bool,
    /// The last message before the close, and the reason.
    pub(super) closing: Option<(u64, CloseReason)>,
    /// The peer's end was closed, or is of no use.
    pub(super) closed_there: bool,
    /// The two ends do not fit each other, so this one is of no use.
    is_mismatched: bool,
    /// The peer has reported that its end is gone.
    pub(super) received_close: bool,
    /// The peer has been notified that ours is gone.
    pub(super) close_is_out: bool,
}

#[derive(Debug)]
pub(crate) enum EndChannel {
    Sender(Box<SendChannel>),
    Receiver(Option<Box<ReceiveChannel>>),
}

impl EndChannel {
    pub(super) fn role(&self) -> Role {
        match self {
            EndChannel::Sender(_) => Role::Sender,
            EndChannel::Receiver(_) => Role::Receiver,
        }
    }
}

/// An end of the peer's without a counterpart here.
#[derive(Debug)]
pub(crate) struct PeerOpen {
    pub(super) end: u32,
    pub(super) role: Role,
    pub(super) name: Arc<str>,
    pub(super) spec: Arc<ChannelSpec>,
    /// The end was closed before the counterpart was opened here.
    pub(super) closed: Option<CloseReason>,
}

impl EndTable {
    pub(super) fn new() -> Self {
        Self {
            entries: IdMap::new(),
            next: 1,
            newest_of_peer: 0,
            by_peer: [IdMap::new(), IdMap::new()],
            unpaired: Vec::new(),
            unpaired_bytes: 0,
            turns: EndTurns::default(),
        }
    }

    /// Frees the memory of empty queues.
    pub(super) fn rest(&mut self) {
        self.unpaired.shrink_to_fit();
        self.turns.rest();
    }

    /// Returns a spec to open an end with: an equal one that another end has already, if there is
    /// one. The many channels of a session are mostly of a few types.
    pub fn share_spec(&self, spec: ChannelSpec) -> Arc<ChannelSpec> {
        let mut of_ends = self.entries.values().map(|end| &end.spec);
        let equal = of_ends.find(|of_end| ***of_end == spec).cloned();
        equal.unwrap_or_else(|| Arc::new(spec))
    }

    /// Adds an end of this side, which is not paired yet. Returns its id and the message that
    /// announces it. `is_live` says whether there are wires that it could send over.
    pub(super) fn add(
        &mut self,
        role: Role,
        name: Arc<str>,
        spec: Arc<ChannelSpec>,
        limit: usize,
        is_live: bool,
    ) -> Result<(u32, Control), CannotOpen> {
        let is_open = |end: &LocalEnd| {
            end.state.role() == role && end.name == name && !end.closed_here && !end.name_is_free
        };
        if self.entries.values().any(is_open) {
            return Err(CannotOpen::AlreadyOpen);
        }
        if self.entries.len() >= limit {
            return Err(CannotOpen::TooMany { limit });
        }
        let end = self.next;
        self.next += 1;
        let state = match role {
            Role::Sender => EndChannel::Sender(Box::new(SendChannel {
                // Without wires, no end may enter the ready queue, so the end counts as queued.
                queued: !is_live,
                ..SendChannel::default()
            })),
            Role::Receiver => EndChannel::Receiver(None),
        };
        let entry = LocalEnd {
            name,
            spec,
            peer: None,
            state,
            closed_here: false,
            name_is_free: false,
            closing: None,
            closed_there: false,
            is_mismatched: false,
            received_close: false,
            close_is_out: false,
        };
        let open = entry.open(end);
        self.entries.insert(end, entry);
        Ok((end, open))
    }

    /// Lets another end of the same name be opened before this one is closed. The peer's ends meet
    /// both of them in the order in which they were opened.
    pub fn free_name(&mut self, end: u32) {
        if let Some(entry) = self.entries.get_mut(end) {
            entry.name_is_free = true;
        }
    }

    /// Notes that the last handle of a sending end was dropped; its close follows message
    /// `final_sequence`. If an end closes again, the first reason stands.
    pub fn close_sender(&mut self, end: u32, final_sequence: u64, reason: CloseReason) {
        if let Some(entry) = self.entries.get_mut(end) {
            entry.closed_here = true;
            let reason = entry.closing.map_or(reason, |(_, first)| first);
            entry.closing = Some((final_sequence, reason));
            if let EndChannel::Sender(channel) = &mut entry.state {
                channel.closing = entry.closing;
            }
        }
        self.mark_ready(end);
    }

    /// Gives up a sending end at once, because nothing behind message `last` can be sent. What the
    /// peer has of a later message is of no use to it.
    pub fn give_up_sender(&mut self, end: u32, last: u64) {
        if let Some(entry) = self.entries.get_mut(end) {
            // No record goes to the peer's end any more, as if that were closed.
            entry.closed_there = true;
            if let EndChannel::Sender(channel) = &mut entry.state {
                channel.give_up();
            }
        }
        self.close_sender(end, last, CloseReason::Unreadable);
    }

    /// Notes that the handle of a receiving end was dropped. `counters` are its last counters,
    /// which ride on the close, or on a frame before it. Returns whether there is such an end.
    pub(super) fn close_receiver(
        &mut self,
        end: u32,
        counters: &Counters,
        reason: CloseReason,
        path: DataPath,
    ) -> bool {
        let Some(entry) = self.entries.get_mut(end) else {
            return false;
        };
        entry.closed_here = true;
        entry.closing = Some((0, reason));
        if let Some(channel) = entry.state.framed_receiver(path) {
            channel.handle_released(counters);
            if !mem::replace(&mut channel.queued, true) {
                self.turns.changes.push_back(end);
            }
        }
        true
    }

    /// Removes an end that is gone on both sides. Returns whether it was.
    pub(super) fn remove_if_over(&mut self, end: u32) -> bool {
        let over = |entry: &&LocalEnd| entry.close_is_out && entry.received_close;
        let Some(entry) = self.entries.get(end).filter(over) else {
            return false;
        };
        if let Some(peer) = entry.peer {
            self.by_peer[entry.state.role().opposite() as usize].remove(peer);
        }
        self.entries.remove(end);
        self.turns.forget(end);
        true
    }

    // ---- Looking up ------------------------------------------------------------------

    pub(super) fn sender_mut(&mut self, end: u32) -> Option<&mut SendChannel> {
        match &mut self.entries.get_mut(end)?.state {
            EndChannel::Sender(channel) => Some(channel),
            EndChannel::Receiver(_) => None,
        }
    }

    fn receiver(&self, end: u32) -> Option<&ReceiveChannel> {
        match &self.entries.get(end)?.state {
            EndChannel::Receiver(channel) => channel.as_deref(),
            EndChannel::Sender(_) => None,
        }
    }

    pub(super) fn receiver_mut(&mut self, end: u32) -> Option<&mut ReceiveChannel> {
        match &mut self.entries.get_mut(end)?.state {
            EndChannel::Receiver(Some(channel)) => Some(channel),
            _ => None,
        }
    }

    /// Our end that is paired with an end of the peer's.
    #[must_use]
    pub fn paired(&self, role: Role, peer_end: u32) -> Option<u32> {
        self.by_peer[role as usize].get(peer_end).copied()
    }

    /// Our end that is paired with the peer's, and its id.
    #[inline(always)]
    pub(super) fn paired_entry(
        &mut self,
        role: Role,
        peer_end: u32,
    ) -> Option<(u32, &mut LocalEnd)> {
        let end = *self.by_peer[role as usize].get(peer_end)?;
        Some((end, self.entries.get_mut(end)?))
    }

    /// Returns whether the peer has announced its end `peer_end`, which may be over.
    #[must_use]
    pub fn has_received(&self, peer_end: u32) -> bool {
        peer_end <= self.newest_of_peer
    }

    /// Returns whether `end` is or was an id of this side.
    pub(super) fn has_given(&self, end: u32) -> bool {
        end < self.next
    }

    /// Returns the memory that the ends take which the peer opened and we did not. The peer chooses
    /// how many there are, and how long their texts.
    #[must_use]
    pub fn unpaired_bytes(&self) -> u64 {
        self.unpaired_bytes
    }

    /// The names of ends that the peer opened and we did not, with the peer's role.
    pub fn unpaired(&self) -> impl Iterator<Item = (&str, Role)> {
        self.unpaired
            .iter()
            .filter(|open| open.closed.is_none())
            .map(|open| (&*open.name, open.role))
    }

    /// Returns whether the peer opened an end of this name and role that has no counterpart here. It
    /// may be closed.
    #[must_use]
    pub fn awaits_counterpart(&self, name: &str, role: Role) -> bool {
        let mut unpaired = self.unpaired.iter();
        unpaired.any(|open| open.role == role && *open.name == *name)
    }

    /// Returns whether `end` is paired with one of the peer's.
    #[must_use]
    pub fn is_paired(&self, end: u32) -> bool {
        let entry = self.entries.get(end);
        entry.is_some_and(|entry| entry.peer.is_some())
    }

    /// The peer's ends that count against the limit. Ends that did not fit ours and that the peer
    /// has closed do not count: both sides knew of the mismatch without a message.
    pub(super) fn of_peer(&self) -> usize {
        let is_over = |end: &&LocalEnd| end.is_mismatched && end.received_close;
        let over = self.entries.values().filter(is_over).count();
        let paired: usize = self.by_peer.iter().map(IdMap::len).sum();
        self.unpaired.len() + paired - over
    }

    /// Returns whether no end is left that has something to send, or has to say its close.
    pub(super) fn all_is_sent(&self) -> bool {
        let has_ended = |end: &LocalEnd| end.close_is_out || end.closed_there;
        let mut ends = self.entries.values();
        self.turns.ready.is_empty()
            && ends.all(|end| end.state.role() == Role::Receiver || has_ended(end))
    }

    // ---- One end ---------------------------------------------------------------------

    /// Sets after how many released messages (or half a window, if that is less) the sender of
    /// receiving end `end` is notified at the latest. Has no effect while the channel is not open.
    pub fn tell_every(&mut self, end: u32, messages: u64) {
        if let Some(channel) = self.receiver_mut(end) {
            channel.tell_every = messages;
        }
    }

    /// Returns the alignment of payloads of our end `end`, once the channel is open.
    #[must_use]
    pub fn alignment(&self, end: u32) -> Option<usize> {
        match &self.entries.get(end)?.state {
            EndChannel::Sender(channel) => Some(channel.alignment),
            EndChannel::Receiver(channel) => Some(channel.as_ref()?.alignment),
        }
    }

    /// Like [`alignment`](Self::alignment), for the end that is paired with the peer's sending end
    /// `channel`.
    #[must_use]
    pub fn alignment_of_arrivals(&self, channel: u32) -> Option<usize> {
        self.alignment(self.paired(Role::Sender, channel)?)
    }

    /// Returns whether the sender of receiving end `end` waits for its application.
    #[must_use]
    pub fn is_asked(&self, end: u32) -> bool {
        self.receiver(end)
            .is_some_and(ReceiveChannel::waits_for_application)
    }

    /// Returns whether the sender of receiving end `end` waits for room in its window.
    #[must_use]
    pub fn wants_room(&self, end: u32) -> bool {
        self.receiver(end)
            .is_some_and(ReceiveChannel::waits_for_room)
    }

    /// Notes that a large message is to be published as announcement `sequence`. Call this before
    /// [`mark_ready`](Self::mark_ready) shows the record. If this returns a block, the announcement
    /// names it.
    pub fn announce_large(&mut self, end: u32, sequence: u64, length: u64) -> Option<EagerBlockId> {
        self.sender_mut(end)?.announce(sequence, length)
    }

    /// Returns whether bytes of large message `sequence` may still be wanted for a frame.
    #[must_use]
    pub fn sends_large(&self, end: u32, sequence: u64) -> bool {
        match self.entries.get(end).map(|end| &end.state) {
            Some(EndChannel::Sender(channel)) => channel.sends_large(sequence),
            _ => false,
        }
    }

    /// Returns how many messages of sending end `end` have arrived, as the peer has reported.
    #[must_use]
    pub fn received(&self, end: u32) -> u64 {
        match self.entries.get(end).map(|end| &end.state) {
            Some(EndChannel::Sender(channel)) => channel.counters.received,
            _ => 0,
        }
    }

    /// Returns whether pieces of receiving end `end`'s messages are being read.
    pub(super) fn is_reading(&self, end: u32) -> bool {
        self.receiver(end)
            .is_some_and(|channel| channel.large.is_reading())
    }

    /// Returns whether messages are on their way, as far as this side knows: they were sent and the
    /// peer has not said that they arrived, or a large one is here in part.
    #[must_use]
    pub fn is_under_way(&self) -> bool {
        self.entries.values().any(|entry| match &entry.state {
            EndChannel::Sender(channel) => channel.sent > channel.counters.received,
            EndChannel::Receiver(Some(channel)) => !channel.large.is_empty(),
            EndChannel::Receiver(None) => false,
        })
    }
}

impl PeerOpen {
    /// Returns the memory that the end takes while it waits.
    fn bytes(&self) -> u64 {
        (mem::size_of::<Self>() + self.name.len() + self.spec.memory_bytes()) as u64
    }
}

impl LocalEnd {
    /// The message that announces the end, whose id is `end`.
    pub(super) fn open(&self, end: u32) -> Control {
        Control::Open {
            end,
            role: self.state.role(),
            name: self.name.clone(),
            spec: self.spec.clone(),
        }
    }
}
