//! Messages over a shared-memory session's Unix socket: control segments, where an end's words are
//! in them, rings and segments of large messages.
//!
//! What is wrong with a message ends the session; what the kernel refuses is tried again.

use std::{
    fmt, mem,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};

use ibex_protocol::{format::control::Role, id_map::IdMap, timer::Timer};
use ibex_ring::memory::class_bytes;

use super::{
    core::{Core, Phase},
    idle::SenderSilence,
    receivers::ReceiveLink,
    shared_memory::Opening,
};
use crate::{
    clock,
    connection::Context,
    endpoint::{
        receive_end::{LargeArrival, LargePlace, Source},
        state::End,
    },
    node::{Warning, warn_of},
    session::EndCause,
    shared_memory::{
        FdSocketError, Incoming, MESSAGE_SLOTS, Outgoing, PassedFd, PeerControlSegment,
        SegmentRefused, check_kind,
        message::{self, Message},
        segment_bytes,
    },
    wire::PASSED_PER_TURN,
};

impl Core {
    /// Passes what waits to be passed.
    pub(super) fn flush_local(&mut self, context: &mut Context<'_>) {
        let Some(local) = &mut self.local else { return };
        while let Some((message, fd)) = local.outbox.front() {
            match local
                .socket
                .send(message.encode().as_ref(), fd.as_ref().map(AsFd::as_fd))
            {
                Ok(Outgoing::Sent) => {
                    local.outbox.pop_front();
                }
                Ok(Outgoing::End) => {
                    // Nobody takes what is left, and frames wait for nothing.
                    local.outbox.clear();
                    return;
                }
                Ok(Outgoing::WouldBlock | Outgoing::NotNow) => {
                    let again = clock::now() + PASS_AGAIN;
                    return self.common.timers.set_sooner(Timer::Pass, again);
                }
                Err(error) => {
                    let why = format!("passing a descriptor failed: {error}");
                    return self.end_broken(EndCause::Refused { why }, context);
                }
            }
        }
    }

    /// Whether frames wait for what is to be passed: the peer shall have it before it hears of
    /// an end, or of a goodbye, that comes behind it. One that has said goodbye itself has no
    /// use for it.
    pub(super) fn has_to_pass(&self) -> bool {
        let is_wanted = matches!(self.phase, Phase::Up | Phase::Closing);
        is_wanted
            && self
                .local
                .as_ref()
                .is_some_and(|local| !local.outbox.is_empty())
    }

    /// The handle of a sending end has made its ring.
    pub(crate) fn pass_ring(&mut self, end: u32, capacity: u64, fd: OwnedFd) {
        if let Some(local) = &mut self.local {
            if let Some(sender) = self.senders.get_mut(end) {
                sender.silence = Some(SenderSilence::new());
            }
            local
                .outbox
                .push_back((Message::Ring { end, capacity }, Some(fd)));
        }
    }

    /// A sending end has given its ring up.
    pub(super) fn pass_rest(&mut self, end: u32) {
        if let Some(local) = &mut self.local {
            local.outbox.push_back((Message::Rest { end }, None));
        }
    }

    /// Slots of a sending end have no segments any more, as a set of bits.
    pub(crate) fn pass_forget(&mut self, end: u32, slots: u64) {
        if let Some(local) = &mut self.local {
            local
                .outbox
                .push_back((Message::Forget { end, slots }, None));
        }
    }

    /// A message that is longer than its ring lies in a segment of its own.
    pub(crate) fn pass_large(
        &mut self,
        end: u32,
        sequence: u64,
        slot: u32,
        length: u64,
        capacity: u64,
        fd: Option<OwnedFd>,
    ) {
        if let Some(local) = &mut self.local {
            let message = Message::Large {
                end,
                sequence,
                slot,
                length,
                capacity,
            };
            local.outbox.push_back((message, fd));
        }
    }

    /// Something came over the Unix socket, or what was not possible is tried again.
    pub(crate) fn look_at_unix(&mut self, context: &mut Context<'_>) {
        self.receive_local(context);
        self.flush_local(context);
        if let Some(local) = &mut self.local
            && local.has_goodbye
            && !local.is_behind()
        {
            local.has_goodbye = false;
            self.peer_said_goodbye(context);
        }
    }

