//! The shared-memory half of a link: what passes descriptors, and the bell that the peer
//! rings. Data never comes through here.
//!
//! A channel is open once both its `Open` came over the connection and the peer's block
//! of words over the Unix socket, in whatever order.

use std::sync::atomic::Ordering;
use std::{
    collections::VecDeque,
    fmt, io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
    time::{Duration, Instant},
};

use rustix::event::{
    EventfdFlags,
    epoll::{self, EventData, EventFlags},
    eventfd,
};

use super::{Link, silence::SenderSilence, stalls::wants_room};
use crate::{
    channel::{
        EndCause,
        receive_end::{LargeArrival, LargePlace, Source},
        stall::NOTICE,
        words::{ReceiverWords, SenderWords, Words},
    },
    driver::{Context, PeerDescription, Wire},
    engine::{control::Role, id_map::IdMap, session::Agreed, timer::Timer},
    fabric::shm::{
        ControlBlock, ControlSegments, FdSocket, FdSocketError, Incoming, Outgoing,
        PeerControlSegment, Reader, SegmentRefused, SegmentShare, Sizes,
        message::{self, Message},
    },
    memory::MemoryError,
    ring::Asymmetry,
};

/// The wires of a shared-memory session beside its connection.
pub(super) struct LocalWires {
    socket: FdSocket,
    /// Rung by the peer.
    bell: OwnedFd,
    /// What the socket did not take yet.
    outbox: VecDeque<(Message, Option<OwnedFd>)>,

    /// A silent sender gives its ring up.
    pub(super) rings_rest: bool,

    // Words of channel ends.
    sizes: Sizes,
    /// The peer's process, if it is known.
    reader: Option<Reader>,
    shares: Vec<Arc<SegmentShare>>,
    /// Those of receiving ends that are closed: their senders may read them yet.
    closed: IdMap<Words<ReceiverWords>>,
    peer_segments: Vec<Arc<PeerControlSegment>>,
    /// The peer's blocks, by role and id, until the channel opens.
    blocks: [IdMap<(u32, u32)>; 2],
    /// Channels whose opens met and whose peer's block has not come.
    opening: Vec<Opening>,
    /// Rings and large messages of channels whose open is still on the connection.
    early: VecDeque<(Message, Option<OwnedFd>)>,
    greeted: bool,
}

#[derive(Clone, Copy)]
struct Opening {
    end: u32,
    role: Role,
    peer_end: u32,
    agreed: Agreed,
}

