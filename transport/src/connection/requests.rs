//! Requests of handles to a link: to open an end, to close it, to ask about it.

use std::sync::atomic::Ordering;
use std::{sync::Arc, time::Duration};

use ibex_protocol::{
    format::{
        control::{Ask, ChannelSpec, CloseReason, Role},
        counters::Counters,
        record,
    },
    session::CannotOpen,
    timer::Timer,
};
use ibex_ring::{CellBlock, memory::MemoryError};

use super::{
    core::{Core, Phase},
    receivers::ReceiveLink,
    senders::SendLink,
    shared_memory::LeasedBlock,
};
use crate::{
    clock,
    connection::Context,
    endpoint::{channel_end::ChannelEnd, receive_end::ReceiveEnd, send_end::SendEnd},
    session::Interface,
};

impl Core {
    pub(crate) fn open_sender(
        &mut self,
        name: &str,
        spec: ChannelSpec,
        open_timeout: Duration,
        context: &mut Context<'_>,
    ) -> Result<Arc<SendEnd>, CannotOpen> {
        let block = self.prepare_open(context)?;
        let (name, spec) = (Arc::<str>::from(name), self.common.session.share_spec(spec));
        let id = self
            .common
            .session
            .open(Role::Sender, name.clone(), spec.clone())?;
        let session = self.common.shared.clone();
        let common = ChannelEnd::new(session, id, Role::Sender, name, spec, open_timeout);
        let end = Arc::new(SendEnd::new(common));
        if let (Some(local), Some(block)) = (&mut self.local, block) {
            let _ = end.ours.set(local.give_to_sender(id, block));
        }
        self.senders.insert(id, SendLink::new(end.clone()));
        self.handle_events(context);
        Ok(end)
    }

    /// The interface by which this node uses the end of this name, if it has one.
    pub(crate) fn interface_of(&self, name: &str, role: Role) -> Option<Interface> {
        let mut senders = self.senders.iter().map(|(_, sender)| &**sender.end);
        let mut receivers = self.receivers.iter().map(|(_, one)| &**one.end);
        let is_it = |end: &&ChannelEnd| &*end.name == name;
        let found = match role {
            Role::Sender => senders.find(is_it),
            Role::Receiver => receivers.find(is_it),
        };
        found.map(ChannelEnd::interface)
    }

    /// The sending end of this name that stays open without a handle.
    pub(crate) fn shared_sender(&self, name: &str) -> Option<Arc<SendEnd>> {
        let mut senders = self.senders.iter().map(|(_, sender)| &sender.end);
        let found = senders.find(|end| end.shared.is_set() && &*end.name == name);
        found.cloned()
    }

    pub(crate) fn open_receiver(
        &mut self,
        name: &str,
        spec: ChannelSpec,
        open_timeout: Duration,
        tell_every: u64,
        context: &mut Context<'_>,
    ) -> Result<Arc<ReceiveEnd>, CannotOpen> {
        let block = self.prepare_open(context)?;
        let cells = CellBlock::lease(spec.window.messages as usize, context.event_loop.bell())
            .map_err(refused)?;
        let (name, spec) = (Arc::<str>::from(name), self.common.session.share_spec(spec));
        let id = self
            .common
            .session
            .open(Role::Receiver, name.clone(), spec.clone())?;
        // Of the newest version; a sender that settles on another does not look at it.
        let first = record::first_position(spec.newest.alignment as usize);
        let session = self.common.shared.clone();
        let common = ChannelEnd::new(session, id, Role::Receiver, name, spec, open_timeout);
        let end = Arc::new(ReceiveEnd::new(common, cells, tell_every));
        if let (Some(local), Some(block)) = (&mut self.local, block) {
            let _ = end.ours.set(local.give_to_receiver(id, first, block));
        }
        self.receivers.insert(id, ReceiveLink::new(end.clone()));
        self.handle_events(context);
        Ok(end)
    }

