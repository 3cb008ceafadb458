//! Memory that the program owns, and lends as slices to messages that are sent from it.
//!
//! An engine holds a slice until its wire has taken the last byte of the message. The drop of a slice
//! calls the wakers of tasks that wait for the region, and the last one may drop an owner that the program
//! has handed over; both are foreign code. So an engine drops no slice under its lock.
//!
//! A region that is provided for messages to arrive in is a [`ProvidedRegion`]. Freeing it runs no foreign
//! code.

mod bytes;
mod provided;
mod reading;
mod shared;

use std::{
    fmt,
    fs::File,
    future::Future,
    io,
    ops::{Deref, RangeBounds},
    os::fd::AsFd,
    pin::Pin,
    slice,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_base::fork;
use rustix::param::page_size;

use self::bytes::{OwnedBytes, RegionBytes, bounds, ends};
pub use self::{
    bytes::{MappedBytes, mapped_bytes},
    provided::{ProvidedRegion, RegionUnfit},
    reading::{blamed, copy_slice, is_of_file, mapped_file, read_by_kernel, readable_bytes},
    shared::{PagesHeld, RegionFile, leave_to_peers, share_region},
};
use super::{Access, Mapping, MemoryUse};
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
    /// Dropped after `bytes`, so that whoever is notified finds the slice gone.
    notified: NotifyWhenGone,
    start: usize,
    end: usize,
}

/// Tells those who wait for the region that a slice is gone.
#[derive(Clone)]
struct NotifyWhenGone(Arc<WaitSlot>);

impl Drop for NotifyWhenGone {
    fn drop(&mut self) {
        // In a forked child, nobody waits, and the slot's lock may be locked for ever.
        if !fork::is_child() {
            self.0.wake_all();
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
    /// bytes move once to a memory file, at the same addresses. They move in pieces of 2 MiB, or of a 64th
    /// of a region above 128 MiB, and the pages of each piece are given back before the next one moves: so
    /// the process needs the memory of one piece more than it has. The move takes about as long as a copy.
    /// The file takes one descriptor for as long as the region exists. Its pages are huge ones only where
    /// `/sys/kernel/mm/transparent_hugepage/shmem_enabled` says `always`. If the kernel refuses the file,
    /// such messages are copied from then on. Whatever else knew the pages before they move knows the old
    /// ones: buffers that the program has registered with io_uring or a device of its own, or locked by
    /// mlock(2). A process of the same user that maps the region may read all of it. A receiver counts the
    /// whole region, once, against its node's `memory_limit` while it holds messages in it.
    ///
    /// The bytes move back to private memory if the program changes them after a channel or session has
    /// ended in which a peer still held a message; see [`get_mut`](Self::get_mut).
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
            return Ok(Self::from(Vec::new())); // The kernel maps no range without bytes.
        }
        if bytes > MOST_BYTES {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        let memory = Mapping::inherited_huge(MemoryUse::LargeMessage, bytes);
        let memory = memory.map_err(|error| error.source)?;
        let own = MappedBytes::own(memory, bytes);
        Ok(Self::new(RegionBytes::Mapped(own)))
    }

    /// Maps a range of a file, or all of it (`..`), to send from the kernel's own copy of it. The range may
    /// begin at any byte. Reads all of it, and so blocks for as long as that takes; afterwards the file may
    /// be closed. A child of a fork has the memory, unless a send over RDMA was tried before: then reading
    /// it there is SIGSEGV.
    ///
    /// A file that grows is mapped part by part: what was appended since is a region of its own. The
    /// example `growing_log` sends one so.
    ///
    /// ```
    /// # use ibex_ring::memory as ibex;
    /// use std::{fs::File, io, ops::Range};
    /// use ibex::Region;
    ///
    /// /// Maps records of a log that only grows.
    /// fn records(log: &File, range: Range<u64>) -> io::Result<Region> {
    ///     // SAFETY: this program only appends to its logs, and no other writes them. It does not fork.
    ///     unsafe { Region::map(log, range) }
    /// }
    /// # let path = std::env::temp_dir().join(format!("ibex-records-{}", std::process::id()));
    /// # std::fs::write(&path, b"first second").unwrap();
    /// # let log = File::open(&path).unwrap();
    /// # std::fs::remove_file(&path).unwrap();
    /// assert_eq!(&records(&log, 6..12)?[..], b"second");
    /// # Ok::<_, io::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// A child of a fork reads neither the region nor a slice of it, unless it was never sent from. While
    /// one of them exists, nobody changes the range's bytes or makes the file shorter than its end: no code
    /// of this process and no other process. A log segment that is complete, the records that a log has
    /// already, or a snapshot, are such bytes. Otherwise references to the bytes are to bytes that change,
    /// and reading past the new end is SIGBUS.
    ///
    /// A page that the kernel has dropped meanwhile is read again when it is used. If the medium
    /// fails then, a read by the program is SIGBUS too. A message that is sent from such bytes is an
    /// error, since the kernel reads them for the node (`process_vm_readv` where the node needs them
    /// itself: to copy, to encrypt, or to check them). Where the node would copy the message, its send
    /// fails, and the channel goes on. Otherwise the channel of that message ends at both ends, and the
    /// session goes on. A filter of system calls that refuses `process_vm_readv` makes it SIGBUS.
    ///
    /// # Errors
    ///
    /// The error of the kernel: the file cannot be mapped, is not open for reading, or a page of it
    /// cannot be read. `InvalidInput` if it is not a regular file, or the range is not inside it.
    #[doc(alias("mmap", "Mmap", "from_file"))]
    pub unsafe fn map(file: &File, range: impl RangeBounds<u64>) -> io::Result<Self> {
        let invalid = |why: String| io::Error::new(io::ErrorKind::InvalidInput, why);
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(invalid("only a regular file can be mapped".into()));
        }
        let whole = metadata.len();
        let (from, to) = ends(range, whole);
        if from > to || to > whole {
            let why = format!("the range {from}..{to} is not inside the file's {whole} bytes");
            return Err(invalid(why));
        }
        if from == to {
            return Ok(Self::from(Vec::new())); // The kernel maps no range without bytes.
        }
        // The kernel maps from the beginning of a page.
        let before = from % page_size() as u64;
        let bytes = usize::try_from(to - from + before).map_err(io::Error::other)?;
        let (what, access) = (MemoryUse::LargeMessage, Access::ReadOnly);
        let (start, fd) = (from - before, file.as_fd());
        let memory = Mapping::of_file_for_children(what, fd, start, bytes, access)
            .map_err(|error| error.source)?;
        let before = before as usize;
        let of_file = MappedBytes::of_file(memory, before, bytes - before);
        Ok(Self::new(RegionBytes::Mapped(of_file)))
    }