impl LocalWires {
    /// A peer that knows of rings that rest knows of control segments of several lengths.
    pub(super) fn new(
        unix: OwnedFd,
        session: u64,
        peer: &PeerDescription,
        epoll: &OwnedFd,
    ) -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let theirs = rustix::io::fcntl_dupfd_cloexec(&bell, 0)?;
        let socket = FdSocket::new(unix);
        let add = |fd, wire: Wire| {
            epoll::add(
                epoll,
                fd,
                EventData::new_u64(wire.token(session)),
                EventFlags::IN,
            )
        };
        add(bell.as_fd(), Wire::Bell)?;
        add(socket.as_fd(), Wire::Unix)?;
        let asymmetry = Asymmetry::of_process() == Asymmetry::Membarrier;
        Ok(Self {
            socket,
            bell,
            outbox: VecDeque::from([(Message::Hello { asymmetry }, Some(theirs))]),
            rings_rest: peer.rests,
            sizes: match peer.rests {
                true => Sizes::Growing,
                false => Sizes::Fixed,
            },
            reader: peer.pid.map(|pid| Reader {
                pid,
                incarnation: peer.incarnation,
            }),
            shares: Vec::new(),
            closed: IdMap::new(),
            peer_segments: Vec::new(),
            blocks: Default::default(),
            opening: Vec::new(),
            early: VecDeque::new(),
            greeted: false,
        })
    }

    pub(super) fn unregister(&self, epoll: &OwnedFd) {
        let _ = epoll::delete(epoll, &self.bell);
        let _ = epoll::delete(epoll, &self.socket);
    }

    /// Frees what its queues took, as far as nothing is in them.
    pub(super) fn rest(&mut self) {
        self.outbox.shrink_to_fit();
        self.opening.shrink_to_fit();
        self.early.shrink_to_fit();
        self.closed.shrink_to_fit();
        self.blocks.iter_mut().for_each(IdMap::shrink_to_fit);
    }

    /// A block for an end of ours, in a new segment if all are full. It is free again when it
    /// is dropped.
    pub(super) fn lease_block(
        &mut self,
        segments: &ControlSegments,
    ) -> Result<LeasedBlock, MemoryError> {
        let mut shares = self.shares.iter().enumerate();
        let free = shares.find_map(|(segment, share)| Some((segment, share.lease_block()?)));
        let (segment, block) = match free {
            Some(found) => found,
            None => {
                let index = self.shares.len();
                let segment = segments.provide(self.reader, self.sizes.bytes(index as u32))?;
                let fd = segment.to_pass()?;
                let share = SegmentShare::new(segment);
                let block = share
                    .lease_block()
                    .expect("a segment is provided with a free block");
                self.shares.push(share);
                let index = index as u32;
                self.outbox
                    .push_back((Message::Control { index }, Some(fd)));
                (index as usize, block)
            }
        };
        let segment = segment as u32;
        Ok(LeasedBlock { segment, block })
    }

    /// Tells the peer where the words of sending end `end` are.
    pub(super) fn give_to_sender(&mut self, end: u32, leased: LeasedBlock) -> Words<SenderWords> {
        self.tell_block(end, message::Role::Sender, &leased);
        leased.block.into_sender_words()
    }

    /// Tells the peer where the words of receiving end `end` are, whose ring begins at
    /// `first_position`.
    pub(super) fn give_to_receiver(
        &mut self,
        end: u32,
        first_position: u64,
        leased: LeasedBlock,
    ) -> Words<ReceiverWords> {
        self.tell_block(end, message::Role::Receiver, &leased);
        leased.block.into_receiver_words(first_position)
    }

    /// Receiving end `end` is closed, and the peer has not heard of it.
    pub(super) fn keep_words(&mut self, end: u32, words: &Words<ReceiverWords>) {
        self.closed.insert(end, words.clone());
    }

    /// The peer's counterpart of `end` is gone too.
    pub(super) fn forget_words(&mut self, end: u32) {
        self.closed.remove(end);
    }

    fn tell_block(&mut self, end: u32, role: message::Role, leased: &LeasedBlock) {
        let LeasedBlock { segment, block } = leased;
        let message = Message::End {
            end,
            role,
            segment: *segment,
            block: block.index(),
        };
        self.outbox.push_back((message, None));
    }

    /// The opens of both ends met.
    pub(super) fn opened(&mut self, end: u32, role: Role, peer_end: u32, agreed: Agreed) {
        self.opening.push(Opening {
            end,
            role,
            peer_end,
            agreed,
        });
    }
}

/// A block that no end has yet.
#[derive(Debug)]
pub(super) struct LeasedBlock {
    segment: u32,
    block: ControlBlock,
}

