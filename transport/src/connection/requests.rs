//! Requests of handles to a session: opening an end, closing it, and questions about it.

use std::sync::atomic::Ordering;
use std::{mem, sync::Arc, time::Duration};

use ibex_protocol::{
    format::{
        control::{Ask, ChannelSpec, CloseReason, Role},
        counters::Counters,
        record,
    },
    session::CannotOpen,
    timer::Timer,
};
use ibex_ring::{CellBlock, memory::MemoryError, parking::RungEnd};

use super::{
    core::{Common, Core, Phase},
    receivers::{ReceiverState, Receivers},
    senders::{SenderState, Senders},
    shared_memory::LeasedBlock,
};
use crate::{
    clock,
    connection::Context,
    endpoint::{
        channel_end::ChannelEnd, receive_end::ReceiveEnd, receive_path::ReceivePath,
        send_end::SendEnd, send_path::SendPath, state::EndReason,
    },
    session::EndCause,
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
        let name = Arc::<str>::from(name);
        let spec = self.common.session.ends.share_spec(spec);
        let id = self
            .common
            .session
            .open(Role::Sender, name.clone(), spec.clone())?;
        let session = self.common.shared.clone();
        let common = ChannelEnd::new(session, id, Role::Sender, name, spec, open_timeout);
        let shared_memory = self.shared_memory.as_mut().zip(block);
        let is_paired = self.common.session.ends.is_paired(id);
        let words = shared_memory.map(|(local, block)| local.give_to_sender(id, block, is_paired));
        let end = Arc::new(SendEnd::new(common, SendPath::new(words)));
        self.ends
            .senders
            .ends
            .insert(id, SenderState::new(end.clone()));
        self.handle_events(context);
        Ok(end)
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
        let cells =
            CellBlock::lease(spec.window.messages as usize, context.bell).map_err(refused)?;
        let name = Arc::<str>::from(name);
        let spec = self.common.session.ends.share_spec(spec);
        let id = self
            .common
            .session
            .open(Role::Receiver, name.clone(), spec.clone())?;
        cells.belong_to(RungEnd {
            session: self.common.shared.id,
            end: id,
        });
        // The first position for the newest version. A sender that agrees on another version
        // ignores it.
        let first = record::first_position(spec.newest.alignment as usize);
        let session = self.common.shared.clone();
        let common = ChannelEnd::new(session, id, Role::Receiver, name, spec, open_timeout);
        let shared_memory = self.shared_memory.as_mut().zip(block);
        let words = shared_memory.map(|(local, block)| local.give_to_receiver(id, first, block));
        let path = ReceivePath::new(words);
        let end = Arc::new(ReceiveEnd::new(common, path, cells, tell_every));
        self.ends
            .receivers
            .ends
            .insert(id, ReceiverState::new(end.clone()));
        self.handle_events(context);
        Ok(end)
    }

    /// Gets everything that an end needs and that may be refused, before the peer learns of the end.
    fn prepare_open(&mut self, context: &Context<'_>) -> Result<Option<LeasedBlock>, CannotOpen> {
        if self.common.phase != Phase::Up {
            return Err(CannotOpen::SessionOver);
        }
        let segments = &context.node.control_segments;
        let shared_memory = self.shared_memory.as_mut();
        shared_memory
            .map(|one| one.lease_block(segments))
            .transpose()
    }

    pub(crate) fn close_receiver(
        &mut self,
        end: u32,
        counters: &Counters,
        reason: CloseReason,
        context: &mut Context<'_>,
    ) {
        if let Some(mut receiver) = self.ends.receivers.ends.remove(end) {
            self.ends.receivers.gone += &receiver.end.stats();
            if !receiver.large.is_empty() {
                // Other messages of the session may have waited for these.
                self.common.timers.set_sooner(Timer::Memory, clock::now());
            }
            self.grants.keep(end, receiver.take_the_devices());
            let words = receiver.end.path.words();
            if let Some((shared_memory, words)) = self.shared_memory.as_mut().zip(words) {
                shared_memory.keep_words(end, words);
            }
            self.common.session.close_receiver(end, counters, reason);
            context.leave(receiver);
        }
    }

    /// Closes a receiving end at which nothing can arrive because the kernel refuses memory. Both
    /// ends are notified, and may be opened again.
    pub(super) fn receiver_lacks_memory(
        &mut self,
        end: u32,
        error: &MemoryError,
        context: &mut Context<'_>,
    ) {
        let Some(receiver) = self.ends.receivers.ends.get_mut(end) else {
            return;
        };
        let cause = EndCause::Memory(error.to_string());
        receiver
            .end
            .end(EndReason::Cause(cause), &mut context.wakers);
        let counters = receiver.end.counters();
        self.close_receiver(end, &counters, CloseReason::NoRoom, context);
    }
}

impl Common {
    pub(crate) fn free_name(&mut self, end: u32) {
        self.session.ends.free_name(end);
    }

    /// Returns the names of channels that the peer opened and this node did not, with the peer's
    /// role.
    pub(crate) fn incoming(&self) -> Vec<(String, Role)> {
        self.session
            .ends
            .unpaired()
            .map(|(name, role)| (name.to_owned(), role))
            .collect()
    }

    /// Returns whether the peer has a receiving end of this name that has no counterpart here.
    pub(crate) fn is_awaited(&self, name: &str) -> bool {
        let ends = &self.session.ends;
        ends.awaits_counterpart(name, Role::Receiver)
    }
}

impl Senders {
    /// Finds the sending end of this name that stays open without a handle.
    pub(crate) fn shared(&self, name: &str) -> Option<Arc<SendEnd>> {
        let mut senders = self.ends.iter().map(|(_, sender)| &sender.end);
        let found = senders.find(|end| end.shared.is_set() && &*end.name == name);
        found.cloned()
    }

    pub(crate) fn close(&mut self, end: u32, last: u64, reason: CloseReason, common: &mut Common) {
        if let Some(sender) = self.ends.get_mut(end) {
            sender.is_closed = true;
            // The handle found the end over, and has announced nothing.
            if mem::take(&mut sender.is_ending) && reason == CloseReason::Dropped {
                sender.close_in_order(last);
            }
        }
        common.session.ends.close_sender(end, last, reason);
    }

    pub(crate) fn ask(&mut self, end: u32, ask: Ask, common: &mut Common) {
        if self.ends.contains(end) {
            common.session.ask(end, ask);
        }
    }

    /// Asks for an acknowledgement, unless it was asked for before.
    pub(crate) fn ask_once(&mut self, end: u32, sequence: u64, common: &mut Common) {
        if self.ends.contains(end) {
            common.session.ask_once(end, sequence);
        }
    }

    /// Asks the peer to report its progress with all messages that were sent.
    pub(crate) fn ask_for_all(&self, common: &mut Common) {
        for (id, sender) in self.ends.iter() {
            if let Some(ask) = sender.end.path.question_of_arrival(&sender.end) {
                common.session.ask(id, ask);
            }
        }
    }
}

impl Receivers {
    /// Notes that a receiving end's prefix moved far enough for its sender to learn of it.
    pub(crate) fn prefix_moved(&self, end: u32, common: &mut Common) {
        if let Some(receiver) = self.ends.get(end) {
            // MARK, pairs with `ReceiveEnd::mark_progress`. A swap and not a store: a handle that
            // still finds the end marked leaves its prefix to the check that follows.
            receiver.end.is_marked.swap(false, Ordering::Acquire);
            common.session.released(end, &receiver.end.counters());
        }
    }
}

fn refused(error: MemoryError) -> CannotOpen {
    CannotOpen::Memory(error.to_string())
}
