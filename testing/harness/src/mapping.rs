//! Memory that the two processes of a pair share: one memfd, mapped by both.
//!
//! Rules for the owner of a [`Mapping`]:
//!
//! 1. Words for synchronization (header, counter) are accessed only through
//!    [`word`](Mapping::word), in both processes.
//! 2. A range of the other bytes belongs to one process at a time. A release store and an acquire
//!    load of such a word hand it over.
//!
//! The peer is this same program, started by it. Unlike ibex, the limits trust both sides to keep
//! the rules.

use std::{
    cell::Cell,
    fs::{File, OpenOptions},
    hint,
    os::fd::{AsRawFd, OwnedFd, RawFd},
    ptr::{self, NonNull},
    slice,
    sync::atomic::{AtomicU64, Ordering},
};

use rustix::{
    fs::{MemfdFlags, ftruncate, memfd_create},
    mm::{MapFlags, ProtFlags, mmap, munmap},
};

use crate::{Error, pair::Watch};

/// A shared mapping of a whole memfd, faulted in.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    bytes: usize,
    file: OwnedFd,
    watch: Watch,
    /// Turns of an empty loop before the first poll for a reply.
    delay: Cell<u64>,
}

impl Mapping {
    /// Creates zeroed memory. Its descriptor passes to child processes.
    pub(crate) fn create(bytes: usize) -> Result<Mapping, Error> {
        let file = memfd_create("ibex-harness", MemfdFlags::empty())
            .map_err(Error::io("creating shared memory"))?;
        ftruncate(&file, bytes as u64).map_err(Error::io("sizing shared memory"))?;
        Mapping::map(file, bytes)
    }

    /// Maps the memory behind a descriptor that the parent process passed down.
    pub(crate) fn inherit(descriptor: RawFd) -> Result<Mapping, Error> {
        let file: File = OpenOptions::new()
            .read(true)
            .write(true)
            .open(format!("/proc/self/fd/{descriptor}"))
            .map_err(Error::io(
                "opening the shared memory that the parent passed",
            ))?;
        let bytes = file
            .metadata()
            .map_err(Error::io("sizing shared memory"))?
            .len();
        Mapping::map(file.into(), bytes as usize)
    }

