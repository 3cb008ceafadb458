//! Memory that the program owns, and lends as slices to messages that are sent from it.
//!
//! An engine holds a slice until its wire has taken the last byte of the message. The drop of a slice
//! calls the wakers of tasks that wait for the region, which are foreign code. So an engine drops no
//! slice under its lock. The bytes are of kinds that are known here, and
//! freeing them runs no foreign code.
//!
//! A region that is provided for messages to arrive in is a [`ProvidedRegion`].

mod provided;
mod shared;

use std::{
    fmt,
    fs::File,
    future::Future,
    io,
    ops::{Bound, Deref, RangeBounds},
    os::fd::AsFd,
    pin::Pin,
    slice,
    sync::{Arc, Mutex, MutexGuard},
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_base::{fork, sync::lock};

use self::shared::Pages;
pub use self::{
    provided::{ProvidedRegion, RegionUnfit},
    shared::{PagesHeld, RegionFile, keep_to_itself, share_region},
};
use super::{Access, Attachments, Mapping, MemoryUse};
use crate::parking::{self, AtSlot, Ticket, WaitSlot};

/// Bytes that the program owns, and from which messages are sent without a copy.
///
/// Nobody can change the bytes while a [slice](RegionSlice) of them is left, be it the program's or that
/// of a message on its way. Then [`get_mut`](Self::get_mut) lets the program change them, for the
/// next message, and [`into_vec`](Self::into_vec) gives a `Vec` back.
/// Dropping the region leaves its slices as they are; the last of them frees the memory.
///
/// ```
/// # use std::time::Duration;
/// # use ibex_ring::memory as ibex;
/// use ibex::Region;
///
/// let region = Region::from(vec![7; 1 << 20]);
/// let middle = region.slice(1000..2000);
/// assert_eq!(middle.len(), 1000);
/// let region = region.into_vec().expect_err("a slice is left");
/// drop(middle);
/// assert!(region.wait_free(Duration::ZERO));
/// let mut bytes = region.into_vec().expect("no slice is left");
/// bytes.clear();
/// ```
pub struct Region {
    bytes: Arc<RegionBytes>,
    /// Whoever waits for the last slice.
    waiters: Arc<WaitSlot>,
}

/// A part of a [`Region`], which it keeps as it is.
///
/// A clone is another slice of the same bytes; no bytes are copied.
#[derive(Clone)]
pub struct RegionSlice {
    bytes: Arc<RegionBytes>,
    /// Dropped after `bytes`, so that whoever is told finds the slice gone.
    told: ToldWhenGone,
    start: usize,
    end: usize,
}

enum RegionBytes {
    Heap(Vec<u8>),
    Mapped(MappedBytes),
}

/// The first bytes of mapped memory, which a fabric may know.
#[derive(Debug)]
pub struct MappedBytes {
    attachments: Mutex<Attachments>,
    memory: Arc<Mapping>,
    length: usize,
    /// False if the bytes are those of a file that the program has mapped.
    is_own: bool,
    /// The memory file that the pages are those of, since peers map them; see `shared`.
    pages: Mutex<Pages>,
}

impl MappedBytes {
    fn new(memory: Mapping, length: usize, is_own: bool) -> Self {
        Self {
            attachments: Mutex::default(),
            memory: Arc::new(memory),
            length,
            is_own,
            pages: Mutex::default(),
        }
    }

    /// The memory itself, which nobody writes to while there is a slice of it.
    #[must_use]
    pub fn memory(&self) -> &Arc<Mapping> {
        &self.memory
    }

    /// Returns whether the pages are this process's own, mapped for writing too, and not those of a
    /// file that the program has mapped.
    #[must_use]
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Locks what fabrics have attached to the memory. It goes when the memory does, or its pages do.
    pub fn attachments(&self) -> MutexGuard<'_, Attachments> {
        lock(&self.attachments)
    }
}

/// Tells those who wait for the region that a slice is gone.
#[derive(Clone)]
struct ToldWhenGone(Arc<WaitSlot>);

impl Drop for ToldWhenGone {
    fn drop(&mut self) {
        // In a forked child, nobody waits, and the slot's lock may be locked for ever.
        if !fork::is_child() {
            self.0.wake_all();
        }
    }
}

