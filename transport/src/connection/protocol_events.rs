//! Reactions to the events of the protocol's session.

use ibex_protocol::{
    format::{
        control::{CloseReason, Role},
        record,
    },
    session::{Agreed, SessionEvent},
};
use ibex_ring::{
    arrival_ring,
    end_status::{ReceiverWords, Words},
};

use super::{
    core::{Common, Core, Phase},
    outages::GIVEN_UP,
};
use crate::{
    connection::Context,
    endpoint::{receive_end::SourceOffer, state::EndReason},
    node::What,
    session::EndCause,
    wire::PASSED_PER_TURN,
};

impl Common {
    /// Reports that the session is up.
    pub(crate) fn tell_of_connection(&mut self, context: &mut Context<'_>) {
        if context.node.is_draining() {
            self.session.outgoing.say_draining(false);
        }
        let peer = self.shared.peer();
        let (fabric, reason) = (peer.fabric, peer.reason.clone());
        self.tell(What::Connected { fabric, reason }, context);
    }

    /// Reports `what` to the listeners to the node's events, unless they know that the session is
    /// over: a handle may notice something at the moment of the end.
    pub(crate) fn tell(&self, what: What, context: &mut Context<'_>) {
        if self.phase == Phase::Gone && !matches!(what, What::Gone { .. }) {
            return;
        }
        if let What::Gone { cause } = &what {
            self.shared.ending.came(cause, &mut context.wakers);
            context.node.draining.take_waiters(&mut context.wakers);
        }
        let events = &context.node.events;
        events.tell(self.shared.peer(), what, &mut context.wakers);
    }
}

impl Core {
    #[inline]
    pub(super) fn handle_events(&mut self, context: &mut Context<'_>) {
        if self.common.session.has_events() {
            self.handle_all_events(context);
        }
    }

    #[inline(never)]
    fn handle_all_events(&mut self, context: &mut Context<'_>) {
        while let Some(event) = self.common.session.poll_event() {
            match event {
                SessionEvent::PeerOpened { name, role } => {
                    let bytes = self.common.session.ends.unpaired_bytes();
                    if let Err(why) = self.unopened.charge(bytes, context.node) {
                        self.fail(&why.to_string(), context);
                    } else if role == Role::Receiver {
                        let (session, gatherings) = (&self.common.shared, context.gatherings);
                        gatherings.peer_subscribes(session, &name, &mut context.wakers);
                    }
                }
                SessionEvent::Opened {
                    end,
                    peer_end,
                    agreed,
                } => {
                    self.unopened
                        .shrink(self.common.session.ends.unpaired_bytes());
                    self.opened(end, peer_end, agreed, context);
                }
                SessionEvent::Mismatched { end, theirs } => {
                    self.ends
                        .end(end, EndReason::Mismatch(theirs), &mut context.wakers);
                }
                SessionEvent::Counted { end, counters } => {
                    if let Some(sender) = self.ends.senders.ends.get_mut(end) {
                        if let Some(theirs) = sender.end.theirs.get() {
                            theirs.report(&counters);
                        }
                        sender.end.waiters.take(&mut context.wakers);
                        sender.large_arrived(
                            counters.received,
                            &self.common.session,
                            &mut self.retained,
                        );
                    }
                }
                SessionEvent::Asked { end } => {
                    if let Some(receiver) = self.ends.receivers.ends.get(end) {
                        receiver.end.answer_ask();
                        // The receiver may wait for a guard that was just counted.
                        receiver.end.waiters.take(&mut context.wakers);
                        self.common.session.released(end, &receiver.end.counters());
                        if self.common.session.ends.wants_room(end) {
                            self.ends.receivers.room_is_wanted(end, &mut self.common);
                        }
                    }
                }
                SessionEvent::Notified { end, counters } => {
                    if let Some(receiver) = self.ends.receivers.ends.get(end) {
                        receiver.end.notified(&counters);
                    }
                }
                SessionEvent::PeerClosed {
                    end,
                    reason,
                    final_sequence,
                } => {
                    self.peer_closed(end, reason, final_sequence, context);
                }
                SessionEvent::LargeAnnounced {
                    end,
                    sequence,
                    length,
                    is_offered,
                } => {
                    let common = &mut self.common;
                    let receivers = &mut self.ends.receivers;
                    let announced = (sequence, length);
                    receivers.large_announced(end, announced, is_offered, common, context);
                }
                SessionEvent::EagerBlockReturned { index } => {
                    self.grants
                        .returned(index, &mut self.ends.receivers, context);
                }
                SessionEvent::Forgotten { end } => {
                    self.ends.senders.forget(end, &mut self.retained);
                    self.grants.forget(end, context);
                    if let Some(shared_memory) = &mut self.shared_memory {
                        shared_memory.forget_words(end);
                    }
                }
                SessionEvent::Goodbye { reason } => {
                    self.peer_sent_goodbye(EndCause::of_goodbye(reason.as_deref()), context);
                }
                SessionEvent::Abandoned => {
                    self.is_certainly_gone(GIVEN_UP, context);
                }
                SessionEvent::Draining { is_done } => self.common.peer_drains(is_done, context),
                SessionEvent::Damaged { times } => {
                    if let Some(reconnect) = &mut self.reconnect {
                        reconnect.peer_found_damage(times, &self.common);
                    }
                }
                SessionEvent::Replay {
                    end,
                    received,
                    position,
                } => {
                    let sender = self.ends.senders.ends.get_mut(end);
                    if !sender.is_some_and(|sender| sender.replay(received, position)) {
                        let why = format!(
                            "it broke the protocol: message {received} of channel {end} does not \
                             end where it says"
                        );
                        return self.fail(&why, context);
                    }
                }
                SessionEvent::Resumed { replayed } => {
                    if let Some(reconnect) = &mut self.reconnect {
                        let place = self.place.as_deref();
                        reconnect.goes_on(replayed, place, &mut self.common, context);
                    }
                }
            }
        }
        // The peer waits for the words of a receiving end that it has just been paired with.
        self.flush_passed(context);
    }