    /// Takes in what the Unix socket has, as far as this process may open the descriptors that
    /// come with it and a session's share of a turn goes, and then the ends that waited for it.
    pub(super) fn receive_local(&mut self, context: &mut Context<'_>) {
        self.receive_some_local(PASSED_PER_TURN, context);
    }

    /// The same as the session ends: what the peer passed before is still to be had.
    pub(super) fn receive_rest_of_local(&mut self, context: &mut Context<'_>) {
        self.receive_some_local(MOST_PASSED, context);
    }

    fn receive_some_local(&mut self, most: usize, context: &mut Context<'_>) {
        self.receive_passed(most, context);
        let Some(local) = &mut self.local else { return };
        if local.closed_behind.is_empty() || local.is_behind() {
            return;
        }
        for (end, reason) in mem::take(&mut local.closed_behind) {
            self.end_channel(end, End::Cause(EndCause::PeerClosed(reason)), context);
        }
    }

    fn receive_passed(&mut self, most: usize, context: &mut Context<'_>) {
        for _ in 0..most {
            let Some(local) = &mut self.local else { return };
            local.has_more = false;
            let received = match local.socket.receive() {
                Ok(Incoming::Message(received)) => received,
                Ok(Incoming::WouldBlock | Incoming::End) => return,
                Ok(Incoming::NotNow) => {
                    if !mem::replace(&mut local.lacks_descriptor, true) {
                        let peer = self.common.shared.peer_in_log();
                        warn_of!(
                            context.node().warnings,
                            Warning::NoDescriptor,
                            peer,
                            %peer,
                            "this process is at its limit of open files, so what the peer passes \
                             has to wait: close some, or raise the limit (ulimit -n)"
                        );
                    }
                    let again = clock::now() + PASS_AGAIN;
                    return self.common.timers.set_sooner(Timer::Pass, again);
                }
                Err(error) => return self.finish_broken(cause_of(&error), context),
            };
            local.lacks_descriptor = false;
            // At once, so that nothing else is kept, be it for a channel to come.
            let kind = received
                .fd
                .as_ref()
                .map_or(Ok(()), |fd| check_kind(fd.as_fd()));
            if let Err(refused) = kind {
                return self.finish_broken(broke(refused), context);
            }
            let handled = match Message::decode(received.bytes()) {
                Ok(message) if message.attachment().allows(received.fd.is_some()) => {
                    self.handle_local(message, received.fd, context)
                }
                Ok(_) => Err(broke("a descriptor is missing or too many")),
                Err(malformed) => Err(broke(malformed)),
            };
            if let Err(cause) = handled {
                return self.finish_broken(cause, context);
            }
        }
        // epoll has told of it, and tells of nothing but what comes now.
        if let Some(local) = &mut self.local {
            local.has_more = true;
            self.common.timers.set_sooner(Timer::Pass, clock::now());
        }
    }

    fn handle_local(
        &mut self,
        message: Message,
        fd: Option<PassedFd>,
        context: &mut Context<'_>,
    ) -> Result<(), EndCause> {
        let Some(local) = &mut self.local else {
            return Ok(());
        };
        match (message, fd) {
            (Message::Hello { asymmetry }, _) => {
                if !asymmetry {
                    self.common.shared.use_fences();
                }
                local.greeted = true;
                self.open_local(context);
                Ok(())
            }
            (Message::Control { index }, Some(fd)) => self.take_control_segment(index, fd),
            (
                Message::End {
                    end,
                    role,
                    segment,
                    block,
                },
                _,
            ) => {
                let announced: usize = local.blocks.iter().map(IdMap::len).sum();
                if announced >= MAX_SEGMENTS as usize * 256 {
                    return Err(broke("too many channel ends are announced"));
                }
                let role = match role {
                    message::Role::Sender => Role::Sender,
                    message::Role::Receiver => Role::Receiver,
                };
                local.blocks[role as usize].insert(end, (segment, block));
                self.open_local(context);
                Ok(())
            }
            (message, fd) => self.handle_for_receiver(message, fd, context),
        }
    }

