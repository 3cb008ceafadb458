//! The path of a sending end's messages: a ring that the peer reads itself, in memory that both
//! processes map, or frames that this node's engine makes of a ring's records.
//!
//! An end has its path from the beginning, and keeps it when the session's wire is replaced: frames
//! go over whichever wire the session has, and a ring in shared memory needs none. Here are the
//! decisions of a sending end that depend on its path, and no other file names its cases. What was
//! decided once is carried on by [`RingOwner`] and [`SendPlace`].

use std::{
    os::fd::OwnedFd,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use ibex_base::fork;
use ibex_protocol::{
    format::{control::Ask, record::Layout},
    session::Session,
    transfer::{eager_write::EAGER_BLOCKS_UNDER_WAY, rendezvous::LARGE_PER_CHANNEL},
};
use ibex_ring::{
    Mapped, Producer,
    end_status::{SenderWords, Words},
    memory::{MemoryError, RegionSlice, class_bytes, mapped_bytes},
};

use super::{
    send_end::{AskedEvent, Asking, SendEnd},
    send_producer::{RingOwner, SendPlace, SendProducer, SlicePlace},
};
use crate::session::{ChannelError, Full};
use crate::shared_memory::{MESSAGE_SLOTS, PassedSlice, RingSegment};

/// The path of a sending end's messages.
#[derive(Debug)]
pub(crate) enum SendPath {
    /// The peer reads the ring, and this end's words.
    Mapped(Asking),
    /// The engine sends the ring's records in frames.
    Framed,
}

/// The wait of a published message for the frame that carries it.
#[derive(Clone, Copy, Debug)]
pub(super) enum FrameWait {
    /// No frame carries the message.
    NoFrame,
    /// The frame is still to come.
    Lasts,
    /// The message is in a frame.
    Over {
        /// The part of the wait that was for the peer's credit.
        credit: Duration,
        /// The rest.
        rest: Duration,
    },
}

impl SendPath {
    /// Returns the path of an end with these `words` in shared memory, or without any.
    pub(crate) fn new(words: Option<Words<SenderWords>>) -> Self {
        words.map_or(Self::Framed, |words| Self::Mapped(Asking::new(words)))
    }

    /// Returns whether this node's engine sends the long messages, piece by piece.
    pub(crate) fn sends_by_engine(&self) -> bool {
        matches!(self, Self::Framed)
    }

    // ---- The ring ----------------------------------------------------------------------

    /// Makes memory for a ring of `capacity` bytes. Returns the layout of records in it, and the
    /// descriptor to pass to a peer that reads the ring.
    pub(super) fn ring_memory(
        &self,
        end: &SendEnd,
        capacity: usize,
        alignment: usize,
    ) -> Result<(RingOwner, Layout, Option<OwnedFd>), MemoryError> {
        match self {
            Self::Mapped(_) => {
                let (segment, fd) = RingSegment::create(capacity)?;
                let owner = RingOwner::Segment(segment);
                Ok((owner, Layout::in_lines(alignment), Some(fd)))
            }
            Self::Framed => {
                let lease = Arc::new(end.session.lease_ring(capacity)?);
                Ok((RingOwner::Lease(lease), Layout::packed(alignment), None))
            }
        }
    }

    /// Returns the longest payload that goes into `ring` as one record. For frames that depends on
    /// the session's wires, which may be others than when the ring was made.
    pub(crate) fn longest_record(&self, end: &SendEnd, ring: &Producer<Mapped>) -> usize {
        match self {
            Self::Mapped(_) => ring.largest(),
            Self::Framed => ring.largest().min(end.session.frame_path.eager_bytes()),
        }
    }

    /// Wakes the reader of the ring, which armed its doorbell with `generation` before it slept.
    #[cold]
    pub(crate) fn ring_reader(&self, end: &SendEnd, generation: u32) {
        match self {
            Self::Mapped(local) => {
                let rung = &local.words.rung;
                rung.ring(generation, || end.session.ring_peer());
            }
            Self::Framed => end.session.requests.mark_ready(end.id),
        }
    }

    /// Returns how long message `sequence`, which was just published, has waited for its frame.
    /// `framed` is the last message in a frame.
    pub(super) fn frame_wait(&self, sequence: u64, framed: u64) -> FrameWait {
        match self {
            Self::Mapped(_) => FrameWait::NoFrame,
            // An engine built the frame before this thread could look at the clock.
            Self::Framed if sequence <= framed => FrameWait::Over {
                credit: Duration::ZERO,
                rest: Duration::ZERO,
            },
            Self::Framed => FrameWait::Lasts,
        }
    }

    // ---- Messages with memory of their own ---------------------------------------------

    /// Returns how many messages like one of `bytes` may have memory of their own at a time, and
    /// the limit that a call has reached which waits for one of them.
    pub(crate) fn most_large(&self, end: &SendEnd, bytes: usize) -> (usize, Full) {
        match self {
            // The peer reads the memory in place, so it is free when the peer's application has
            // released the message.
            Self::Mapped(_) => (MESSAGE_SLOTS, Full::Slots),
            // The memory is free when the local engine has sent the message or knows that it has
            // arrived; the peer need not be asked.
            Self::Framed if end.session.frame_path.may_land(bytes) => {
                (EAGER_BLOCKS_UNDER_WAY, Full::Memory)
            }
            // A session that resumes keeps a message until the peer has confirmed its arrival.
            Self::Framed => {
                let most = LARGE_PER_CHANNEL + usize::from(end.session.resumes);
                (most, Full::Memory)
            }
        }
    }

    /// Returns whether a large message of so many bytes may be written though the receiver keeps up.
    /// In shared memory it is read soonest if what is under way stays in the caches.
    pub(crate) fn is_easy(&self, producer: &SendProducer, bytes: usize) -> bool {
        match self {
            Self::Mapped(_) => {
                let bytes = bytes as u64;
                producer.out.with(bytes) <= EASY_BYTES.max(EASY_MESSAGES * bytes)
            }
            Self::Framed => true,
        }
    }

    /// Returns whether large messages may be sent from the program's own memory. A peer that reads in
    /// place is shown all of a region, and so has to be of the same user.
    pub(crate) fn sends_in_place(&self, end: &SendEnd) -> bool {
        match self {
            Self::Mapped(_) => !end.session.copies_messages(),
            Self::Framed => true,
        }
    }

    /// Returns the place of a large message in the program's own memory; `None` if it has to be copied.
    /// Fewer than [`most_large`](Self::most_large) messages have memory. `forget` is that of
    /// [`take_large`](Self::take_large).
    pub(crate) fn slice_place(
        &self,
        end: &SendEnd,
        producer: &mut SendProducer,
        slice: &RegionSlice,
        forget: impl FnOnce(u64),
    ) -> Option<SlicePlace> {
        let Self::Mapped(_) = self else {
            return end.session.in_place(slice).map(SlicePlace::Sent);
        };
        let most = producer.out.most_in_regions();
        let region = mapped_bytes(slice)?.0;
        // Moving it to a file would be in vain.
        if !region.is_shared() && !producer.segments.admits_region(region.page_bytes(), most) {
            return None;
        }
        let (file, offset) = end.session.as_segment(slice)?;
        let slot = producer.segments.take_region(&file, most)?;
        if slot.emptied != 0 {
            forget(slot.emptied);
        }
        let slice = PassedSlice::new(slice.clone(), file);
        Some(SlicePlace::Mapped {
            slot,
            offset,
            slice,
        })
    }

    /// Takes memory for a large message of `bytes`. Fewer than [`most_large`](Self::most_large)
    /// have memory. `forget` tells the peer of slots, one bit each, that do not have their segment
    /// any more.
    pub(crate) fn take_large(
        &self,
        end: &SendEnd,
        producer: &mut SendProducer,
        bytes: usize,
        forget: impl FnOnce(u64),
    ) -> Result<SendPlace, MemoryError> {
        match self {
            Self::Mapped(_) => {
                let (more, most) = (class_bytes(bytes)?, producer.out.most_in_segments());
                let emptied = producer.segments.make_room(bytes, more, most);
                if emptied != 0 {
                    forget(emptied);
                }
                let slot = producer.segments.take(bytes)?;
                let slot = slot.expect("fewer messages are under way than there are slots");
                Ok(SendPlace::Slot(slot.index()))
            }
            Self::Framed => Ok(SendPlace::Lease(end.session.lease_large(bytes)?)),
        }
    }

    /// Forgets the large messages whose memory is free again: those that were sent or, where the
    /// peer reads in place, released.
    pub(crate) fn retire_large(&self, end: &SendEnd, producer: &mut SendProducer) {
        match self {
            Self::Mapped(_) => {
                let released = producer.theirs.released().0;
                while let Some(slot) = producer.pop_large(released) {
                    producer.segments.release(slot);
                }
            }
            Self::Framed => {
                // Relaxed, because this is only a count; the memory itself comes out of its pool
                // under a lock.
                let gone = end.large_gone.load(Ordering::Relaxed);
                while producer.pop_large(gone).is_some() {}
            }
        }
    }

    // ---- Questions to the peer, and their answers --------------------------------------

    /// Returns whether message `sequence` was delivered, where that needs no wait. In shared memory
    /// publishing is delivery while the channel lives; after its end, only messages that the peer
    /// received count.
    pub(crate) fn delivered(
        &self,
        end: &SendEnd,
        sequence: u64,
    ) -> Option<Result<(), ChannelError>> {
        let Self::Mapped(_) = self else {
            return None;
        };
        if fork::is_child() {
            return Some(Err(end.used_after_fork()));
        }
        if sequence == 0 {
            return Some(end.check_opened());
        }
        end.session.requests.poll();
        let is_delivered = !end.state.is_over() || end.counts().received >= sequence;
        Some(match is_delivered {
            true => Ok(()),
            false => Err(end.error()),
        })
    }

    /// Asks ahead of a wait for `ask`, where looking is useless before the peer's engine has received
    /// the question.
    pub(crate) fn ask_ahead(&self, end: &SendEnd, ask: &Ask) {
        match self {
            Self::Mapped(_) => {}
            Self::Framed => end.session.requests.ask(end.id, *ask),
        }
    }

    /// Asks the peer to report as soon as `ask` is fulfilled, because the caller is about to sleep.
    /// In shared memory each sleep needs a question of its own. Over a wire nothing goes out if it
    /// `is_asked` already: the engine keeps the question until the peer has answered it.
    pub(crate) fn ask_for(
        &self,
        end: &SendEnd,
        ask: &Ask,
        asked: &mut Option<AskedEvent>,
        is_asked: bool,
    ) {
        match self {
            Self::Mapped(local) => {
                let wish = if ask.released == 0 {
                    AskedEvent::Changes
                } else {
                    AskedEvent::Room
                };
                local.ask(end, wish, asked);
            }
            Self::Framed if is_asked || self.is_moot(end, ask) => {}
            Self::Framed => end.session.requests.ask(end.id, *ask),
        }
    }

    /// Returns whether the question is for a release while nothing is unreleased. The caller found the
    /// end not open yet, which it is by now. The peer would keep the question, and report a sender
    /// that waits for room once it holds the first message.
    fn is_moot(&self, end: &SendEnd, ask: &Ask) -> bool {
        // SENT, pairs with `SendEnd::publish`.
        let sent = end.sent.load(Ordering::Acquire);
        *ask == (Ask {
            released: ask.released,
            ..Ask::default()
        }) && ask.released > sent
    }

    /// Asks the peer to report the acknowledgement of message `sequence`, for a caller that does
    /// not wait and looks again later. The first of such calls in a row asks; the engine keeps the
    /// question.
    pub(crate) fn ask_in_passing(&self, end: &SendEnd, sequence: u64) {
        let is_change = end.asked_in_passing.swap(sequence, Ordering::Relaxed) != sequence;
        if is_change && matches!(self, Self::Framed) && !fork::is_child() {
            end.session.requests.ask_once(end.id, sequence);
        }
    }

    /// Withdraws the question, because no thread needs the answer.
    pub(crate) fn take_back_question(&self, asked: &mut Option<AskedEvent>) {
        if let Self::Mapped(local) = self {
            local.give_up(asked);
        }
    }

    // ---- Steps of the engine -----------------------------------------------------------

    /// Asks the peer to report its progress with all messages that were sent.
    pub(crate) fn ask_for_all(
        &self,
        end: &SendEnd,
        asked: &mut Option<AskedEvent>,
        session: &mut Session,
    ) {
        match self {
            Self::Mapped(local) => local.ask(end, AskedEvent::Changes, asked),
            // The question is for acknowledgements, not for releases: a question for releases means
            // that the sender waits for room, and the peer would report a stall. If acknowledgement
            // has ended, the peer answers when all messages are released.
            Self::Framed => {
                // SENT, pairs with `SendEnd::publish`.
                let sent = end.sent.load(Ordering::Acquire);
                session.ask(end.id, Ask::acknowledged(sent));
            }
        }
    }

    /// Returns the question for the arrival of all messages that were sent; `None` if they are
    /// known to have arrived, or the peer reports its progress in shared memory.
    pub(crate) fn question_of_arrival(&self, end: &SendEnd) -> Option<Ask> {
        // SENT, pairs with `SendEnd::publish`.
        let sent = end.sent.load(Ordering::Acquire);
        match self {
            Self::Framed if sent > end.counts().received => Some(Ask::received(sent)),
            _ => None,
        }
    }

    /// Returns whether the peer's changes are due and may have been lost with its frame: messages are
    /// unreleased, or a thread or task waits for their acknowledgement.
    pub(crate) fn misses_changes(&self, end: &SendEnd) -> bool {
        let counts = end.counts();
        match self {
            Self::Mapped(_) => false,
            Self::Framed => counts.released < counts.sent || end.is_waited_for(),
        }
    }

    /// Tells a peer that reads this end's words that the channel ends in order after message
    /// `last`, wakes the reader if it sleeps, and returns that message. Otherwise the session tells
    /// of it in a frame.
    pub(crate) fn close_in_order(&self, end: &SendEnd, last: u64) -> Option<u64> {
        let Self::Mapped(local) = self else {
            return None;
        };
        local.words.close(last);
        let (theirs, asymmetry) = (end.theirs.get(), end.session.asymmetry());
        if theirs.is_some_and(|theirs| theirs.armed.generation_behind(asymmetry) != 0) {
            end.session.ring_peer();
        }
        Some(last)
    }
}

/// Bytes of large messages that are under way while the receiver keeps up. A stream of messages of
/// 1 MiB gives 8 GB/s with 34 MiB under way, and 18 with 4 (docs/measurements.md).
const EASY_BYTES: u64 = 4 << 20;
/// Messages that are under way in any case: with two of 4 MiB writer and reader alternate.
const EASY_MESSAGES: u64 = 3;
