//! Copies of bytes that may be those of a mapped file.
//!
//! The file may be shorter by now, or its medium may fail. A load by this process is SIGBUS then. The
//! kernel returns an error when it copies, so it copies whatever may be of a file.

use std::{
    fs, io,
    mem::MaybeUninit,
    process,
    sync::atomic::{AtomicBool, Ordering},
};

use super::{RegionSlice, bytes::mapped_bytes};
use crate::memory::huge_pages::mapped_range;

/// A message's memory that the kernel could not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel could not read the memory of a message behind {read} of its {length} bytes (EFAULT): \
     {}",
    blame(self.file.as_deref())
)]
#[non_exhaustive]
pub struct UnreadableBytes {
    /// The bytes of the message that were read.
    pub read: u64,
    /// The length of the message.
    pub length: u64,
    /// The file that the memory is mapped from, as the kernel names it, if it is one's.
    pub file: Option<String>,
}

impl UnreadableBytes {
    /// Describes a message of `length` bytes, of which the kernel could not read the one at `address`
    /// behind `read` others.
    #[must_use]
    pub fn new(address: usize, read: u64, length: u64) -> Self {
        let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let file = file_at(&maps, address).map(str::to_owned);
        Self { read, length, file }
    }
}

/// Returns what to look at when the kernel cannot read memory that is mapped from `file`.
#[must_use]
pub fn blame(file: Option<&str>) -> String {
    match file {
        Some(file) => format!(
            "it is mapped from the file {file}: see whether that was cut short, or its medium fails"
        ),
        None => {
            "if that is a mapped file, see whether it was cut short, or its medium fails".into()
        }
    }
}

/// Returns the file that the memory at `address` is mapped from, by the lines of
/// [proc_pid_maps(5)](https://man7.org/linux/man-pages/man5/proc_pid_maps.5.html).
fn file_at(maps: &str, address: usize) -> Option<&str> {
    let is_of = |line: &&str| mapped_range(line).is_some_and(|range| range.contains(&address));
    let line = maps.lines().find(is_of)?;
    line.find('/').map(|start| &line[start..])
}

/// Returns whether the slice is of a file that the program has mapped.
#[must_use]
pub fn is_of_file(slice: &RegionSlice) -> bool {
    mapped_bytes(slice).is_some_and(|(mapped, _)| !mapped.is_own())
}

/// Copies a slice to the front of `to`, which is as long or longer. The kernel copies if the slice is
/// of a mapped file.
///
/// # Errors
/// Bytes of the file cannot be read.
pub fn copy_slice(slice: &RegionSlice, to: &mut [MaybeUninit<u8>]) -> Result<(), UnreadableBytes> {
    if is_of_file(slice) {
        return copy_by_kernel(slice, to).map_err(|read| {
            let address = slice.as_ptr().addr() + read;
            UnreadableBytes::new(address, read as u64, slice.len() as u64)
        });
    }
    copy(slice, to);
    Ok(())
}

/// Returns a copy of bytes that may be of a mapped file, which the kernel makes.
///
/// # Errors
/// The number of bytes before the first one that cannot be read.
pub fn read_by_kernel(from: &[u8]) -> Result<Vec<u8>, usize> {
    let mut copy = Vec::with_capacity(from.len());
    copy_by_kernel(from, copy.spare_capacity_mut())?;
    // SAFETY: the capacity is that of `from`, and as many bytes were written.
    unsafe { copy.set_len(from.len()) };
    Ok(copy)
}

/// Copies `from` to the front of `to`, which is as long or longer, by
/// [process_vm_readv(2)](https://man7.org/linux/man-pages/man2/process_vm_readv.2.html).
///
/// A filter of system calls may refuse that. Then it is a plain copy, and memory that cannot be read
/// is SIGBUS.
///
/// # Errors
/// The number of bytes before the first one that cannot be read.
fn copy_by_kernel(from: &[u8], to: &mut [MaybeUninit<u8>]) -> Result<(), usize> {
    let to = &mut to[..from.len()];
    // Relaxed: a thread that misses it finds out for itself.
    if IS_REFUSED.load(Ordering::Relaxed) {
        copy(from, to);
        return Ok(());
    }
    let mut done = 0;
    while done < from.len() {
        let (from, to) = (&from[done..], &mut to[done..]);
        let local = libc::iovec {
            iov_base: to.as_mut_ptr().cast(),
            iov_len: to.len(),
        };
        let remote = libc::iovec {
            iov_base: from.as_ptr().cast_mut().cast(),
            iov_len: from.len(),
        };
        let this = process::id().cast_signed();
        // SAFETY: the kernel writes at most `iov_len` bytes to `to`, which is borrowed exclusively, and
        // only reads `from`. Each list has one entry, which lives until the call returns.
        match unsafe { libc::process_vm_readv(this, &raw const local, 1, &raw const remote, 1, 0) }
        {
            0 => return Err(done),
            copied @ 1.. => done += copied.unsigned_abs(),
            _ => match io::Error::last_os_error().raw_os_error() {
                Some(libc::EFAULT) => return Err(done),
                Some(libc::EINTR) => {}
                _ => {
                    IS_REFUSED.store(true, Ordering::Relaxed);
                    copy(from, to);
                    return Ok(());
                }
            },
        }
    }
    Ok(())
}

fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    for (to, from) in to.iter_mut().zip(from) {
        to.write(*from);
    }
}

/// True once the kernel has refused to copy at all: it was built without, or a filter does not let it.
static IS_REFUSED: AtomicBool = AtomicBool::new(false);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_an_address_is_that_of_its_mapping() {
        let maps = "7f0000000000-7f0000001000 r--s 00000000 08:01 77 /var/lib/a log (deleted)\n\
                    7f0000001000-7f0000002000 rw-p 00000000 00:00 0 [heap]\n\
                    7f0000002000-7f0000003000 rw-p 00000000 00:00 0\n";
        let base = 0x7f00_0000_0000;
        assert_eq!(
            file_at(maps, base + 0xfff),
            Some("/var/lib/a log (deleted)")
        );
        for other in [0x1000, 0x2000, 0x3000] {
            assert_eq!(file_at(maps, base + other), None);
        }
    }
}