impl Deref for RegionBytes {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match self {
            Self::Heap(bytes) => bytes,
            // SAFETY:
            // 1. Valid: the memory has at least `length` bytes, which are zeros of the kernel's or all
            //    of the file, and lives as long as `self`. A child of a fork has it too, unless a
            //    node has registered or shared it: then the caller of `fork` vouches for the child (`Node`), and
            //    the caller of `Region::map` for a file.
            // 2. Unchanged: those of our own are written through `get_mut`, which borrows them
            //    exclusively, and by a message that arrives while they are a `ProvidedRegion`, of
            //    which there is no reference. Those of a file are mapped for reading alone, and the
            //    caller of `Region::map` vouches for the file.
            Self::Mapped(mapped) => unsafe {
                slice::from_raw_parts(mapped.memory.base().as_ptr(), mapped.length)
            },
        }
    }
}

impl Region {
    fn new(bytes: RegionBytes) -> Self {
        Self {
            bytes: Arc::new(bytes),
            waiters: Arc::default(),
        }
    }

    /// Allocates `bytes` of memory, all zero, in pages of its own: for a payload that is made here
    /// and that a device may send from where it lies, which it does not from a `Vec`.
    ///
    /// The program writes the payload by [`get_mut`](Self::get_mut), sends slices, waits until the
    /// region is [free](Self::wait_free), and writes the next one. The memory begins at a huge page, if
    /// it is as long as one, and the kernel is asked for huge pages (transparent ones, see
    /// [madvise(2)](https://man7.org/linux/man-pages/man2/madvise.2.html)), so that a device needs
    /// fewer entries in its tables. Pages of hugetlbfs come from [`map`](Self::map) on a file there.
    /// A page is taken from the system when it is first written; all of them are when a device
    /// registers the region, or a peer maps it. The memory does not count against the node's
    /// `memory_limit`.
    ///
    /// When a message is first sent from here over shared memory, and the peer is to read it in place, the
    /// bytes move once to a memory file, at the same addresses. The file takes one descriptor for as long
    /// as the region exists. Its pages are huge ones only where
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` says `advise` or `always`. If the kernel refuses
    /// the file, such messages are copied from then on. Whatever else knew the pages before they move
    /// knows the old ones: buffers that the program has registered with io_uring or a device of its own,
    /// or locked by mlock(2). A process of the same user that maps the region may read
    /// all of it. A receiver counts the whole region, once, against its node's `memory_limit` while it
    /// holds messages in it.
    ///
    /// A child of a fork has a copy of the memory, but not once a send over RDMA was tried, or one over
    /// shared memory to be read in place, or a message over RDMA was to arrive in it. Then the memory is
    /// not there, as that of a message is not (the section on forks of `Node`).
    ///
    /// ```
    /// # use ibex_ring::memory as ibex;
    /// use std::io::{self, Read};
    /// use ibex::Region;
    ///
    /// /// Reads the next block, once no message needs the one before.
    /// async fn read_next(mut from: impl Read, into: &mut Region) -> io::Result<()> {
    ///     into.wait_free_async().await;
    ///     let block = into.get_mut().expect("no slice was made since");
    ///     from.read_exact(block)
    /// }
    ///
    /// let mut region = Region::zeroed(4 << 20)?;
    /// region.get_mut().expect("nobody else has it")[..4].copy_from_slice(b"ibex");
    /// assert_eq!(&region[..5], b"ibex\0");
    /// # Ok::<_, io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The error of the kernel: there is not as much memory, or not as much address space.
    pub fn zeroed(bytes: usize) -> io::Result<Self> {
        if bytes == 0 {
            // The kernel maps no range without bytes.
            return Ok(Self::from(Vec::new()));
        }
        if bytes > MOST_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let memory = Mapping::inherited_huge(MemoryUse::LargeMessage, bytes);
        let memory = memory.map_err(|error| error.source)?;
        Ok(Self::new(RegionBytes::Mapped(MappedBytes::new(
            memory, bytes, true,
        ))))
    }

