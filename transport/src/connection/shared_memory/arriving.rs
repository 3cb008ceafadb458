//! Messages and descriptors that a peer passes over a session's Unix socket.
//!
//! A malformed message ends the session; a message for which the kernel refuses something is
//! tried again.

use std::{fmt, mem, os::fd::AsFd, time::Duration};

use ibex_protocol::{
    format::control::Role,
    id_map::IdMap,
    session::{Agreed, Session},
    timer::Timer,
};

use super::{Opening, SharedMemory};
use crate::{
    clock,
    connection::{
        Context,
        core::Common,
        ends::Ends,
        receivers::{ReceiverState, Receivers},
    },
    endpoint::receive_end::{LargeArrival, LargePlace, SourceOffer},
    node::{Warning, warn_of},
    session::EndCause,
    shared_memory::{
        FdSocketError, MESSAGE_SLOTS, PacketRead, PassedFd, PassedSegment, PeerControlSegment,
        SegmentRefused, check_kind, message::ShmMessage, most_segments, segment_bytes,
    },
};

impl SharedMemory {
    /// Takes in at most the given number of messages from the socket.
    ///
    /// # Errors
    /// The peer broke the protocol, or this process lacks what a message needs.
    pub(in crate::connection) fn receive(
        &mut self,
        most: usize,
        common: &mut Common,
        ends: &mut Ends,
        context: &mut Context<'_>,
    ) -> Result<(), EndCause> {
        for _ in 0..most {
            self.has_more = false;
            let received = match self.socket.receive() {
                Ok(PacketRead::Message(received)) => received,
                Ok(PacketRead::WouldBlock | PacketRead::End) => return Ok(()),
                Ok(PacketRead::NotNow) => {
                    if !mem::replace(&mut self.lacks_descriptor, true) {
                        let peer = common.shared.peer_in_log();
                        warn_of!(
                            context.node.warnings,
                            Warning::NoDescriptor,
                            peer,
                            %peer,
                            "this process is at its limit of open files, so what the peer passes \
                             has to wait: close some, or raise the limit (ulimit -n)"
                        );
                    }
                    let again = clock::now() + PASS_AGAIN;
                    common.timers.set_sooner(Timer::Pass, again);
                    return Ok(());
                }
                Err(error) => return Err(cause_of(&error)),
            };
            self.lacks_descriptor = false;
            // The kind is checked at once, so that no other descriptor is kept, not even for a
            // future channel.
            if let Some(fd) = &received.fd {
                check_kind(fd.as_fd()).map_err(broke)?;
            }
            let message = ShmMessage::decode(received.bytes()).map_err(broke)?;
            if !message.attachment().allows(received.fd.is_some()) {
                return Err(broke("a descriptor is missing or too many"));
            }
            self.handle(message, received.fd, common, ends, context)?;
        }
        // epoll has reported these messages, and reports only messages that come from now on.
        self.has_more = true;
        common.timers.set_sooner(Timer::Pass, clock::now());
        Ok(())
    }

    fn handle(
        &mut self,
        message: ShmMessage,
        fd: Option<PassedFd>,
        common: &mut Common,
        ends: &mut Ends,
        context: &mut Context<'_>,
    ) -> Result<(), EndCause> {
        match (message, fd) {
            (ShmMessage::Hello { asymmetry }, _) => {
                if !asymmetry {
                    common.shared.use_fences();
                }
                self.greeted = true;
                self.open_channels(common, ends, context);
                Ok(())
            }
            (ShmMessage::Control { index }, Some(fd)) => self.take_control_segment(index, fd),
            (
                ShmMessage::End {
                    end,
                    role,
                    segment,
                    block,
                },
                _,
            ) => {
                let announced: usize = self.blocks.iter().map(IdMap::len).sum();
                if announced >= MOST_ANNOUNCED {
                    return Err(broke("too many channel ends are announced"));
                }
                self.blocks[role as usize].insert(end, (segment, block));
                self.open_channels(common, ends, context);
                Ok(())
            }
            (message, fd) => Self::handle_for_receiver(message, fd, common, ends, context),
        }
    }