    /// Makes a region of bytes that any value owns: a `Mmap` of the crate memmap2, `bytes::Bytes`,
    /// `Arc<[u8]>`, or a buffer of a pool of the program's, which gets it back by the value's `Drop`.
    ///
    /// `as_ref` is called once, now. The value is dropped with the region or the last slice, on whichever
    /// thread drops that, also one of the node's. So its `Drop` should not wait. A panic there is logged.
    ///
    /// Long messages are sent as from a `Vec`: over TCP from where they lie, and over RDMA and shared memory
    /// copied once. For a file, [`map`](Self::map) spares that copy over RDMA, and a file that is cut
    /// short is an error there; here it is SIGBUS where the node reads the bytes itself.
    ///
    /// ```
    /// # use ibex_ring::memory as ibex;
    /// use std::sync::Arc;
    /// use ibex::Region;
    ///
    /// let snapshot: Arc<[u8]> = Arc::from(*b"kept elsewhere too");
    /// let region = Region::from_owner(snapshot.clone());
    /// assert_eq!(&region.slice(..4)[..], b"kept");
    /// ```
    #[doc(alias("Mmap", "Bytes"))]
    pub fn from_owner(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        Self::new(RegionBytes::Owned(OwnedBytes::new(owner)))
    }

    /// Returns the bytes to be changed; `None` while a slice of them exists, the program's or a
    /// message's, if they are those of a mapped file or of an [owner](Self::from_owner), and in a fork of
    /// a process that has a node.
    ///
    /// A channel or session may have ended, over shared memory, while its peer held a message of this
    /// region. If a process has the region mapped at the first call after that, the call copies the region
    /// to private memory, since the peer's message must not change. The memory exists twice then, for as
    /// long as the peer keeps it. If the kernel refuses the memory, the log says so and the result is
    /// `None`; a later call tries again.
    #[must_use]
    pub fn get_mut(&mut self) -> Option<&mut [u8]> {
        if fork::is_child() {
            return None;
        }
        match Arc::get_mut(&mut self.bytes)? {
            RegionBytes::Heap(bytes) => Some(bytes),
            RegionBytes::Mapped(mapped) if mapped.is_own => {
                if let Err(error) = mapped.make_writable() {
                    ibex_base::warn_limited!(
                        error,
                        %error,
                        "a region cannot be changed: a peer may still read a message in it, and \
                         there is no memory to move it to"
                    );
                    return None;
                }
                let (base, length) = (mapped.memory.base().as_ptr(), mapped.length);
                // SAFETY: valid as for reading, mapped for writing, and exclusively borrowed: nobody
                // else has the region's bytes. A device or a peer reads them only for a message, which
                // has a slice, or has been left the pages (`make_writable`).
                Some(unsafe { slice::from_raw_parts_mut(base, length) })
            }
            RegionBytes::Mapped(_) | RegionBytes::Owned(_) => None,
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
            notified: NotifyWhenGone(self.waiters.clone()),
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
    /// has released the message, or the channel or the session ends; then the peer may keep the pages (see
    /// [`get_mut`](Self::get_mut)).
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
            Ok(other) => Err(Self {
                bytes: Arc::new(other),
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
            notified: self.notified.clone(),
            start: self.start + start,
            end: self.start + end,
        }
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