    /// Handles that both ends are open: gives this end's handle all that it needs, once that is
    /// complete.
    fn opened(&mut self, end: u32, peer_end: u32, agreed: Agreed, context: &mut Context<'_>) {
        let role = if self.ends.senders.ends.contains(end) {
            Role::Sender
        } else {
            Role::Receiver
        };
        if let Some(shared_memory) = &mut self.shared_memory {
            // The peer's words come over the Unix socket, before or after this.
            shared_memory.opened(end, role, peer_end, agreed);
            shared_memory.open_channels(&mut self.common, &mut self.ends, context);
            return;
        }
        if let Some(sender) = self.ends.senders.ends.get(end) {
            let words = Words::<ReceiverWords>::local();
            words.reset(record::first_position(agreed.alignment as usize));
            let _ = sender.end.theirs.set(words);
            sender.end.state.open(agreed);
            sender.end.waiters.take(&mut context.wakers);
        }
        if let Some(receiver) = self.ends.receivers.ends.get_mut(end) {
            let arrivals = arrival_ring(agreed.window.messages.next_power_of_two() as usize);
            let (writer, reader, retirer) = match arrivals {
                Ok(arrivals) => arrivals,
                Err(error) => return self.receiver_lacks_memory(end, &error, context),
            };
            receiver.writer = Some(writer);
            receiver.end.held().frames = Some(retirer);
            let _ = receiver.end.theirs.set(Words::local());
            // The agreed terms come first, because they say how to read the frames that are
            // provided.
            receiver.end.state.open(agreed);
            let ends = &mut self.common.session.ends;
            ends.tell_every(end, receiver.end.tell_every);
            receiver.end.provide(SourceOffer::Frames(reader));
            receiver.end.waiters.take(&mut context.wakers);
        }
        self.ends.forget_openings(&mut self.common);
    }

    fn peer_closed(
        &mut self,
        end: u32,
        reason: CloseReason,
        final_sequence: u64,
        context: &mut Context<'_>,
    ) {
        // Messages that the peer passed before it closed its end are still to be handed out.
        self.receive_passed(PASSED_PER_TURN, context);
        if let Some(receiver) = self.ends.receivers.ends.get(end) {
            if reason == CloseReason::Dropped {
                // Once this end sends goodbye, the peer also closes ends that its application did
                // not.
                if self.common.phase != Phase::Closing {
                    receiver
                        .end
                        .path
                        .sender_closed(&receiver.end, final_sequence);
                }
            } else if let Some(shared_memory) = &mut self.shared_memory
                && shared_memory.is_behind()
            {
                shared_memory.closed_behind.push((end, reason));
            } else {
                receiver
                    .end
                    .state
                    .end(EndReason::Cause(EndCause::PeerClosed(reason)));
            }
            receiver.end.waiters.take(&mut context.wakers);
        }
        if self.ends.senders.ends.contains(end) {
            let why = EndReason::Cause(EndCause::PeerClosed(reason));
            self.ends.end(end, why, &mut context.wakers);
            self.ends.senders.forget_large(end, 0, &mut self.retained);
            if let Some(sender) = self.ends.senders.ends.get_mut(end) {
                sender.leave_passed(context);
            }
        }
    }
}
