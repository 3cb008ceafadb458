//! A session: two nodes, the channels between them, and the choice of the next frame.
//!
//! A session is pure state. The host (the engine, or the simulation) feeds it frames with
//! [`handle_frame`](Session::handle_frame) and the wishes of local handles with the other methods,
//! takes frames with [`poll_transmit`](Session::poll_transmit) until it answers `None`, and events
//! with [`poll_event`](Session::poll_event) likewise.
//!
//! Its parts hold the state: the [ends](EndTable) of channels and their turns, [what is to be
//! sent](ControlQueue) besides, and the [credit](SessionCredit) of both sides. `Session` is the
//! order between them.
//!
//! Order of sending: control first, then counters that the peer waits for, then records and chunks
//! of the ready channels, one frame each in turn. Closing an end and the session are derived from
//! channel state when a frame is built, so they cannot overtake records that were published before.
#![forbid(unsafe_code)]

use std::{collections::VecDeque, sync::Arc};

mod control_queue;
mod credit;
mod data_path;
mod end_table;
mod grants;
mod heads;
mod progress;
mod receive;
mod receive_channel;
mod resume;
mod send_channel;
mod transmit;
mod types;

pub use control_queue::ControlQueue;
pub use credit::SessionCredit;
pub use data_path::DataPath;
pub use end_table::EndTable;
pub use progress::Progress;
pub use resume::{WireTerms, is_newer_epoch, last_word};
pub use types::{
    Agreed, Arrival, Body, CannotOpen, EagerBlockWord, Footprint, LoneRecord, PeerMisbehaved,
    RecordSource, Run, SessionEvent,
};

use super::{
    credit::session::Term,
    format::{
        control::{Ask, ChannelSpec, CloseReason, Role},
        counters::Counters,
    },
    transfer::eager_write::EagerBlocks,
};
use end_table::{EndChannel, LocalEnd, PeerOpen};

/// The terms that both ends settled in the handshake.
#[derive(Clone, Copy, Debug)]
pub struct SessionConfig {
    /// The terms of the wires that it begins with.
    pub wires: WireTerms,
    /// This side dialed, so it keeps the [larger
    /// reserve](super::credit::reserved_buffer::reserved_buffers).
    pub dialed: bool,
    /// Ends that either side may have open at a time.
    pub max_channels: usize,
    /// The path of messages.
    pub data_path: DataPath,
    /// If its wires break, the session goes on over others, so it keeps everything until it is
    /// known to have arrived.
    pub resumes: bool,
}

/// A session's parts, and the order between them. See the [module](self).
///
/// What concerns one part alone is the part's own method.
#[derive(Debug)]
pub struct Session {
    config: SessionConfig,
    /// The ends of channels, and whose turn it is.
    pub ends: EndTable,
    /// What is to be sent besides records and changes.
    pub outgoing: ControlQueue,
    /// The credit of both sides.
    pub credit: SessionCredit,
    /// Blocks that the peer was granted.
    pub eager_blocks: EagerBlocks,
    events: VecDeque<SessionEvent>,
    /// The peer has sent its goodbye.
    received_goodbye: bool,
    /// The peer's announcement that it drains.
    received_draining: Option<bool>,
}

impl Session {
    /// A session without channels.
    #[must_use]
    pub fn new(config: SessionConfig) -> Self {
        let mut ends = EndTable::new();
        ends.turns.take_terms(&config.wires);
        Self {
            config,
            ends,
            outgoing: ControlQueue::new(),
            credit: SessionCredit::new(config.wires, config.dialed),
            eager_blocks: EagerBlocks::default(),
            events: VecDeque::new(),
            received_goodbye: false,
            received_draining: None,
        }
    }

    /// Frees the memory of its empty queues, because the session was silent for a while.
    pub fn rest(&mut self) {
        self.ends.rest();
        self.outgoing.rest();
        self.events.shrink_to_fit();
    }

    // ---- Wishes of local handles -------------------------------------------------

    /// Opens a local end and announces it. Poll transmissions and events afterwards.
    pub fn open(
        &mut self,
        role: Role,
        name: impl Into<Arc<str>>,
        spec: impl Into<Arc<ChannelSpec>>,
    ) -> Result<u32, CannotOpen> {
        let limit = self.config.max_channels;
        let is_live = self.outgoing.stage.is_live();
        let added = self
            .ends
            .add(role, name.into(), spec.into(), limit, is_live);
        let (end, open) = added?;
        self.outgoing.say(open);
        if let Some(counterpart) = self.ends.take_counterpart(end) {
            self.pair(end, counterpart);
        }
        Ok(end)
    }

