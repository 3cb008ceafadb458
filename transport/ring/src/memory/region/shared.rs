//! Regions whose pages other processes of this host map, to read messages where they lie.
//!
//! A region begins with private memory: a child of a fork gets a copy of it, it takes no descriptor,
//! and huge pages back it. When the first message goes to a peer that maps it, the bytes move to a
//! memory file, which takes the place of the private memory at the same addresses. The file stays for
//! further messages. When a channel or session ends, its peer may hold a message of the region for any
//! time. So before the program writes there again, the bytes move back to private memory, and the file is
//! the peer's alone. They stay if no process has the file any more.
//!
//! Bytes move piece by piece, and the pages of each piece are given back before the next piece moves. So a
//! region needs no more than its own memory and that of one piece to move to a file. To move away from
//! a file that a peer keeps takes as much memory as the region has.
//!
//! Rules:
//!
//! 1. Pages are replaced only while nobody writes to them: while there is a slice, and under the lock of
//!    `pages`, or by the only owner. A reader finds the same bytes before and afterwards.
//!    If the kernel lacks memory in the middle of that, the process aborts.
//! 2. A device knows pages and not addresses. So whoever registers the region holds the same lock until
//!    the registration is attached, and all attachments go before pages are replaced. A device that is
//!    still sending then keeps its registration, and with it the former pages, whose bytes are the same.
//! 3. Each peer gets an open file description of its own, which holds a shared lock
//!    ([flock(2)](https://man7.org/linux/man-pages/man2/flock.2.html)). The kernel takes the lock back when
//!    the peer has closed and unmapped it, or has died. So a file without locks is read by no peer. A peer
//!    that takes its own lock back harms the messages that it holds, and those of nobody else.

use std::{
    fs::File,
    io, mem,
    ops::Range,
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    sync::{
        Arc, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use ibex_base::sync::lock;
use rustix::{
    fs::{FlockOperation, flock},
    io::{pwrite, retry_on_intr},
    param::page_size,
};

use super::{MappedBytes, RegionSlice, bytes::RegionBytes};
use crate::memory::{
    Access, Attachments, Mapping, MemoryError, MemoryUse, huge_pages::HUGE_PAGE_BYTES,
    memfd::create_unbacked,
};

/// What is known of a region's pages.
#[derive(Debug, Default)]
pub(super) enum RegionPages {
    /// They are private.
    #[default]
    Private,
    /// They are those of a file.
    File(Arc<RegionFile>),
    /// They are those of a file in which a peer may read a message for any time, so they are not written
    /// to. If moving them has failed before, some `are_moved`.
    Left {
        file: Arc<RegionFile>,
        are_moved: bool,
    },
    /// The kernel has refused a file for them: it is not asked again. Those that had moved before are in
    /// a file that no other process knows.
    Refused,
}

/// A memory file that the pages of a region are those of.
#[derive(Debug)]
pub struct RegionFile {
    fd: OwnedFd,
    bytes: usize,
    /// A peer got this description, which this process has mapped, and which has no lock.
    is_passed_itself: AtomicBool,
}

impl RegionFile {
    /// Returns the description for a peer, with its lock (rule 3). `None` if there is none, as where
    /// there is no /proc: then the peer gets `self`, and the region counts as read until it has moved.
    /// Called while a message in it has a slice.
    #[must_use]
    pub fn for_peer(&self) -> Option<OwnedFd> {
        let locked = self.opened_again().and_then(|fd| {
            flock(&fd, FlockOperation::NonBlockingLockShared)?;
            Ok(fd)
        });
        if locked.is_err() {
            // The slice orders this before the check, which comes when there is none.
            self.is_passed_itself.store(true, Ordering::Relaxed);
        }
        locked.ok()
    }

    /// Returns whether a process may have the file that this one has passed, or may be about to get it.
    fn is_with_a_peer(&self) -> bool {
        let lock = FlockOperation::NonBlockingLockExclusive;
        let locked = self.opened_again().map(|fd| flock(fd, lock));
        self.is_passed_itself.load(Ordering::Relaxed) || !matches!(locked, Ok(Ok(())))
    }

    /// Opens the file for reading, as a description of its own.
    fn opened_again(&self) -> io::Result<OwnedFd> {
        File::open(format!("/proc/self/fd/{}", self.fd.as_raw_fd())).map(OwnedFd::from)
    }

    /// Returns the length of the file, which is that of the region in whole pages.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl AsFd for RegionFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl MappedBytes {
    /// Locks the pages, which stay in place as long as the result lives.
    pub fn hold_pages(&self) -> PagesHeld<'_> {
        PagesHeld(lock(&self.pages))
    }

    /// Returns whether the pages are those of a memory file, which peers may map.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        matches!(
            &*lock(&self.pages),
            RegionPages::File(_) | RegionPages::Left { .. }
        )
    }

    /// Returns the number of bytes that the pages have.
    #[must_use]
    pub fn page_bytes(&self) -> usize {
        self.memory.bytes().next_multiple_of(page_size())
    }

    /// Moves the bytes to the memory that `make` makes for each piece, with the same bytes in it. If it
    /// fails, the pieces before have moved.
    ///
    /// # Safety
    ///
    /// Nobody writes meanwhile (rule 1).
    unsafe fn move_by_pieces(
        &self,
        mut make: impl FnMut(Range<usize>) -> Result<Mapping, MemoryError>,
    ) -> Result<(), MemoryError> {
        // Dropped without the lock of the attachments, since devices take long.
        let stale = mem::take(&mut *self.attachments());
        drop::<Attachments>(stale);
        let bytes = self.page_bytes();
        let piece = piece_bytes(bytes);
        for start in (0..bytes).step_by(piece) {
            let part = make(start..bytes.min(start + piece))?;
            // SAFETY: the same bytes are in both, and nobody writes to them (rule 1).
            let replaced = unsafe { self.memory.replace(start, part) };
            replaced.map_err(|errno| {
                MemoryError::new(MemoryUse::LargeMessage, bytes, "mremap", errno)
            })?;
        }
        Ok(())
    }

    /// Prepares the pages to be written to: moves them to private memory if a peer may read them for any
    /// time. That is a copy of the region.
    ///
    /// # Errors
    ///
    /// The kernel's error; then nobody may write to them yet.
    pub(super) fn make_writable(&mut self) -> Result<(), MemoryError> {
        let pages = self.pages.get_mut();
        let pages = pages.unwrap_or_else(PoisonError::into_inner);
        let RegionPages::Left { file, are_moved } = pages else {
            return Ok(());
        };
        if !*are_moved && !file.is_with_a_peer() {
            *pages = RegionPages::File(file.clone());
            return Ok(());
        }
        *are_moved = true;
        let from = self.memory.base();
        let make = |piece: Range<usize>| {
            let part = Mapping::inherited_huge(MemoryUse::LargeMessage, piece.len())?;
            // SAFETY: the piece is a part of the region's pages, which have as many bytes as the new
            // ones; nobody writes to either.
            unsafe {
                let from = from.add(piece.start);
                from.copy_to_nonoverlapping(part.base(), piece.len());
            }
            Ok(part)
        };
        // SAFETY: `&mut self` says that there is no other owner.
        unsafe { self.move_by_pieces(make) }?;
        *self.pages.get_mut().unwrap_or_else(PoisonError::into_inner) = RegionPages::Private;
        Ok(())
    }
}