impl Link {
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
                // The peer reads it in its own time; its next message or bell brings us
                // back, and so does every wish of a handle.
                Ok(Outgoing::WouldBlock | Outgoing::End) => return,
                Ok(Outgoing::NotNow) => {
                    let again = Instant::now() + PASS_AGAIN;
                    return self.timers.set_sooner(Timer::Pass, again);
                }
                Err(error) => {
                    let why = format!("passing a descriptor failed: {error}");
                    return self.end_broken(EndCause::Refused { why }, context);
                }
            }
        }
    }

    /// The handle of a sending end has made its ring.
    pub(crate) fn pass_ring(&mut self, end: u32, capacity: u64, fd: OwnedFd) {
        if let Some(local) = &mut self.local {
            if local.rings_rest
                && let Some(sender) = self.senders.get_mut(end)
            {
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

    pub(crate) fn unix_is_ready(&mut self, context: &mut Context<'_>) {
        self.receive_local(context);
        self.flush_local(context);
    }

    /// Takes in everything that the Unix socket has.
    pub(super) fn receive_local(&mut self, context: &mut Context<'_>) {
        loop {
            let Some(local) = &mut self.local else { return };
            let received = match local.socket.receive() {
                Ok(Incoming::Message(received)) => received,
                Ok(Incoming::WouldBlock | Incoming::End) => return,
                Err(error) => return self.finish_broken(cause_of(&error), context),
            };
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
    }

    fn handle_local(
        &mut self,
        message: Message,
        fd: Option<OwnedFd>,
        context: &mut Context<'_>,
    ) -> Result<(), EndCause> {
        let Some(local) = &mut self.local else {
            return Ok(());
        };
        match (message, fd) {
            (Message::Hello { asymmetry }, Some(fd)) => {
                if !asymmetry {
                    self.shared.use_fences();
                }
                local.greeted = true;
                self.shared.set_peer_bell(fd);
                self.open_local(context);
            }
            (Message::Control { index }, Some(fd)) => {
                if index as usize != local.peer_segments.len() || index >= MAX_SEGMENTS {
                    return Err(broke(format_args!(
                        "control segment {index} is out of turn"
                    )));
                }
                let segment = PeerControlSegment::accept(fd, local.sizes.bytes(index)).map_err(
                    |refused| match refused {
                        SegmentRefused::Memory(error) => EndCause::Refused {
                            why: error.to_string(),
                        },
                        refused => broke(refused),
                    },
                )?;
                local.peer_segments.push(segment);
            }
            (
                Message::End {
                    end,
                    role,
                    segment,
                    block,
                },
                _,
            ) => {
                let role = match role {
                    message::Role::Sender => Role::Sender,
                    message::Role::Receiver => Role::Receiver,
                };
                let announced: usize = local.blocks.iter().map(IdMap::len).sum();
                if announced >= MAX_SEGMENTS as usize * 256 {
                    return Err(broke("too many channel ends are announced"));
                }
                local.blocks[role as usize].insert(end, (segment, block));
                self.open_local(context);
            }
            (Message::Ring { end, capacity }, Some(fd)) => {
                let receiver = match self.receiver_of(end) {
                    Counterpart::Here(receiver) => receiver,
                    Counterpart::Gone => return Ok(()),
                    Counterpart::NotYet => return self.keep_for_later(message, Some(fd)),
                };
                let agreed = receiver
                    .end
                    .state
                    .agreed()
                    .map(|agreed| agreed.window.bytes);
                if agreed != Some(capacity) || receiver.has_ring {
                    return Err(broke(format_args!(
                        "a ring of {capacity} bytes came, {agreed:?} are agreed"
                    )));
                }
                receiver.has_ring = true;
                receiver.end.provide(Source::Ring { fd, capacity });
                receiver.end.waiters.take(&mut context.wakers);
            }
            (Message::Rest { end }, _) if local.rings_rest => {
                let receiver = match self.receiver_of(end) {
                    Counterpart::Here(receiver) => receiver,
                    Counterpart::Gone => return Ok(()),
                    Counterpart::NotYet => return self.keep_for_later(message, None),
                };
                if !std::mem::take(&mut receiver.has_ring) {
                    return Err(broke("a ring is given up that never came"));
                }
                receiver.end.ring_rests().map_err(broke)?;
            }
            (
                Message::Large {
                    end,
                    sequence,
                    slot,
                    length,
                    capacity,
                },
                fd,
            ) => {
                let receiver = match self.receiver_of(end) {
                    Counterpart::Here(receiver) => receiver,
                    Counterpart::Gone => return Ok(()),
                    Counterpart::NotYet => return self.keep_for_later(message, fd),
                };
                let limit = receiver
                    .end
                    .state
                    .agreed()
                    .map_or(0, |agreed| agreed.max_message_bytes);
                if length > limit || capacity > limit.next_power_of_two().max(1 << 20) * 2 {
                    return Err(broke(format_args!(
                        "a message of {length} bytes came, the limit is {limit}"
                    )));
                }
                let mut large = receiver.end.large();
                if large.len() > MAX_LARGE_WAITING {
                    return Err(broke("too many large messages are announced"));
                }
                let place = LargePlace::Segment { slot, capacity, fd };
                large.push_back(LargeArrival {
                    sequence,
                    length: length as usize,
                    time: 0,
                    place,
                });
                drop(large);
                receiver.end.waiters.take(&mut context.wakers);
            }
            (Message::Hello { .. } | Message::Control { .. } | Message::Ring { .. }, None) => {
                return Err(broke("a descriptor is missing"));
            }
            (Message::Rest { .. }, _) => {
                return Err(broke("rings that rest were not agreed on"));
            }
        }
        Ok(())
    }

    /// Our receiving end that is paired with the peer's sending end.
    fn receiver_of(&mut self, peer_end: u32) -> Counterpart<'_> {
        let Some(end) = self.session.paired(Role::Sender, peer_end) else {
            return Counterpart::NotYet;
        };
        match self.receivers.get_mut(end) {
            Some(receiver) if receiver.end.state.is_pending() => Counterpart::NotYet,
            Some(receiver) => Counterpart::Here(receiver),
            None => Counterpart::Gone,
        }
    }

    /// The two sockets are not ordered: what came before its channel's open waits for it.
    fn keep_for_later(&mut self, message: Message, fd: Option<OwnedFd>) -> Result<(), EndCause> {
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
        let early = std::mem::take(&mut local.early);
        // A peer that opened earlier may have asked, and rung for it, before we could see
        // its words.
        self.answer_asks(context);
        for (message, fd) in early {
            if let Err(cause) = self.handle_local(message, fd, context) {
                return self.finish_broken(cause, context);
            }
        }
    }

    /// Answers the senders that have asked since they were last answered.
    fn answer_asks(&mut self, context: &mut Context<'_>) {
        let mut wanted = None;
        for receiver in self.receivers.values_mut() {
            let Some(theirs) = receiver.end.theirs.get() else {
                continue;
            };
            let asked = theirs.asked.load(Ordering::Relaxed);
            if asked != receiver.answered {
                receiver.answered = asked;
                if asked != 0 {
                    receiver.end.answer_ask();
                    // It may wait for a guard that was counted here.
                    receiver.end.waiters.take(&mut context.wakers);
                    if wants_room(theirs) {
                        receiver.room_is_wanted(*wanted.get_or_insert_with(Instant::now));
                    }
                }
            }
        }
        if let Some(now) = wanted {
            self.timers.set_sooner(Timer::Stall, now + NOTICE);
        }
    }

    /// Arms the receivers that no thread waits in, for a program that sleeps on the epoll
    /// set and takes messages without waiting. Returns whether any was: then the program
    /// must look again before it sleeps.
    ///
    /// The word belongs to the handle, which may be arming it at this moment on another
    /// thread. So it is replaced only if it is still what was seen here, spent and nobody's;
    /// and the upper half of the generations is ours, so that none comes twice.
    pub(crate) fn arm_receivers(&mut self) -> bool {
        if self.local.is_none() {
            return false;
        }
        let mut any = false;
        for receiver in self.receivers.values_mut() {
            let end = &receiver.end;
            let (Some(theirs), Some(ours)) = (end.theirs.get(), end.ours.get()) else {
                continue;
            };
            let seen = ours.armed.load(Ordering::Relaxed);
            let is_spent = seen == 0 || theirs.rung.is_for(&ours.armed);
            if !is_spent || end.waiters.is_waiting() {
                continue;
            }
            let next = receiver.armed_for_caller.wrapping_add(1) | ARMED_FOR_CALLER;
            receiver.armed_for_caller = next;
            let replaced =
                ours.armed
                    .compare_exchange(seen, next, Ordering::Relaxed, Ordering::Relaxed);
            any |= replaced.is_ok();
        }
        if any {
            // DOORBELL, the heavy half for all words set above; pairs with the light half
            // in `Doorbell::is_due`.
            self.shared.asymmetry().heavy();
        }
        any
    }

    /// The peer rang: wakes whoever has what it waits for, and answers senders that ask.
    pub(crate) fn bell_rang(&mut self, context: &mut Context<'_>) {
        let Some(local) = &self.local else { return };
        // Drain first and look afterwards, or a ring in between is lost.
        let _ = rustix::io::retry_on_intr(|| rustix::io::read(&local.bell, &mut [0u8; 8]));
        self.answer_asks(context);
        for receiver in self.receivers.values_mut() {
            let end = &receiver.end;
            let (Some(theirs), Some(ours)) = (end.theirs.get(), end.ours.get()) else {
                continue;
            };
            let is_meant = theirs.rung.is_for(&ours.armed) || theirs.closed_at().is_some();
            if is_meant && end.waiters.is_waiting() {
                end.waiters.take(&mut context.wakers);
            }
        }
        for sender in self.senders.values_mut() {
            let Some(theirs) = sender.end.theirs.get() else {
                continue;
            };
            let (released, _) = theirs.released();
            let (acknowledged, ended) = theirs.acknowledged();
            let now = Some((released, acknowledged, ended));
            if now != sender.seen {
                sender.seen = now;
                sender.end.waiters.take(&mut context.wakers);
            }
        }
        self.receive_local(context);
    }
}

/// The peer broke the protocol.
fn broke(what: impl fmt::Display) -> EndCause {
    EndCause::lost(format!("it broke the protocol: {what}"))
}

fn cause_of(error: &FdSocketError) -> EndCause {
    match error {
        FdSocketError::DescriptorLost | FdSocketError::Kernel { .. } => EndCause::Refused {
            why: error.to_string(),
        },
        FdSocketError::TooManyDescriptors | FdSocketError::TooLong => broke(error),
    }
}

/// A receiving end as seen from the peer's sending end.
enum Counterpart<'a> {
    Here(&'a mut super::ReceiveLink),
    /// Its open has not come over the connection.
    NotYet,
    /// Its handle was dropped.
    Gone,
}

/// Until the kernel is asked again to take what it had no memory or no place for.
const PASS_AGAIN: Duration = Duration::from_millis(20);
/// The generations of armings that no handle has made.
const ARMED_FOR_CALLER: u32 = 1 << 31;
/// Descriptors that may wait for their channel's open.
const MAX_EARLY: usize = 1024;
/// Control segments that a peer may pass: up to 256 channel ends each.
const MAX_SEGMENTS: u32 = 68;
/// Large messages that may wait for their announcement in the ring to be reached.
const MAX_LARGE_WAITING: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lacks_a_descriptor_does_not_say_that_the_peer_broke_the_protocol() {
        let ours = cause_of(&FdSocketError::DescriptorLost);
        assert!(matches!(ours, EndCause::Refused { .. }), "{ours}");
        assert!(ours.to_string().contains("ulimit -n"), "{ours}");
        let theirs = cause_of(&FdSocketError::TooLong);
        assert!(matches!(theirs, EndCause::PeerGone { .. }), "{theirs}");
        assert!(
            theirs.to_string().contains("it broke the protocol"),
            "{theirs}"
        );
    }
}