    fn take_control_segment(&mut self, index: u32, fd: PassedFd) -> Result<(), EndCause> {
        if index as usize != self.peer_segments.len() {
            return Err(broke(format_args!(
                "control segment {index} is out of turn"
            )));
        }
        let (limit, most) = (self.max_channels, most_segments(self.max_channels));
        if self.peer_segments.len() >= most {
            return Err(broke(format_args!(
                "{limit} channel ends need at most {most} control segments, and more came"
            )));
        }
        let accepted = PeerControlSegment::accept(fd, segment_bytes(index));
        let segment = accepted.map_err(|refused| match refused {
            SegmentRefused::Memory(error) => EndCause::Refused {
                why: error.to_string(),
            },
            refused => broke(refused),
        })?;
        self.peer_segments.push(segment);
        Ok(())
    }

    /// Handles a message of the peer's sending end to this node's receiving end.
    fn handle_for_receiver(
        message: ShmMessage,
        fd: Option<PassedFd>,
        common: &Common,
        ends: &mut Ends,
        context: &mut Context<'_>,
    ) -> Result<(), EndCause> {
        let (ShmMessage::Ring { end, .. }
        | ShmMessage::Rest { end }
        | ShmMessage::Forget { end, .. }
        | ShmMessage::Large { end, .. }) = message
        else {
            return Err(broke("a descriptor is missing"));
        };
        let Some(receiver) = receiver_of(end, &common.session, &mut ends.receivers)? else {
            return Ok(());
        };
        match (message, fd) {
            (ShmMessage::Ring { capacity, .. }, Some(fd)) => take_ring(receiver, capacity, fd)?,
            (ShmMessage::Rest { .. }, _) => {
                if !mem::take(&mut receiver.has_ring) {
                    return Err(broke("a ring is given up that never came"));
                }
                return receiver.end.ring_rests().map_err(broke);
            }
            (ShmMessage::Forget { slots, .. }, _) => {
                let mut held = receiver.end.held();
                for slot in (0..u64::BITS).filter(|bit| slots >> bit & 1 != 0) {
                    held.slots.forget(slot);
                }
                return Ok(());
            }
            (
                ShmMessage::Large {
                    sequence,
                    slot,
                    length,
                    capacity,
                    ..
                },
                fd,
            ) => {
                let named = (sequence, length, slot);
                take_large(receiver, named, capacity, fd)?;
            }
            _ => return Err(broke("a descriptor is missing")),
        }
        receiver.end.waiters.take(&mut context.wakers);
        Ok(())
    }

    /// Opens channels of which everything has arrived.
    pub(in crate::connection) fn open_channels(
        &mut self,
        common: &mut Common,
        ends: &mut Ends,
        context: &mut Context<'_>,
    ) {
        if !self.greeted {
            return;
        }
        let mut opened = false;
        let mut at = 0;
        while let Some(&Opening {
            end,
            role,
            peer_end,
            agreed,
        }) = self.opening.get(at)
        {
            let blocks = &mut self.blocks[role.opposite() as usize];
            let Some((segment, block)) = blocks.remove(peer_end) else {
                at += 1;
                continue;
            };
            self.opening.swap_remove(at);
            let segment = self.peer_segments.get(segment as usize).cloned();
            let found = match role {
                Role::Sender => segment
                    .and_then(|segment| segment.receiver_words(block))
                    .zip(ends.senders.ends.get(end))
                    .map(|(words, sender)| {
                        let _ = sender.end.theirs.set(words);
                        sender.end.state.open(agreed);
                        sender.end.waiters.take(&mut context.wakers);
                    }),
                Role::Receiver => segment
                    .and_then(|segment| segment.sender_words(block))
                    .zip(ends.receivers.ends.get(end))
                    .map(|(words, receiver)| {
                        let _ = receiver.end.theirs.set(words);
                        receiver.end.state.open(agreed);
                        receiver.end.waiters.take(&mut context.wakers);
                    }),
            };
            opened = true;
            if role == Role::Sender {
                self.tell_untold(end, role);
            }
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
        ends.forget_openings(common);
        // A peer that opened earlier may have asked, and rung, before this end could see its words.
        ends.receivers.answer_asks(common, &mut context.wakers);
    }
}

/// Returns the receiving end of this node that is paired with the peer's sending end, or `None` if
/// its handle was dropped.
///
/// # Errors
/// The channel is not open yet. The peer passes nothing before this node has sent it where the
/// receiving end's words are, which is when the channel is paired; and the peer has reported its own
/// words on this socket before.
fn receiver_of<'a>(
    peer_end: u32,
    session: &Session,
    receivers: &'a mut Receivers,
) -> Result<Option<&'a mut ReceiverState>, EndCause> {
    let receiver = match session.ends.paired(Role::Sender, peer_end) {
        Some(end) => receivers.ends.get_mut(end),
        None if session.ends.has_received(peer_end) => None,
        None => return Err(broke(NOT_OPEN)),
    };
    match receiver {
        Some(receiver) if receiver.end.state.is_pending() => Err(broke(NOT_OPEN)),
        receiver => Ok(receiver),
    }
}

