//! The ring of one shared-memory channel: a memory file of its own.
//!
//! Rules:
//! 1. The sender makes the ring, maps it writable and seals it; the receiver maps it read-only.
//!    Only the sender's stores change the sender's bytes.
//! 2. A ring serves one channel of one session. A peer that once mapped it may keep reading for
//!    ever, so it never carries bytes of another session.
//! 3. A channel may have several rings, one after the other: a silent sender unmaps its ring when
//!    all messages are released, tells the receiver, and makes another with its next message.
//! 4. The file has holes until the sender's producer populates them ahead of its records. A receiver
//!    that the peer's lies lead into a hole gets a page of zeros there, out of its own memory: at
//!    most one window, which it has agreed to.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use ibex_ring::memory::{Access, MemoryError, MemoryUse, MirroredMapping, create_ring_memfd};

use super::sealed::{self, SegmentRefused};

/// A side's mapping of a channel's ring.
#[derive(Debug)]
pub struct RingSegment {
    memory: MirroredMapping,
}

impl RingSegment {
    /// Makes the sender's side: a ring without memory yet, and the descriptor to pass to the peer and then
    /// close.
    ///
    /// # Errors
    /// [`MemoryError`] if `capacity` is no power of two of at least a page, or if there is not
    /// enough memory.
    pub fn create(capacity: usize) -> Result<(Self, OwnedFd), MemoryError> {
        let fd = create_ring_memfd(capacity)?;
        let memory = MirroredMapping::map(fd.as_fd(), capacity, Access::ReadWrite)?;
        // The seal comes after the mapping: it leaves existing writable windows alone and refuses
        // new ones.
        sealed::seal(&fd, MemoryUse::Ring, capacity)?;
        Ok((Self { memory }, fd))
    }

    /// Maps the receiver's side: checks the segment that the peer passed, and maps it read-only.
    /// The caller has bounded `capacity` by what the channel may use.
    ///
    /// # Errors
    /// [`SegmentRefused`] if the segment is not as [`RingSegment::create`] makes it, or if there is
    /// no room for the mapping.
    pub fn accept(fd: BorrowedFd<'_>, capacity: u64) -> Result<Self, SegmentRefused> {
        let impossible = SegmentRefused::Impossible {
            announced: capacity,
        };
        let Some(bytes) = usize::try_from(capacity)
            .ok()
            .filter(|bytes| MirroredMapping::is_possible(*bytes))
        else {
            return Err(impossible);
        };
        sealed::check_with_holes(fd, capacity)?;
        let memory = MirroredMapping::map(fd, bytes, Access::ReadOnly)?;
        Ok(Self { memory })
    }

    /// Frees the memory of the receiver's side, once every message in the ring is released and the
    /// sender has unmapped the ring. From then on a handle that polls the ring finds no record.
    ///
    /// # Errors
    /// [`MemoryError`] if the kernel refuses; then nothing has changed.
    pub fn vacate(&self) -> Result<(), MemoryError> {
        // SAFETY: the receiver never writes. It reads header words, which another process may
        // change at any time anyway, and payloads, none of which is held. Those that it copies may
        // change meanwhile.
        unsafe { self.memory.vacate() }
    }

    /// Returns the memory that the ring maps.
    #[must_use]
    pub fn mapping(&self) -> &MirroredMapping {
        &self.memory
    }