    fn take_control_segment(&mut self, index: u32, fd: PassedFd) -> Result<(), EndCause> {
        let Some(local) = &mut self.local else {
            return Ok(());
        };
        if index as usize != local.peer_segments.len() || index >= MAX_SEGMENTS {
            return Err(broke(format_args!(
                "control segment {index} is out of turn"
            )));
        }
        let accepted = PeerControlSegment::accept(fd, segment_bytes(index));
        let segment = accepted.map_err(|refused| match refused {
            SegmentRefused::Memory(error) => EndCause::Refused {
                why: error.to_string(),
            },
            refused => broke(refused),
        })?;
        local.peer_segments.push(segment);
        Ok(())
    }

    /// What the peer's sending end passes to ours that receives.
    fn handle_for_receiver(
        &mut self,
        message: Message,
        fd: Option<PassedFd>,
        context: &mut Context<'_>,
    ) -> Result<(), EndCause> {
        let (Message::Ring { end, .. }
        | Message::Rest { end }
        | Message::Forget { end, .. }
        | Message::Large { end, .. }) = message
        else {
            return Err(broke("a descriptor is missing"));
        };
        let receiver = match self.receiver_of(end) {
            Counterpart::Here(receiver) => receiver,
            Counterpart::Gone => return Ok(()),
            Counterpart::NotYet => return self.keep_for_later(message, fd),
        };
        match (message, fd) {
            (Message::Ring { capacity, .. }, Some(fd)) => take_ring(receiver, capacity, fd)?,
            (Message::Rest { .. }, _) => {
                if !mem::take(&mut receiver.has_ring) {
                    return Err(broke("a ring is given up that never came"));
                }
                return receiver.end.ring_rests().map_err(broke);
            }
            (Message::Forget { slots, .. }, _) => {
                let mut held = receiver.end.held();
                for slot in (0..u64::BITS).filter(|bit| slots >> bit & 1 != 0) {
                    held.slots.forget(slot);
                }
                return Ok(());
            }
            (
                Message::Large {
                    sequence,
                    slot,
                    length,
                    capacity,
                    ..
                },
                fd,
            ) => {
                let arrival = LargeArrival {
                    sequence,
                    length: length as usize,
                    time: 0,
                    place: LargePlace::Segment { slot, capacity, fd },
                };
                take_large(receiver, arrival, capacity)?;
            }
            _ => return Err(broke("a descriptor is missing")),
        }
        receiver.end.waiters.take(&mut context.wakers);
        Ok(())
    }

    /// Our receiving end that is paired with the peer's sending end.
    fn receiver_of(&mut self, peer_end: u32) -> Counterpart<'_> {
        let Some(end) = self.common.session.paired(Role::Sender, peer_end) else {
            // Of one that we have heard of only what is over by now is in no pair: the peer
            // passes nothing before it has heard of ours, which we knew before.
            return match self.common.session.has_heard_of(peer_end) {
                true => Counterpart::Gone,
                false => Counterpart::NotYet,
            };
        };
        match self.receivers.get_mut(end) {
            Some(receiver) if receiver.end.state.is_pending() => Counterpart::NotYet,
            Some(receiver) => Counterpart::Here(receiver),
            None => Counterpart::Gone,
        }
    }

    /// The two sockets are not ordered: what came before its channel's open waits for it.
    fn keep_for_later(&mut self, message: Message, fd: Option<PassedFd>) -> Result<(), EndCause> {
        if let Some(local) = &mut self.local {
            if local.early.len() >= MAX_EARLY {
                return Err(broke("too much came for channels that are not open"));
            }
            local.early.push_back((message, fd));
        }
        Ok(())
    }

    /// Opens channels of which everything is here.
    pub(super) fn open_local(&mut self, context: &mut Context<'_>) {
        let Some(local) = &mut self.local else { return };
        if !local.greeted {
            return;
        }
        let mut opened = false;
        let mut at = 0;
        while let Some(&Opening {
            end,
            role,
            peer_end,
            agreed,
        }) = local.opening.get(at)
        {
            let blocks = &mut local.blocks[role.opposite() as usize];
            let Some((segment, block)) = blocks.remove(peer_end) else {
                at += 1;
                continue;
            };
            local.opening.swap_remove(at);
            let segment = local.peer_segments.get(segment as usize).cloned();
            let found = match role {
                Role::Sender => segment
                    .and_then(|segment| segment.receiver_words(block))
                    .zip(self.senders.get(end))
                    .map(|(words, sender)| {
                        let _ = sender.end.theirs.set(words);
                        sender.end.state.open(agreed);
                        sender.end.waiters.take(&mut context.wakers);
                    }),
                Role::Receiver => segment
                    .and_then(|segment| segment.sender_words(block))
                    .zip(self.receivers.get(end))
                    .map(|(words, receiver)| {
                        let _ = receiver.end.theirs.set(words);
                        receiver.end.state.open(agreed);
                        receiver.end.waiters.take(&mut context.wakers);
                    }),
            };
            opened = true;
            if found.is_none() {
                tracing::debug!(
                    end,
                    "a channel's block does not exist, or its handle is gone"
                );
            }
        }
        if !opened {
            return;
        }
        let early = mem::take(&mut local.early);
        self.forget_openings();
        // A peer that opened earlier may have asked, and rung for it, before we could see
        // its words.
        self.answer_asks(context);
        for (message, fd) in early {
            if let Err(cause) = self.handle_local(message, fd, context) {
                return self.finish_broken(cause, context);
            }
        }
    }
}