fn take_ring(receiver: &mut ReceiverState, capacity: u64, fd: PassedFd) -> Result<(), EndCause> {
    let agreed = receiver.end.state.agreed();
    let agreed = agreed.map(|agreed| agreed.window.bytes);
    if agreed != Some(capacity) || receiver.has_ring {
        return Err(broke(format_args!(
            "a ring of {capacity} bytes came, {agreed:?} are agreed"
        )));
    }
    receiver.has_ring = true;
    receiver.end.provide(SourceOffer::Ring { fd, capacity });
    Ok(())
}

/// Takes in a long message of this sequence and length, in the segment of this slot.
///
/// The thread that receives the message maps its segment. Those of messages that wait behind another
/// are mapped here: unread messages of a peer take one descriptor for each channel that the program
/// has opened, and leave the others to other peers.
fn take_large(
    receiver: &ReceiverState,
    (sequence, length, slot): (u64, u64, u32),
    capacity: u64,
    fd: Option<PassedFd>,
) -> Result<(), EndCause> {
    let agreed = receiver.end.state.agreed();
    let limit = agreed.map_or(0, |agreed| agreed.max_message_bytes);
    if length > limit {
        return Err(broke(format_args!(
            "a message of {length} bytes came, the limit is {limit}"
        )));
    }
    let mut large = receiver.end.large();
    if large.len() > MESSAGE_SLOTS {
        return Err(broke("too many large messages are announced"));
    }
    // The segments that wait are mapped too, all but one.
    let most = agreed.map_or(0, Agreed::mapped_bytes);
    let waiting = large.iter().map(LargeArrival::passed_bytes);
    let waiting: u64 = waiting.sum();
    if waiting.saturating_add(capacity) > most {
        return Err(broke(format_args!(
            "a segment of {capacity} bytes came behind others of {waiting}, the limit is {most}"
        )));
    }
    let passed = match fd {
        Some(fd) if large.is_empty() => Some(PassedSegment::Fd(fd)),
        Some(fd) => Some(PassedSegment::mapped(fd, capacity).map_err(broke)?),
        None => None,
    };
    large.push_back(LargeArrival {
        sequence,
        length: length as usize,
        time: 0,
        place: LargePlace::Segment {
            slot,
            capacity,
            passed,
        },
    });
    Ok(())
}

/// Returns the cause that ends a session whose peer broke the protocol.
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

/// The time until ibex repeats a send for which the kernel had no memory or room, or the receipt of
/// a descriptor that this process could not open.
pub(super) const PASS_AGAIN: Duration = Duration::from_millis(20);
/// Most messages that are taken in as a session ends: as many as a socket holds at the largest
/// buffer size that the kernel allows. ibex does not wait for a peer that keeps passing messages.
pub(in crate::connection) const MOST_PASSED: usize = 1 << 13;
/// What a peer did that passes memory of a channel too early.
const NOT_OPEN: &str = "memory came for a channel that is not open";
/// Most channel ends whose words are known before their channels are open.
const MOST_ANNOUNCED: usize = 17 << 10;

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[test]
    fn a_refusal_by_the_kernel_is_not_blamed_on_the_peer() {
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