    /// What an end needs that may be refused: all of it, before the peer hears of the end.
    fn prepare_open(&mut self, context: &Context<'_>) -> Result<Option<LeasedBlock>, CannotOpen> {
        if self.phase != Phase::Up {
            return Err(CannotOpen::SessionOver);
        }
        let segments = &context.node().control_segments;
        let local = self.local.as_mut();
        local
            .map(|local| local.lease_block(segments))
            .transpose()
            .map_err(refused)
    }

    pub(crate) fn free_name(&mut self, end: u32) {
        self.common.session.free_name(end);
    }

    pub(crate) fn close_sender(&mut self, end: u32, last: u64, reason: CloseReason) {
        if let Some(sender) = self.senders.get_mut(end) {
            sender.is_closed = true;
            // The handle found the end over, and has said nothing.
            if std::mem::take(&mut sender.is_ending) && reason == CloseReason::Dropped {
                sender.close_in_order(last, &self.common.shared);
            }
        }
        self.common.session.close_sender(end, last, reason);
    }

    pub(crate) fn close_receiver(&mut self, end: u32, counters: &Counters, reason: CloseReason) {
        if let Some(mut receiver) = self.receivers.remove(end) {
            if !receiver.large.is_empty() {
                // Others of the session may have waited for these.
                self.common.timers.set_sooner(Timer::Memory, clock::now());
            }
            self.grants.keep(end, receiver.forget_large());
            if let (Some(local), Some(words)) = (&mut self.local, receiver.end.ours.get()) {
                local.keep_words(end, words);
            }
            self.common.session.close_receiver(end, counters, reason);
        }
    }

    pub(crate) fn ask(&mut self, end: u32, ask: Ask) {
        if self.senders.contains(end) {
            self.common.session.ask(end, ask);
        }
    }

    /// Asks for an acknowledgement that was perhaps asked for before.
    pub(crate) fn ask_once(&mut self, end: u32, sequence: u64) {
        if self.senders.contains(end) {
            self.common.session.ask_once(end, sequence);
        }
    }

    /// Names of channels that the peer opened and we did not, with the peer's role.
    pub(crate) fn incoming(&self) -> Vec<(String, Role)> {
        self.common
            .session
            .unpaired()
            .map(|(name, role)| (name.to_owned(), role))
            .collect()
    }

    /// A receiving end's prefix moved far enough for its sender to hear of it.
    pub(crate) fn prefix_moved(&mut self, end: u32) {
        if let Some(receiver) = self.receivers.get(end) {
            receiver.end.is_marked.store(false, Ordering::Release);
            self.common.session.released(end, &receiver.end.counters());
        }
    }

    /// Sums the cells of ends whose sender or receiver waits, where a guard has rung.
    /// Returns whether there is news to send.
    pub(crate) fn answer_guards(&mut self, context: &mut Context<'_>) -> bool {
        let mut news = false;
        let mut has_room = Vec::new();
        let mut was_stalled = false;
        for (id, receiver) in self.receivers.iter() {
            let still_asked = match (self.local.is_some(), receiver.end.theirs.get()) {
                (true, Some(theirs)) => theirs.asked.load(Ordering::Relaxed) != 0,
                _ => self.common.session.is_asked(id),
            };
            let waits = receiver.waits_for_release();
            if !answer_if_rung(&receiver.end, still_asked || waits) {
                continue;
            }
            receiver.end.waiters.take(&mut context.wakers);
            was_stalled |= receiver.is_told_stalled();
            if self.local.is_none() {
                self.common.session.released(id, &receiver.end.counters());
                news = true;
            }
            if waits {
                has_room.push(id);
                news = true;
            }
        }
        for end in has_room {
            self.want_large(end, context);
        }
        if was_stalled {
            self.look_for_stalls(clock::now(), context);
        }
        news
    }
}

fn refused(error: MemoryError) -> CannotOpen {
    CannotOpen::Memory(error.to_string())
}

/// Answers the sender of a receiving end that it asked. Returns whether the end still owes an
/// answer, so that its guards ring.
fn answer_if_rung(end: &ReceiveEnd, still_asked: bool) -> bool {
    if !end.cells.has_rung() {
        return false;
    }
    if still_asked {
        end.answer_ask();
    } else {
        end.hush();
        end.advance(true);
    }
    true
}
