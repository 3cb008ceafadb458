//! The memory behind a ring, which grows ahead of the ring's writer.
//!
//! A ring is as long as its channel's window, and most channels use little of it. So a ring is
//! populated in steps: the first holds some messages, each further one is as long as all before it,
//! up to [`LONGEST_STEP`]. A busy ring is populated whole within its first lap; from then on its
//! writer asks for no more. The writer stays below the populated end
//! ([`Producer::back_until`](crate::Producer::back_until)), so a lack of memory shows in a call
//! that can fail.

use super::{MemoryError, MirroredMapping};

/// The extent of a ring that memory backs for one producer.
#[derive(Debug)]
pub struct Backing {
    /// The position at which the producer began.
    began: u64,
    /// The ring is backed from there up to this position; [`WHOLE`] if all of it is.
    until: u64,
}

impl Backing {
    /// Backs the first bytes of a ring whose next record will begin at `position`.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory.
    pub fn begin(ring: &MirroredMapping, position: u64) -> Result<Self, MemoryError> {
        let mut backing = Self {
            began: position,
            until: position,
        };
        if ring.is_populated() {
            backing.until = WHOLE;
        } else {
            backing.reach(ring, position + 1)?;
        }
        Ok(backing)
    }

    /// Backs the ring up to `position` at least, which is less than one lap behind the producer's
    /// position. Each call that finds too little takes one step.
    ///
    /// # Errors
    /// [`MemoryError`] if there is not enough memory. Then nothing has changed, and a later call
    /// tries again.
    pub fn reach(&mut self, ring: &MirroredMapping, position: u64) -> Result<(), MemoryError> {
        if position <= self.until {
            return Ok(());
        }
        let capacity = ring.capacity() as u64;
        let step = (self.until - self.began).clamp(FIRST_STEP, LONGEST_STEP);
        let lap = self.began + capacity;
        let until = position.max(self.until + step).min(lap);
        let offset = self.until & (capacity - 1);
        ring.populate(offset as usize, (until - self.until) as usize)?;
        if until == lap {
            ring.note_populated();
            self.until = WHOLE;
        } else {
            self.until = until;
        }
        Ok(())
    }

    /// Returns the position up to which memory backs the ring: [`u64::MAX`] if it backs all of it.
    #[must_use]
    pub fn until(&self) -> u64 {
        self.until
    }
}

/// The end of a ring that is backed whole.
const WHOLE: u64 = u64::MAX;

/// Bytes of the first step: few beside the 4 KiB that a channel takes anyway, and room for some
/// messages of usual length.
const FIRST_STEP: u64 = 16 << 10;
/// The longest step. It bounds the time that one send waits for the kernel to clear memory.
const LONGEST_STEP: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::super::{Access, MemoryUse, create_ring_memfd, probe};
    use super::*;
    use rustix::fs::ftruncate;
    use std::os::fd::AsFd;

    const CAPACITY: usize = 4 << 20;

    fn ring() -> MirroredMapping {
        MirroredMapping::create_private(CAPACITY).unwrap()
    }

    fn resident(ring: &MirroredMapping) -> u64 {
        let pages = probe::resident_pages(ring.base(), 2 * CAPACITY);
        (pages * rustix::param::page_size()) as u64
    }

    #[test]
    fn a_ring_is_backed_as_it_is_written() {
        let page = rustix::param::page_size() as u64;
        let ring = ring();
        assert_eq!(resident(&ring), 0);
        let mut backing = Backing::begin(&ring, 56).unwrap();
        let (mut steps, mut position) = (1, 56);
        while backing.until() != WHOLE {
            let (written, backed) = (position - 56, backing.until() - 56);
            assert!(backed <= (2 * written).clamp(FIRST_STEP, written + LONGEST_STEP));
            assert!(resident(&ring) <= backed + page);
            position = backing.until();
            backing.reach(&ring, position + 1).unwrap();
            steps += 1;
        }
        assert_eq!(steps, 10, "16 KiB doubled to 1 MiB, and three times 1 MiB");
        assert_eq!(
            resident(&ring),
            CAPACITY as u64,
            "the second window is untouched"
        );
    }

    #[test]
    fn a_ring_that_was_whole_stays_whole() {
        let ring = ring();
        let mut first = Backing::begin(&ring, 0).unwrap();
        first.reach(&ring, CAPACITY as u64).unwrap();
        assert_eq!(first.until(), WHOLE);
        assert_eq!(Backing::begin(&ring, 12_345).unwrap().until(), WHOLE);
    }

    #[test]
    fn a_long_record_is_backed_in_one_step() {
        let ring = ring();
        let mut backing = Backing::begin(&ring, 0).unwrap();
        backing.reach(&ring, 3 << 20).unwrap();
        assert_eq!(backing.until(), 3 << 20);
        assert_eq!(resident(&ring), 3 << 20);
    }

    /// The file is cut off in place of a machine whose memory is short.
    #[test]
    fn a_refused_step_is_tried_again() {
        let fd = create_ring_memfd(CAPACITY).unwrap();
        let ring = MirroredMapping::map(fd.as_fd(), CAPACITY, Access::ReadWrite).unwrap();
        let mut backing = Backing::begin(&ring, 0).unwrap();
        let before = backing.until();
        ftruncate(&fd, before).unwrap();
        let error = backing.reach(&ring, before + 1).unwrap_err();
        assert_eq!(error.what, MemoryUse::Ring);
        assert_eq!(backing.until(), before);
        ftruncate(&fd, CAPACITY as u64).unwrap();
        backing.reach(&ring, before + 1).unwrap();
        assert!(backing.until() > before);
    }

    /// A silent channel's next ring begins where the last one ended.
    #[test]
    fn a_step_over_the_seam_backs_the_rings_beginning() {
        let ring = ring();
        let began = 7 * CAPACITY as u64 - 4096;
        let mut backing = Backing::begin(&ring, began).unwrap();
        assert_eq!(resident(&ring), FIRST_STEP);
        assert_eq!(probe::resident_pages(ring.base(), 4096), 1);
        backing.reach(&ring, began + CAPACITY as u64).unwrap();
        assert_eq!(backing.until(), WHOLE);
        assert_eq!(resident(&ring), CAPACITY as u64);
    }
}
