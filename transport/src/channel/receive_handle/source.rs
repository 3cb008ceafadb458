//! The source of a receiver's records, a ring that both processes map or frames, and its coming.

use std::{os::fd::AsFd, ptr::NonNull, sync::atomic::Ordering};

use ibex_base::sync::lock;
use ibex_protocol::{
    format::record::{Layout, RecordHeader},
    session::Agreed,
};
use ibex_ring::{Consumer, MalformedHeader, Mapped};

use super::{
    ReceiveHandle,
    frames::{ArrivedFrames, FoundRecord},
};
use crate::session::{ChannelError, FailureReason};
use crate::{
    endpoint::receive_end::SourceOffer,
    shared_memory::{PassedFd, RingSegment, SegmentRefused},
};

/// Where a receiver's handle finds its records.
#[derive(Debug)]
pub(super) enum Source {
    /// Nothing has come yet.
    None,
    Frames(ArrivedFrames),
    Ring(Consumer<Mapped>),
    /// The ring of a process of another user. Its messages are copied before anyone reads them.
    CopiedRing(Consumer<Mapped>),
}

impl Source {
    /// Takes the record at the front, if it is a data record. Returns its payload, the payload's
    /// length, the record's size and its time of arrival.
    #[inline(always)]
    pub(super) fn take_data(&mut self) -> Option<(NonNull<u8>, usize, usize, u64)> {
        match self {
            Self::Ring(ring) => {
                let (payload, length, size) = ring.peek_data()?;
                ring.advance_by(size, 1);
                Some((payload, length, size, 0))
            }
            // This is checked inline, because a caller that receives in a loop finds no frame each
            // time before it waits.
            Self::Frames(frames) if frames.is_empty() => None,
            Self::Frames(_) => self.take_from_frame(),
            Self::CopiedRing(_) | Self::None => None,
        }
    }

    #[inline(never)]
    fn take_from_frame(&mut self) -> Option<(NonNull<u8>, usize, usize, u64)> {
        let Self::Frames(frames) = self else {
            return None;
        };
        frames.take_data()
    }

    /// Returns whether there is, or may be, a record of any kind.
    pub(super) fn may_have_record(&self) -> bool {
        match self {
            Self::Ring(ring) | Self::CopiedRing(ring) => !ring.is_empty(),
            Self::Frames(frames) => !frames.is_empty(),
            Self::None => true,
        }
    }

    /// Returns whether messages are copied before anyone reads them, since a process of another user
    /// could rewrite them.
    pub(super) fn copies(&self) -> bool {
        matches!(self, Self::CopiedRing(_))
    }

    /// Returns whether there is a record of any kind in a ring whose messages are copied.
    pub(super) fn may_have_copy(&self) -> bool {
        matches!(self, Self::CopiedRing(ring) if !ring.is_empty())
    }

    /// Returns whether [`take_data`](Self::take_data) would give a record.
    pub(super) fn has_data(&self) -> bool {
        match self {
            Self::Ring(ring) => ring.peek_data().is_some(),
            Self::Frames(frames) => frames
                .front()
                .is_some_and(|(.., word)| RecordHeader::of_data(word).is_some()),
            Self::CopiedRing(_) | Self::None => false,
        }
    }

    /// Returns the record at the front after checking it. The record stays there.
    pub(super) fn find(&self) -> Result<Option<FoundRecord>, MalformedHeader> {
        match self {
            Self::Ring(ring) | Self::CopiedRing(ring) => {
                Ok(ring.peek()?.map(|record| FoundRecord {
                    kind: record.kind,
                    // SAFETY: a ring's payload pointer is never null.
                    payload: unsafe {
                        NonNull::new_unchecked(ring.payload_ptr(&record).cast_mut())
                    },
                    length: record.length,
                    size: record.size,
                    time: 0,
                }))
            }
            Self::Frames(frames) => Ok(frames.find()),
            Self::None => Ok(None),
        }
    }

    /// Moves past the record that is about to be handed out.
    pub(super) fn pass(&mut self, size: usize) {
        match self {
            Self::Ring(ring) | Self::CopiedRing(ring) => ring.advance_by(size, 1),
            Self::Frames(frames) => frames.pass(size),
            Self::None => {}
        }
    }