    /// Returns the descriptor under which a child process inherits this memory.
    pub(crate) fn descriptor(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Lets a wait for a word end when the process that shares this memory does.
    pub(crate) fn watched(mut self, watch: Watch) -> Mapping {
        self.watch = watch;
        self
    }

    /// Polls the word at `offset` until it is above `value`. Returns the word; `pauses` is the
    /// back-off between two polls.
    ///
    /// Acquire: a thread that sees the new value sees the writes before its release store.
    #[inline]
    pub(crate) fn above(&self, offset: usize, value: u64, pauses: u32) -> Result<u64, Error> {
        let word = self.word(offset);
        loop {
            // In this order: if the other process has ended, the word is its last.
            let ended = self.watch.has_ended();
            let now = word.load(Ordering::Acquire);
            if now > value {
                return Ok(now);
            }
            if ended {
                return Err(self.watch.ended_early());
            }
            for _ in 0..pauses {
                hint::spin_loop();
            }
        }
    }

    /// Polls for a reply: like [`above`](Self::above), but waits before the first poll for as long
    /// as the last replies took.
    ///
    /// The delay is learned: a reply found at the first poll shortens it by one step, a later one
    /// lengthens it by four. So most first polls find the reply, and the delay follows a peer that
    /// becomes faster.
    #[inline]
    pub(crate) fn reply(&self, offset: usize, value: u64) -> Result<u64, Error> {
        let delay = self.delay.get();
        for turn in 0..delay {
            hint::black_box(turn);
        }
        let came = self.word(offset).load(Ordering::Acquire) > value;
        self.delay.set(if came {
            delay.saturating_sub(DELAY_STEP)
        } else {
            (delay + 4 * DELAY_STEP).min(MAX_DELAY)
        });
        self.above(offset, value, 1)
    }

    /// Returns the word at `offset`, a multiple of 8.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(
            offset.is_multiple_of(8) && offset + 8 <= self.bytes,
            "a word of the mapping"
        );
        // SAFETY:
        // 1. In bounds and aligned: asserted, and `base` is the start of a page.
        // 2. Alive: the mapping ends in `drop`, which needs `self` back.
        // 3. Only atomic accesses, in both processes: rule 1 of the module.
        unsafe { AtomicU64::from_ptr(self.base.as_ptr().add(offset).cast()) }
    }

    /// Returns the bytes at `offset`, for reading.
    ///
    /// # Safety
    ///
    /// The range belongs to this process (rule 2 of the module) while the slice lives, and nothing
    /// in this process writes it meanwhile.
    #[inline]
    pub(crate) unsafe fn read(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= self.bytes, "a range of the mapping");
        // SAFETY: in bounds (asserted), mapped while `self` is borrowed, always
        // initialized (a memfd is zero at first); unchanging by the contract.
        unsafe { slice::from_raw_parts(self.base.as_ptr().add(offset), length) }
    }

    /// Returns the bytes at `offset`, for writing.
    ///
    /// # Safety
    ///
    /// The range belongs to this process (rule 2 of the module) while the slice lives, and no other
    /// slice of this process overlaps it.
    #[inline]
    #[expect(
        clippy::mut_from_ref,
        reason = "ranges are handed over by words, not by borrows"
    )]
    pub(crate) unsafe fn write(&self, offset: usize, length: usize) -> &mut [u8] {
        assert!(offset + length <= self.bytes, "a range of the mapping");
        // SAFETY: in bounds (asserted), mapped while `self` is borrowed, always
        // initialized (a memfd is zero at first); unaliased by the contract.
        unsafe { slice::from_raw_parts_mut(self.base.as_ptr().add(offset), length) }
    }

    fn map(file: OwnedFd, bytes: usize) -> Result<Mapping, Error> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: no address is asked for, so the kernel picks one that nothing
        // else uses; the length is the file's, checked not to be zero by mmap.
        let base = unsafe { mmap(ptr::null_mut(), bytes, protection, flags, &file, 0) }
            .map_err(Error::io("mapping shared memory"))?;
        let base = NonNull::new(base.cast()).expect("mmap does not return null");
        Ok(Mapping {
            base,
            bytes,
            file,
            watch: Watch::default(),
            delay: Cell::new(0),
        })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: this is the whole range that `map` got, and every reference
        // into it borrowed `self`. The result says only whether it was a mapping.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
    }
}

/// Turns of an empty loop, about 5 ns.
const DELAY_STEP: u64 = 4;
/// About 1 µs; for slower replies, nanoseconds do not matter.
const MAX_DELAY: u64 = 1000;

#[cfg(test)]
mod tests {
    use std::{thread, time::Duration};

    use super::*;

    #[test]
    fn a_delay_grows_until_replies_are_there_and_shrinks_after() {
        let memory = Mapping::create(4096).unwrap();
        let word = memory.word(0);
        // On a slow machine, the first poll may come after the reply.
        for pause in [20, 200, 2000] {
            word.store(0, Ordering::Release);
            thread::scope(|scope| {
                scope.spawn(|| {
                    thread::sleep(Duration::from_millis(pause));
                    word.store(1, Ordering::Release);
                });
                assert_eq!(memory.reply(0, 0).unwrap(), 1);
            });
            if memory.delay.get() > 0 {
                break;
            }
        }
        assert_eq!(memory.delay.get(), 4 * DELAY_STEP, "it was not there");
        for left in (0..4).rev().chain([0]) {
            assert_eq!(memory.reply(0, 0).unwrap(), 1);
            assert_eq!(memory.delay.get(), left * DELAY_STEP, "it was there");
        }
    }

    #[test]
    fn two_mappings_of_one_memory() {
        let ours = Mapping::create(8192).unwrap();
        let theirs = Mapping::inherit(ours.descriptor()).unwrap();
        // SAFETY: one thread, and the slice ends before the next statement.
        unsafe { ours.write(4096, 3) }.copy_from_slice(b"abc");
        ours.word(64).store(7, Ordering::Release);
        assert_eq!(theirs.word(64).load(Ordering::Acquire), 7);
        // SAFETY: one thread, and nothing writes any more.
        assert_eq!(unsafe { theirs.read(4096, 3) }, b"abc");
    }

    #[test]
    #[should_panic(expected = "a range of the mapping")]
    fn a_range_beyond_the_end_is_refused() {
        let mapping = Mapping::create(4096).unwrap();
        // SAFETY: never reached, the bound is asserted first.
        let _ = unsafe { mapping.read(4000, 97) };
    }
}
