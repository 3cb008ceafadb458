//! News of the device that carries a connection's frames.

use ibex_ring::memory::LargeLease;
use ibex_verbs::{AsyncEvent, WorkCompletion};

use super::{
    Connection, MemoryWanted, Purpose,
    context::Context,
    core::{Common, Core, Phase},
    frames::CoreInTurn,
    receivers::{ReceiveLink, Receivers},
    senders::Senders,
};
use crate::{
    rdma::{PreparedPair, SharedReceives},
    session::EndCause,
    wire::{Completed, PairEvent, QueuePairWire, Tools, register_with},
};

impl Connection {
    /// Takes in a completion of our queue pair. `shared` are the buffers of the receive
    /// queue that it shares, if it does. Returns whether anything may follow: output, or a
    /// credit report.
    #[inline(always)]
    pub(crate) fn handle_completion(
        &mut self,
        completion: &WorkCompletion,
        shared: Option<&mut SharedReceives>,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) -> bool {
        let core = &mut self.core;
        let Some(pair) = self.wire.queue_pair() else {
            // Late, and its buffer may be used again.
            let _ = shared.and_then(|shared| shared.complete(completion.id()));
            core.common.has_strayed();
            return false;
        };
        let mut frames = CoreInTurn { core, context };
        match pair.complete(completion, shared, &mut frames, tools) {
            Completed::Delivered => false,
            Completed::Handled => {
                self.follow(tools, context);
                true
            }
            Completed::Strayed => {
                self.core.common.has_strayed();
                true
            }
            Completed::Refused(fault) => {
                self.frame_is_refused(*fault, tools, context);
                self.follow(tools, context);
                true
            }
            Completed::Broke(cause) => {
                self.drain_then_end(*cause);
                true
            }
        }
    }

    /// Takes in what the device said of our queue pair. Returns whether it was of consequence.
    pub(crate) fn pair_event(&mut self, event: &AsyncEvent) -> bool {
        let Some(pair) = self.wire.queue_pair() else {
            return false;
        };
        match pair.event(event) {
            PairEvent::Ignored => false,
            PairEvent::Noted => true,
            PairEvent::Broke(cause) => {
                self.drain_then_end(cause);
                true
            }
        }
    }

    /// Notes that the completion queue was found empty after everything in it was taken. Returns
    /// whether that set anything going.
    pub(crate) fn completions_are_empty(&mut self) -> bool {
        let pair = self.wire.queue_pair();
        let cause = pair.and_then(QueuePairWire::completions_are_empty);
        let is_over = cause.is_some();
        if let Some(cause) = cause {
            self.drain_then_end(cause);
        }
        is_over
    }

    /// Leaves a device of which nothing will complete any more.
    pub(crate) fn site_is_lost(
        &mut self,
        cause: EndCause,
        tools: &mut Tools,
        context: &mut Context<'_>,
    ) {
        if self.core.common.phase == Phase::Gone || self.core.reconnect.is_none() {
            return self.core.end_broken(cause, context);
        }
        self.drain_then_end(cause);
        if self.wire.queue_pair().is_some() {
            self.wire_is_drained(tools, context);
        }
    }
}

impl Core {
    /// Takes back what the peer was granted: nothing of it comes any more.
    pub(super) fn withdraw_grants(&mut self, context: &mut Context<'_>) {
        let receivers = self.ends.receivers.ends.values_mut();
        let granted = receivers.flat_map(ReceiveLink::withdraw_large);
        let withdrawn = granted.map(LargeLease::withdraw);
        let withdrawn: Vec<_> = withdrawn.chain(self.grants.withdraw()).collect();
        if !withdrawn.is_empty() {
            context.leftovers.push(Box::new(withdrawn));
        }
    }
}

impl Common {
    /// Counts a completion of nothing that we have.
    fn has_strayed(&self) {
        if let Some(site) = self.shared.carrier.last_site() {
            site.counters.strayed();
        }
    }
}

impl Senders {
    /// Returns whether the memory that is to be sent again, and all that will be, can go over a
    /// queue pair. It is registered where it has to be: in a turn, as only a device that was
    /// opened anew has not got it.
    pub(super) fn can_take_pair(
        &mut self,
        pair: &PreparedPair,
        common: &Common,
    ) -> Result<(), String> {
        if !common.shared.carrier.fits(pair) {
            return Err(
                "messages of the session are longer than the frames of a queue pair".into(),
            );
        }
        let mut senders = self.ends.values_mut();
        let registered = senders.try_for_each(|sender| {
            let (ring, messages) = sender.memory();
            register_with(pair.site(), ring, messages)
        });
        registered.map_err(|error| error.to_string())
    }
}

impl Receivers {
    /// Goes on without the queue pair: memory that was granted for it is wanted anew.
    pub(super) fn leave_site(&mut self, common: &mut Common, context: &mut Context<'_>) {
        common.shared.carrier.lose_pair();
        common.session.withdraw_memory();
        for (end, receiver) in self.ends.iter_mut() {
            let again = receiver.want_again();
            context
                .wanted
                .extend(again.map(|(sequence, length)| MemoryWanted {
                    session: common.shared.clone(),
                    end,
                    purpose: Purpose::Large { sequence, length },
                }));
        }
    }
}