fn take_ring(receiver: &mut ReceiveLink, capacity: u64, fd: PassedFd) -> Result<(), EndCause> {
    let agreed = receiver.end.state.agreed();
    let agreed = agreed.map(|agreed| agreed.window.bytes);
    if agreed != Some(capacity) || receiver.has_ring {
        return Err(broke(format_args!(
            "a ring of {capacity} bytes came, {agreed:?} are agreed"
        )));
    }
    receiver.has_ring = true;
    receiver.end.provide(Source::Ring { fd, capacity });
    Ok(())
}

fn take_large(
    receiver: &ReceiveLink,
    arrival: LargeArrival,
    capacity: u64,
) -> Result<(), EndCause> {
    let agreed = receiver.end.state.agreed();
    let limit = agreed.map_or(0, |agreed| agreed.max_message_bytes);
    let length = arrival.length as u64;
    let longest = usize::try_from(limit).ok().map(class_bytes);
    let longest = longest.and_then(Result::ok).unwrap_or(0) as u64;
    if length > limit || capacity > longest {
        return Err(broke(format_args!(
            "a message of {length} bytes came, the limit is {limit}"
        )));
    }
    let mut large = receiver.end.large();
    if large.len() > MESSAGE_SLOTS {
        return Err(broke("too many large messages are announced"));
    }
    large.push_back(arrival);
    Ok(())
}

/// The peer broke the protocol.
fn broke(what: impl fmt::Display) -> EndCause {
    EndCause::lost(format!("it broke the protocol: {what}"))
}

fn cause_of(error: &FdSocketError) -> EndCause {
    match error {
        FdSocketError::Kernel { .. } => EndCause::Refused {
            why: error.to_string(),
        },
        FdSocketError::TooManyDescriptors | FdSocketError::TooLong => broke(error),
    }
}

/// A receiving end as seen from the peer's sending end.
enum Counterpart<'a> {
    Here(&'a mut ReceiveLink),
    /// Its open has not come over the connection.
    NotYet,
    /// Its handle was dropped.
    Gone,
}

/// Until the kernel is asked again to take what it had no memory or no place for, or to give
/// what this process could not open.
const PASS_AGAIN: Duration = Duration::from_millis(20);
/// Messages that are taken in as a session ends: as many as a socket holds, by whatever the
/// kernel lets a process set. A peer that goes on passing them is not waited for.
const MOST_PASSED: usize = 1 << 13;
/// Descriptors that may wait for their channel's open.
const MAX_EARLY: usize = 1024;
/// Control segments that a peer may pass: up to 256 channel ends each.
const MAX_SEGMENTS: u32 = 68;

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn what_the_kernel_refuses_is_not_blamed_on_the_peer() {
        let source = io::ErrorKind::OutOfMemory.into();
        let ours = cause_of(&FdSocketError::Kernel { source });
        assert!(matches!(ours, EndCause::Refused { .. }), "{ours}");
        let theirs = cause_of(&FdSocketError::TooLong);
        assert!(matches!(theirs, EndCause::PeerGone { .. }), "{theirs}");
        assert!(
            theirs.to_string().contains("it broke the protocol"),
            "{theirs}"
        );
    }
}