    /// Joins a local end and the peer's open of the same name.
    fn pair(&mut self, end: u32, open: PeerOpen) {
        let ask = self.ends.pair(end, open, &mut self.events);
        if ask != Ask::default() {
            self.outgoing.ask(end, ask);
        }
        self.forget_if_over(end);
    }

    /// Notes that the handle of a receiving end was dropped. `counters` are its last counters.
    pub fn close_receiver(&mut self, end: u32, counters: &Counters, reason: CloseReason) {
        let path = self.config.data_path;
        if self.ends.close_receiver(end, counters, reason, path) && !self.ends.is_reading(end) {
            self.say_receiver_closed(end, reason);
        }
    }

    /// Asks for the counters that a sending end waits for. One question goes out for all of them:
    /// see [`Questions`](super::format::control::Questions).
    pub fn ask(&mut self, end: u32, ask: Ask) {
        let ask = match self.ends.sender_mut(end) {
            Some(channel) => channel.ask(ask),
            None => ask,
        };
        self.outgoing.ask(end, ask);
    }

    /// Asks for the acknowledgement of message `sequence`, unless the peer was asked for it.
    pub fn ask_once(&mut self, end: u32, sequence: u64) {
        let channel = self.ends.sender_mut(end);
        if !channel.is_some_and(|channel| channel.has_asked_for(sequence)) {
            self.ask(end, Ask::acknowledged(sequence));
        }
    }

    /// Asks for an end whose handles were dropped, ahead of the goodbye. This question replaces all
    /// others, since an answer to one of those could not lead to a further question.
    pub fn ask_last(&mut self, end: u32, ask: Ask) {
        if let Some(channel) = self.ends.sender_mut(end) {
            channel.ask_last(ask);
        }
        self.outgoing.ask(end, ask);
    }

    /// Notes that the prefix of a receiving end moved. The sender is notified at once if it waits for
    /// the changes or half a window is owed, else with the next frame.
    ///
    /// In shared memory the sender reads the counters itself, and frames carry none. Returns whether
    /// frames carry them.
    pub fn released(&mut self, end: u32, counters: &Counters) -> bool {
        let path = self.config.data_path;
        let owes_eager_blocks = self.eager_blocks.owes(end, counters.released);
        let entry = self.ends.entries.get_mut(end);
        let Some(channel) = entry.and_then(|entry| entry.state.framed_receiver(path)) else {
            return false;
        };
        channel.owes_changes |= owes_eager_blocks;
        channel.handle_released(counters);
        self.queue_changes(end);
        true
    }

    /// Queues the changes of a receiving end, if there are any.
    fn queue_changes(&mut self, end: u32) {
        self.ends.queue_changes(end);
        self.outgoing.has_errands = true;
    }

    // ---- Decisions of the engine's broker --------------------------------------------

    /// Lets the peer keep `credit` more in flight. Poll transmissions afterwards.
    pub fn give(&mut self, credit: u64, term: Term) {
        self.credit.granting.give(credit, term);
        self.outgoing.has_errands = true;
    }

    /// Takes `credit` back, at most as much as the peer was given. The part that the peer has comes
    /// back once the peer has used or surrendered it. Poll transmissions and the
    /// [report](SessionCredit::take_report) afterwards.
    pub fn recall(&mut self, credit: u64) {
        self.credit.granting.recall(credit);
        self.outgoing.has_errands = true;
    }

    // ---- Events ----------------------------------------------------------------------

    /// Returns whether there are events.
    #[inline]
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event. Drain it after every other call that takes `&mut self`, and after those of
    /// the parts.
    #[must_use]
    pub fn poll_event(&mut self) -> Option<SessionEvent> {
        self.events.pop_front()
    }

    /// Returns how much the session holds.
    #[must_use]
    pub fn footprint(&self) -> Footprint {
        Footprint {
            ends: self.ends.entries.len(),
            peer_ends: self.ends.of_peer(),
            control: self.outgoing.control.len(),
            ready: self.ends.turns.ready.len(),
            changes: self.ends.turns.changes.len(),
            events: self.events.len(),
        }
    }

    // ---- Bookkeeping -----------------------------------------------------------------

    fn close_went(&mut self, end: u32) {
        if let Some(entry) = self.ends.entries.get_mut(end) {
            entry.close_is_out = true;
        }
        self.forget_if_over(end);
    }

    /// Forgets an end that is gone on both sides.
    fn forget_if_over(&mut self, end: u32) {
        if self.ends.remove_if_over(end) {
            self.eager_blocks.forget(end);
            self.events.push_back(SessionEvent::Forgotten { end });
        }
    }
}

#[cfg(test)]
mod tests;