    /// Returns the ring, if the source is one.
    pub(super) fn ring(&self) -> Option<&Consumer<Mapped>> {
        match self {
            Self::Ring(ring) | Self::CopiedRing(ring) => Some(ring),
            Self::Frames(_) | Self::None => None,
        }
    }

    /// Returns the source that continues in a new ring after the last record of this one. `copies`
    /// says that messages are copied before anyone reads them.
    ///
    /// # Safety
    /// The memory is a double mapping of a ring with this capacity, and stays mapped for as long as
    /// the source or a message from it is used.
    pub(super) unsafe fn continued_in(
        &self,
        (base, capacity): (NonNull<u8>, usize),
        alignment: usize,
        copies: bool,
    ) -> Self {
        // SAFETY: the caller promises what this requires.
        let mapped = unsafe { Mapped::new(base, capacity) };
        let layout = Layout::in_lines(alignment);
        let ring = match self.ring() {
            Some(before) => Consumer::resume(mapped, layout, before.read()),
            None => Consumer::new(mapped, layout),
        };
        match copies {
            true => Self::CopiedRing(ring),
            false => Self::Ring(ring),
        }
    }
}

impl ReceiveHandle {
    /// Takes over the source that the engine left, if there is one. A ring is mapped here, on the
    /// caller's thread.
    pub(super) fn take_source(&mut self) -> Result<(), ChannelError> {
        if !self.end.has_source.load(Ordering::Relaxed) {
            return Ok(());
        }
        let end = self.end.clone();
        // The lock is held until the ring is mapped, because the engine may be told to let go of
        // the source.
        let mut offered = lock(&end.source);
        let Some(offer) = offered.take() else {
            return Ok(());
        };
        end.has_source.store(false, Ordering::Relaxed);
        let Some(agreed) = end.state.agreed() else {
            unreachable!("an end gets its source when it is open")
        };
        if matches!(self.source, Source::None) {
            self.begin(agreed);
        }
        let alignment = agreed.alignment as usize;
        let source = match offer {
            SourceOffer::Frames(arrivals) => {
                Ok(Source::Frames(ArrivedFrames::new(arrivals, alignment)))
            }
            SourceOffer::Ring { .. } if end.prefix.prefix().released != self.handed_out => {
                Err("a ring came while messages of the one before are held".to_owned())
            }
            SourceOffer::Ring { fd, capacity } => {
                match self.continue_in(&fd, capacity, alignment) {
                    Err(SegmentRefused::Memory(error)) => {
                        // The ring stays with the end, for the next call.
                        *offered = Some(SourceOffer::Ring { fd, capacity });
                        end.has_source.store(true, Ordering::Relaxed);
                        drop(offered);
                        return Err(end.failed(FailureReason::Memory(error)));
                    }
                    source => source.map_err(|refused| refused.to_string()),
                }
            }
        };
        drop(offered);
        self.source = source.map_err(|what| self.refused(&what))?;
        Ok(())
    }

    /// Sets the handle's limits when the first source has come.
    fn begin(&mut self, agreed: &Agreed) {
        self.quarter_messages = (agreed.window.messages / 4).max(1);
        let most = self.end.session.most_held().min(self.end.tell_every);
        self.quarter_messages = self.quarter_messages.min(most);
        self.quarter_bytes = (agreed.window.bytes / 4).max(1);
        self.advance_at = match self.end.times {
            Some(_) => 0,
            None => self.quarter_messages,
        };
        self.advance_at_bytes = self.quarter_bytes;
    }

    /// Maps a new ring and continues there.
    fn continue_in(
        &self,
        fd: &PassedFd,
        capacity: u64,
        alignment: usize,
    ) -> Result<Source, SegmentRefused> {
        let ring = RingSegment::accept(fd.as_fd(), capacity)?;
        let copies = self.end.session.copies_messages();
        // SAFETY: this is a double mapping, which `held` keeps until the last guard is gone.
        let source = unsafe { self.source.continued_in(ring.memory(), alignment, copies) };
        // The former ring is unmapped: no guard holds a message in it.
        self.end.held().ring = Some(ring);
        Ok(source)
    }
}