    /// Maps a file, to send from the kernel's own copy of it. Reads all of the file, and so blocks
    /// for as long as that takes; afterwards the file may be closed. A child of a fork has the
    /// memory, unless a send over RDMA was tried before: then reading it there is SIGSEGV.
    ///
    /// # Safety
    ///
    /// A child of a fork reads neither the region nor a slice of it, unless it was never sent from. While
    /// one of them exists, nobody changes the file's bytes or makes the file shorter: no code of this
    /// process and no other process. A log segment that is complete, or a
    /// snapshot, is such a file. Otherwise references to the bytes are to bytes that change, and
    /// reading past the new end is SIGBUS.
    ///
    /// A page that the kernel has dropped meanwhile is read again when it is used. If the medium
    /// fails then, a read by this process is SIGBUS too, and a write to a connection fails with
    /// EFAULT, so the session breaks.
    ///
    /// # Errors
    ///
    /// The error of the kernel: the file cannot be mapped, is not open for reading, or a page of it
    /// cannot be read. `InvalidInput` if it is not a regular file.
    pub unsafe fn map(file: &File) -> io::Result<Self> {
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            let why = "only a regular file can be mapped as a region";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let length = usize::try_from(metadata.len()).map_err(io::Error::other)?;
        if length == 0 {
            // The kernel maps no range without bytes.
            return Ok(Self::from(Vec::new()));
        }
        let (what, access) = (MemoryUse::LargeMessage, Access::ReadOnly);
        let memory = Mapping::of_file_for_children(what, file.as_fd(), length, access);
        let memory = memory.map_err(|error| error.source)?;
        Ok(Self::new(RegionBytes::Mapped(MappedBytes::new(
            memory, length, false,
        ))))
    }

    /// Returns the bytes to be changed; `None` while a slice of them exists, the program's or a
    /// message's, if they are those of a mapped file, and in a fork of a process that has a node.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if fork::is_child() {
            return None;
        }
        match Arc::get_mut(&mut self.bytes)? {
            RegionBytes::Heap(bytes) => Some(bytes),
            // SAFETY: valid as for reading, mapped for writing, and exclusively borrowed: nobody
            // else has the region's bytes. A device reads them only for a message, which has a slice.
            RegionBytes::Mapped(mapped) if mapped.is_own => Some(unsafe {
                slice::from_raw_parts_mut(mapped.memory.base().as_ptr(), mapped.length)
            }),
            RegionBytes::Mapped(_) => None,
        }
    }

    /// Returns a slice of the region: `..` is all of it. No bytes are copied.
    ///
    /// # Panics
    ///
    /// If the range is not inside the region.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> RegionSlice {
        let (start, end) = bounds(range, self.bytes.len());
        RegionSlice {
            bytes: self.bytes.clone(),
            told: ToldWhenGone(self.waiters.clone()),
            start,
            end,
        }
    }

    /// Returns whether no slice exists, neither the program's nor a message's.
    #[must_use]
    pub fn is_free(&self) -> bool {
        Arc::strong_count(&self.bytes) == 1
    }

    /// Waits until no slice exists, for up to `timeout`. Returns whether none does.
    ///
    /// If one does, `Debug` of the region shows how many there are: the program's own, and one or more of
    /// each message. The statistics of the node show which channels have messages that are not released
    /// (`ChannelStats::held`).
    ///
    /// The drop of a slice wakes it. The node's engine drops that of a message when the wire has
    /// taken the last byte, the peer has closed the channel, or the session has ended. If the session
    /// resumes after an outage, it drops the slice when the peer has confirmed the message. If the peer
    /// reads the message where it lies, over shared memory, it drops the slice when the peer's program
    /// has released the message. If the channel or the session ends before, the peer keeps the pages, and
    /// the region is copied to others, all of it, by the thread that turns the engine, behind the turn.
    /// If there is no memory for that, the log says so, and the region is never free again.
    ///
    /// This call does not turn the engine. Under `Driver::Caller` the thread that waits here must
    /// not be the one whose calls turn it, and under `Driver::Tasks` not one that the node's tasks
    /// need; there, a task waits by [`wait_free_async`](Self::wait_free_async). In a fork of the process
    /// the call does not wait.
    #[must_use]
    pub fn wait_free(&self, timeout: Duration) -> bool {
        // In a fork, the slot's lock may be locked for ever.
        if !self.is_free() && !fork::is_child() {
            let mut held = None;
            let free = AtSlot::new(&self.waiters, &mut held, || self.is_free().then_some(()));
            let _ = parking::block(free, Instant::now().checked_add(timeout));
        }
        self.is_free()
    }

    /// Waits in a task until no slice exists.
    ///
    /// The drop of a slice wakes it, as for [`wait_free`](Self::wait_free). An engine calls the waker
    /// after its turn, on the thread that ran the turn. Like `wait_free`, the future does not turn
    /// the engine: under `Driver::Caller`, another thread or task of the program must. Dropping the
    /// future changes nothing. In a fork of the process it is ready at once, whether the region is
    /// free or not.
    ///
    /// ```
    /// # use ibex_ring::memory as ibex;
    /// use ibex::Region;
    ///
    /// /// Takes the buffer back once no message needs it.
    /// async fn take_back(region: Region) -> Vec<u8> {
    ///     region.wait_free_async().await;
    ///     region.into_vec().expect("no slice is left, and none was made since")
    /// }
    /// ```
    pub fn wait_free_async(&self) -> impl Future<Output = ()> + use<'_> {
        WaitFree {
            region: self,
            held: None,
        }
    }

    /// Returns the `Vec` that the region was made from.
    ///
    /// # Errors
    ///
    /// The region itself, while a slice of it exists, or if it was not made from a `Vec`.
    pub fn into_vec(self) -> Result<Vec<u8>, Self> {
        let Self { bytes, waiters } = self;
        match Arc::try_unwrap(bytes) {
            Ok(RegionBytes::Heap(bytes)) => Ok(bytes),
            Ok(mapped) => Err(Self {
                bytes: Arc::new(mapped),
                waiters,
            }),
            Err(bytes) => Err(Self { bytes, waiters }),
        }
    }
}

