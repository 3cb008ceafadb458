//! Copies of bytes that may be those of a mapped file.
//!
//! The file may be shorter by now, or its medium may fail. A load by this process is SIGBUS then. The
//! kernel returns an error when it copies, so it copies whatever may be of a file.

use std::{borrow::Cow, fs, io, mem::MaybeUninit, process};

use super::{RegionSlice, bytes::mapped_bytes};
use crate::memory::huge_pages::mapped_range;

/// Returns whether the slice is of a file that the program has mapped.
#[must_use]
pub fn is_of_file(slice: &RegionSlice) -> bool {
    mapped_bytes(slice).is_some_and(|(mapped, _)| !mapped.is_own())
}

/// Copies a slice to the front of `to`, which is as long or longer. The kernel copies if the slice is
/// of a mapped file.
///
/// # Errors
/// The reason why bytes of the file cannot be read.
pub fn copy_slice(slice: &RegionSlice, to: &mut [MaybeUninit<u8>]) -> Result<(), String> {
    if !is_of_file(slice) {
        copy(slice, to);
        return Ok(());
    }
    copy_by_kernel(slice, to).map_err(|read| unreadable(slice, read))
}

/// Returns the bytes of a slice, or the kernel's copy of them if the slice is of a mapped file.
///
/// # Errors
/// The reason why bytes of the file cannot be read.
pub fn readable_bytes(slice: &RegionSlice) -> Result<Cow<'_, [u8]>, String> {
    if !is_of_file(slice) {
        return Ok(Cow::Borrowed(slice));
    }
    let copy = read_by_kernel(slice).map(Cow::Owned);
    copy.map_err(|read| unreadable(slice, read))
}

/// Describes a message of which the kernel could not read the byte behind `read` others.
fn unreadable(message: &[u8], read: usize) -> String {
    let file = mapped_file(message.as_ptr().addr() + read);
    let (length, blamed) = (message.len(), blamed(file.as_deref()));
    format!(
        "the kernel could not read the memory of a message behind {read} of its {length} bytes \
         (EFAULT): {blamed}"
    )
}

/// Returns a copy of bytes that may be of a mapped file, which the kernel makes.
///
/// # Errors
/// The number of bytes before the first one that cannot be read.
pub fn read_by_kernel(from: &[u8]) -> Result<Vec<u8>, usize> {
    let mut copy = Vec::with_capacity(from.len());
    copy_by_kernel(from, copy.spare_capacity_mut())?;
    // SAFETY: the capacity is that of `from` or more, and as many bytes were written.
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
    let (this, mut done) = (process::id().cast_signed(), 0);
    while done < from.len() {
        let (from, to) = (&from[done..], &mut to[done..]);
        let entry = |iov_base| libc::iovec {
            iov_base,
            iov_len: from.len(),
        };
        let local = entry(to[..from.len()].as_mut_ptr().cast());
        let remote = entry(from.as_ptr().cast_mut().cast());
        // SAFETY: the kernel writes at most `from.len()` bytes to `to`, which has them and is borrowed
        // exclusively, and only reads `from`. Each list has one entry, which outlives the call.
        let copied =
            unsafe { libc::process_vm_readv(this, &raw const local, 1, &raw const remote, 1, 0) };
        match (copied, io::Error::last_os_error().raw_os_error()) {
            (1.., _) => done += copied.unsigned_abs(),
            (0, _) | (_, Some(libc::EFAULT)) => return Err(done),
            (_, Some(libc::EINTR)) => {}
            _ => {
                copy(from, to);
                break;
            }
        }
    }
    Ok(())
}

fn copy(from: &[u8], to: &mut [MaybeUninit<u8>]) {
    for (to, from) in to.iter_mut().zip(from) {
        to.write(*from);
    }
}

/// Returns what to look at when the kernel cannot read memory that is mapped from `file`.
#[must_use]
pub fn blamed(file: Option<&str>) -> String {
    match file {
        Some(file) => format!(
            "it is mapped from the file {file}: see whether that was cut short, or its medium fails"
        ),
        None => {
            "if that is a mapped file, see whether it was cut short, or its medium fails".into()
        }
    }
}

/// Returns the file that the memory at `address` is mapped from, as the kernel names it, if it is one's.
#[must_use]
pub fn mapped_file(address: usize) -> Option<String> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    file_at(&maps, address).map(str::to_owned)
}

/// Finds the file of an address in the lines of
/// [proc_pid_maps(5)](https://man7.org/linux/man-pages/man5/proc_pid_maps.5.html).
fn file_at(maps: &str, address: usize) -> Option<&str> {
    let is_of = |line: &&str| mapped_range(line).is_some_and(|range| range.contains(&address));
    let line = maps.lines().find(is_of)?;
    line.find('/').map(|start| &line[start..])
}

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
