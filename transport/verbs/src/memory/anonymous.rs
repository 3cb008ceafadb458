//! Memory for a device that has no other owner.

use std::io;
use std::ptr::{self, NonNull};

use ibex_base::fork;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::DeviceMemory;

/// Private memory of this process, to be registered: zeroed, beginning at a page, and unmapped
/// when it is dropped.
///
/// The memory has no pages until they are touched or registered. A fork of the process has a hole
/// in its place, and dropping the value there does nothing.
#[derive(Debug)]
pub struct AnonymousMemory {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: an address range belongs to the process and not to a thread; dropping it (`munmap`)
// is legal from any thread.
unsafe impl Send for AnonymousMemory {}
// SAFETY: `&AnonymousMemory` gives out the address and the length, which never change.
unsafe impl Sync for AnonymousMemory {}

// SAFETY: the mapping stays as it is until the drop, hands out an address only, and is kept from
// children.
unsafe impl DeviceMemory for AnonymousMemory {
    #[inline]
    fn base(&self) -> NonNull<u8> {
        self.base
    }
    #[inline]
    fn bytes(&self) -> usize {
        self.bytes
    }
}

impl AnonymousMemory {
    /// Maps `bytes` of it.
    ///
    /// # Errors
    /// The kernel's refusal: too many bytes, or none.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint without MAP_FIXED takes a range that is not in use.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let base = mapped.map_err(|errno| {
            let why = format!("cannot map {bytes} bytes for an RDMA device: {errno}");
            io::Error::new(io::Error::from(errno).kind(), why)
        })?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap chose address 0");
        let start = base.addr().get();
        // SAFETY: the range has just been mapped. A child does not touch it: `drop` checks first,
        // and `DeviceMemory` tells its users so.
        unsafe { fork::keep_from_children(start..start + bytes) };
        Ok(Self { base, bytes })
    }
}

impl Drop for AnonymousMemory {
    fn drop(&mut self) {
        if fork::is_child() {
            // In a forked child, another mapping may be at this address by now.
            return;
        }
        // SAFETY: the range is ours, and code that uses its address keeps this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range: {unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use rustix::param::page_size;

    use super::*;

    #[test]
    fn it_begins_at_a_page_and_is_zeroed_and_writable() {
        let memory = AnonymousMemory::new(5000).unwrap();
        assert_eq!(memory.base().addr().get() % page_size(), 0);
        assert_eq!(memory.bytes(), 5000);
        let last = memory.base().as_ptr().wrapping_add(4999);
        // SAFETY: the last byte of the memory, which no other code knows.
        unsafe {
            assert_eq!(last.read(), 0);
            last.write(7);
            assert_eq!(last.read(), 7);
        }
    }

    #[test]
    fn a_mapping_that_the_kernel_refuses_is_reported_with_its_size() {
        let error = AnonymousMemory::new(1 << 60).unwrap_err();
        let says = format!("cannot map {} bytes for an RDMA device: ", 1_u64 << 60);
        assert!(error.to_string().starts_with(&says), "{error}");
        assert!(AnonymousMemory::new(0).is_err());
    }
}