/// A wait for the last slice of a region; see [`Region::wait_free_async`].
struct WaitFree<'a> {
    region: &'a Region,
    held: Option<Ticket>,
}

impl Future for WaitFree<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let Self { region, held } = self.get_mut();
        let is_over = || (region.is_free() || fork::is_child()).then_some(());
        let free = AtSlot::new(&region.waiters, held, is_over);
        parking::poll(free, context.waker(), || ())
    }
}

impl Drop for WaitFree<'_> {
    fn drop(&mut self) {
        self.region.waiters.leave(&mut self.held);
    }
}

impl From<Vec<u8>> for Region {
    /// Takes the bytes over, without a copy.
    fn from(bytes: Vec<u8>) -> Self {
        Self::new(RegionBytes::Heap(bytes))
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl RegionSlice {
    /// Returns a slice of this slice. No bytes are copied.
    ///
    /// # Panics
    ///
    /// If the range is not inside this slice.
    #[must_use]
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Self {
        let (start, end) = bounds(range, self.len());
        Self {
            bytes: self.bytes.clone(),
            told: self.told.clone(),
            start: self.start + start,
            end: self.start + end,
        }
    }
}

/// Returns the beginning and the end of a range of `length` bytes.
fn bounds(range: impl RangeBounds<usize>, length: usize) -> (usize, usize) {
    let start = match range.start_bound() {
        Bound::Included(&start) => start,
        Bound::Excluded(&before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&last) => last.saturating_add(1),
        Bound::Excluded(&end) => end,
        Bound::Unbounded => length,
    };
    assert!(
        start <= end && end <= length,
        "the range {start}..{end} is not inside {length} bytes"
    );
    (start, end)
}

/// Returns the mapped memory that `slice` is a part of, if it is some, and where the slice begins in
/// it.
#[must_use]
pub fn mapped_bytes(slice: &RegionSlice) -> Option<(&MappedBytes, usize)> {
    match &*slice.bytes {
        RegionBytes::Heap(_) => None,
        RegionBytes::Mapped(mapped) => Some((mapped, slice.start)),
    }
}

/// The most bytes of an allocation, with room to round up to huge pages.
const MOST_BYTES: usize = isize::MAX as usize / 2;

impl AsRef<[u8]> for Region {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsRef<[u8]> for RegionSlice {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Deref for RegionSlice {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        &self.bytes[self.start..self.end]
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut region = f.debug_struct("Region");
        region.field("bytes", &self.len());
        let slices = Arc::strong_count(&self.bytes) - 1;
        region.field("slices", &slices).finish()
    }
}

impl fmt::Debug for RegionSlice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slice = self.start..self.end;
        f.debug_struct("RegionSlice")
            .field("range", &slice)
            .finish()
    }
}

#[cfg(test)]
mod tests;
