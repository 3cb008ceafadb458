//! Memory for a device that has no other owner.

use std::io;
use std::ptr::{self, NonNull};

use ibex_base::fork;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use super::memory_region::DeviceMemory;

/// Private memory of this process, to be registered: zeroed, beginning at a page, and unmapped
/// when it is dropped.
///
/// It has no pages until they are touched or registered. A fork of the process has a hole in
/// its place, and dropping it there does nothing.
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
    fn base(&self) -> NonNull<u8> {
        self.base
    }

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
        // SAFETY: a null hint without MAP_FIXED takes a range that nobody uses.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, MapFlags::PRIVATE) };
        let base = mapped.map_err(|errno| {
            let why = format!("cannot map {bytes} bytes for an RDMA device: {errno}");
            io::Error::new(io::Error::from(errno).kind(), why)
        })?;
        let base = NonNull::new(base.cast::<u8>()).expect("mmap chose address 0");
        let start = base.addr().get();
        // SAFETY: the range has just been mapped. A child does not touch it: `drop` looks first,
        // and users of a `DeviceMemory` are told.
        unsafe { fork::keep_from_children(start..start + bytes) };
        Ok(Self { base, bytes })
    }
}

impl Drop for AnonymousMemory {
    fn drop(&mut self) {
        if fork::is_child() {
            // What is there by now may be somebody else's.
            return;
        }
        // SAFETY: the range is ours, and whoever uses its address keeps this value.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "munmap of our own range: {unmapped:?}");
    }
}