    /// Returns the first byte and the length of the first window. The second window follows it.
    ///
    /// The sender may store through the address, the receiver may only load.
    #[must_use]
    pub fn memory(&self) -> (NonNull<u8>, usize) {
        (self.memory.base(), self.memory.capacity())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ibex_ring::memory::{Mapping, probe};
    use rustix::fs::{FallocateFlags, fallocate, ftruncate};
    use rustix::io::Errno;
    use std::sync::atomic::{
        AtomicU64,
        Ordering::{Acquire, Release, SeqCst},
        fence,
    };

    const CAPACITY: usize = 64 << 10;

    fn word(segment: &RingSegment, offset: usize) -> &AtomicU64 {
        // The compiler takes the two sides' mappings for different memory.
        fence(SeqCst);
        // SAFETY: the offset is aligned and inside the two windows. All access in these tests is
        // atomic, and the read-only side only loads.
        unsafe { segment.memory().0.add(offset).cast().as_ref() }
    }

    #[test]
    fn the_receiver_sees_the_senders_stores_across_the_seam() {
        let (sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let receiver = RingSegment::accept(fd.as_fd(), CAPACITY as u64).unwrap();
        assert!(probe::is_writable(sender.memory().0));
        assert!(!probe::is_writable(receiver.memory().0));

        // The sender's windows were mapped before the seals and stay writable.
        word(&sender, CAPACITY - 8).store(1, Release);
        word(&sender, CAPACITY).store(2, Release);
        assert_eq!(word(&receiver, CAPACITY - 8).load(Acquire), 1);
        assert_eq!(word(&receiver, 0).load(Acquire), 2);
        assert_eq!(word(&receiver, CAPACITY).load(Acquire), 2);
    }

    #[test]
    fn the_receiver_holds_on_when_the_sender_is_gone() {
        let (sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let receiver = RingSegment::accept(fd.as_fd(), CAPACITY as u64).unwrap();
        word(&sender, 64).store(7, Release);
        drop(sender);
        assert_eq!(word(&receiver, 64).load(Acquire), 7);
    }

    #[test]
    fn a_peer_with_the_descriptor_can_neither_write_nor_resize() {
        let (sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let writable = Mapping::of_file(MemoryUse::Ring, fd.as_fd(), CAPACITY, Access::ReadWrite);
        assert_eq!(
            writable.unwrap_err().source.raw_os_error(),
            Some(Errno::PERM.raw_os_error())
        );
        for length in [0, CAPACITY as u64 / 2, 2 * CAPACITY as u64] {
            assert_eq!(ftruncate(&fd, length), Err(Errno::PERM));
        }
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        assert_eq!(fallocate(&fd, hole, 0, CAPACITY as u64), Err(Errno::PERM));
        assert_eq!(rustix::io::pwrite(&fd, b"x", 0), Err(Errno::PERM));

        // Reopening the file by name gives no write access either.
        use std::os::fd::AsRawFd;
        let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
        let again = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .unwrap();
        let writable =
            Mapping::of_file(MemoryUse::Ring, again.as_fd(), CAPACITY, Access::ReadWrite);
        assert!(writable.is_err());
        assert_eq!(word(&sender, 0).load(Acquire), 0);
    }

    #[test]
    fn a_read_only_mapping_cannot_be_made_writable() {
        use rustix::mm::{MprotectFlags, mprotect};
        let (_sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let receiver = RingSegment::accept(fd.as_fd(), CAPACITY as u64).unwrap();
        let (base, capacity) = receiver.memory();
        // SAFETY: the range is mapped and no reference points into it; the call fails.
        let changed = unsafe {
            mprotect(
                base.as_ptr().cast(),
                capacity,
                MprotectFlags::READ | MprotectFlags::WRITE,
            )
        };
        assert_eq!(changed, Err(Errno::ACCESS));
    }

    #[test]
    fn an_impossible_capacity_is_refused_before_anything_is_mapped() {
        for announced in [0, 1, 3 * CAPACITY as u64, u64::MAX, 1 << 63] {
            let (_sender, fd) = RingSegment::create(CAPACITY).unwrap();
            let refused = RingSegment::accept(fd.as_fd(), announced).unwrap_err();
            assert!(
                matches!(refused, SegmentRefused::Impossible { .. }),
                "{refused}"
            );
        }
        let (_sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let refused = RingSegment::accept(fd.as_fd(), 2 * CAPACITY as u64).unwrap_err();
        assert!(
            matches!(refused, SegmentRefused::WrongSize { .. }),
            "{refused}"
        );
    }

    #[test]
    fn nothing_is_left_of_a_vacated_ring_but_zeros() {
        let (sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let file = probe::inode(&fd);
        let receiver = RingSegment::accept(fd.as_fd(), CAPACITY as u64).unwrap();
        word(&sender, 64).store(7, Release);
        drop(sender);
        receiver.vacate().unwrap();
        assert_eq!(probe::mappings_of(file), 0);
        assert_eq!(word(&receiver, 64).load(Acquire), 0);
        assert!(!probe::is_writable(receiver.memory().0));
    }

    #[test]
    fn nothing_is_left_after_both_sides_drop() {
        let (sender, fd) = RingSegment::create(CAPACITY).unwrap();
        let file = probe::inode(&fd);
        let receiver = RingSegment::accept(fd.as_fd(), CAPACITY as u64).unwrap();
        assert_eq!(probe::mappings_of(file), 4);
        drop((sender, receiver));
        assert_eq!(probe::mappings_of(file), 0);
    }
}