/// Returns how much of a region with so many bytes is moved at a time. Whole huge pages, since a part of
/// one is not given back; and no more than 64 pieces, since the kernel may keep a record of each.
fn piece_bytes(bytes: usize) -> usize {
    bytes.div_ceil(64).next_multiple_of(HUGE_PAGE_BYTES)
}

/// The lock of a region's pages; see [`MappedBytes::hold_pages`].
#[derive(Debug)]
pub struct PagesHeld<'a>(#[allow(dead_code, reason = "held for its drop")] Guard<'a>);

type Guard<'a> = MutexGuard<'a, RegionPages>;

/// Returns the memory file that the slice's region lies in, and where the slice begins in it; `None` if
/// the region has no pages of its own, or an earlier call failed. The first call moves the region to such
/// a file, and then `seal`s the file. All of the region has memory then, and a child of a fork does not
/// have it.
///
/// # Errors
///
/// The error of `seal`, or of the kernel. The region is not moved again.
pub fn share_region(
    slice: &RegionSlice,
    seal: impl FnOnce(&OwnedFd, usize) -> Result<(), MemoryError>,
) -> Result<Option<(Arc<RegionFile>, usize)>, MemoryError> {
    let mapped = match &*slice.bytes {
        RegionBytes::Mapped(mapped) if mapped.is_own => mapped,
        _ => return Ok(None),
    };
    let mut pages = lock(&mapped.pages);
    match &*pages {
        RegionPages::File(file) | RegionPages::Left { file, .. } => {
            return Ok(Some((file.clone(), slice.start)));
        }
        RegionPages::Refused => return Ok(None),
        RegionPages::Private => {}
    }
    *pages = RegionPages::Refused;
    let (what, bytes) = (MemoryUse::LargeMessage, mapped.page_bytes());
    let fd = create_unbacked(what, bytes)?;
    let make = |piece: Range<usize>| {
        write_all(&fd, &slice.bytes, piece.clone())?;
        let (start, access) = (piece.start as u64, Access::ReadWrite);
        Mapping::of_file_from(what, fd.as_fd(), start, piece.len(), access)
    };
    // SAFETY: there is this slice, and the lock is held.
    unsafe { mapped.move_by_pieces(make) }?;
    seal(&fd, bytes)?;
    let file = Arc::new(RegionFile {
        fd,
        bytes,
        is_passed_itself: AtomicBool::new(false),
    });
    *pages = RegionPages::File(file.clone());
    Ok(Some((file, slice.start)))
}

/// Writes a piece of the region to its place in the file. The kernel gives the file memory for that, or
/// an error.
fn write_all(fd: &OwnedFd, region: &[u8], piece: Range<usize>) -> Result<(), MemoryError> {
    // The last page is longer than the region, and is zero there.
    let (mut at, end) = (piece.start, piece.end.min(region.len()));
    while at < end {
        let written = retry_on_intr(|| pwrite(fd, &region[at..end], at as u64));
        at += written.map_err(|errno| {
            MemoryError::new(MemoryUse::LargeMessage, region.len(), "pwrite", errno)
        })?;
    }
    Ok(())
}

/// Leaves the pages of a slice's region, if they are those of `file`, to a peer that may read them for any
/// time: nobody writes to them before `make_writable`.
pub fn leave_to_peers(slice: &RegionSlice, left: &Arc<RegionFile>) {
    let RegionBytes::Mapped(mapped) = &*slice.bytes else {
        return;
    };
    let mut pages = lock(&mapped.pages);
    if let RegionPages::File(file) = &*pages
        && Arc::ptr_eq(file, left)
    {
        *pages = RegionPages::Left {
            file: left.clone(),
            are_moved: false,
        };
    }
}
