//! Dma-bufs, and memory of the device.
//!
//! A dma-buf is any descriptor that can be mapped, such as that of a memory file.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use super::{
    Call, FakeProvider,
    handle::{id_of, take_back},
    world::{FakeRegion, Maker, State},
};
use crate::provider::{BufferHandle, RegionHandle, RegisteredRegion};

/// The ends of objects, by the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
    pub(super) unsafe fn destroy_buffer(&self, buffer: BufferHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(buffer.as_ptr()) };
        self.world.lock().end_buffer(id)?;
        // SAFETY: the trait's contract.
        unsafe { take_back(buffer.as_ptr()) };
        Ok(())
    }
}

/// Memory of a device.
#[derive(Debug)]
pub(super) struct FakeBuffer {
    pub(super) context: u64,
    /// In words, so that atomics are aligned.
    words: Box<[u64]>,
    bytes: usize,
}

/// The place of a region whose addresses are not those of this process.
#[derive(Debug)]
pub(super) enum Foreign {
    /// In a buffer of the device.
    Buffer { id: u64, start: u64 },
    /// In a mapping of a dma-buf, which begins at a page.
    Mapping {
        start: u64,
        map: (usize, NonZeroUsize),
    },
}

impl Foreign {
    /// Returns the address of the first byte.
    pub(super) fn start(&self) -> u64 {
        match self {
            Self::Buffer { start, .. } | Self::Mapping { start, .. } => *start,
        }
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        if let Self::Mapping { map, .. } = self {
            // SAFETY: the mapping was made by `register_dmabuf`, and nothing else has its address.
            let unmapped = unsafe { munmap(ptr::with_exposed_provenance_mut(map.0), map.1.get()) };
            assert_eq!(unmapped, Ok(()), "a mapping of our own");
        }
    }
}

impl FakeProvider {
    /// Adds a region. Returns its keys.
    fn add_region(&self, state: &mut State, region: FakeRegion) -> RegisteredRegion {
        let id = state.new_id();
        state.regions.insert(id, region);
        RegisteredRegion {
            handle: RegionHandle::new(self.handle(id)).expect("a box"),
            lkey: id as u32,
            rkey: id as u32,
        }
    }

    pub(super) fn register_mapped(
        &self,
        domain: u64,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::RegisterDmabuf)?;
        if !state.device_of(state.domains[&domain].context).has_dmabufs {
            return Err(Errno::OPNOTSUPP);
        }
        let into_page = offset % page_size() as u64;
        let length = NonZeroUsize::new(bytes + into_page as usize).ok_or(Errno::INVAL)?;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a null hint without MAP_FIXED takes a range that is not in use.
        let mapped = unsafe {
            let from = offset - into_page;
            mmap(
                ptr::null_mut(),
                length.get(),
                protection,
                MapFlags::SHARED,
                buffer,
                from,
            )
        }?;
        let base = mapped.expose_provenance();
        let region = FakeRegion {
            domain,
            base: offset,
            bytes: bytes as u64,
            access,
            maker: Maker::calls(),
            foreign: Some(Foreign::Mapping {
                start: base as u64 + into_page,
                map: (base, length),
            }),
        };
        Ok(self.add_region(&mut state, region))
    }

    pub(super) fn register_in_buffer(
        &self,
        domain: u64,
        id: u64,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::RegisterBuffer)?;
        let buffer = state.buffers.get_mut(&id).ok_or(Errno::BADF)?;
        if offset + bytes as u64 > buffer.bytes as u64 {
            return Err(Errno::INVAL);
        }
        let start = buffer.words.as_mut_ptr().expose_provenance() as u64 + offset;
        let region = FakeRegion {
            domain,
            base: 0,
            bytes: bytes as u64,
            access,
            maker: Maker::calls(),
            foreign: Some(Foreign::Buffer { id, start }),
        };
        Ok(self.add_region(&mut state, region))
    }

    pub(super) fn new_buffer(&self, context: u64, bytes: usize) -> Result<BufferHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateBuffer)?;
        let of_device = state
            .buffers
            .values()
            .filter(|buffer| buffer.context == context);
        let taken: usize = of_device.map(|buffer| buffer.bytes).sum();
        let most = state.device_of(context).attributes.device_memory_bytes;
        if (taken + bytes) as u64 > most {
            return Err(Errno::NOMEM);
        }
        let id = state.new_id();
        let buffer = FakeBuffer {
            context,
            words: vec![0; bytes.div_ceil(8)].into_boxed_slice(),
            bytes,
        };
        state.buffers.insert(id, buffer);
        Ok(BufferHandle::new(self.handle(id)).expect("a box"))
    }
}

impl State {
    pub(super) fn end_buffer(&mut self, id: u64) -> Result<(), Errno> {
        self.grant(Call::DestroyBuffer)?;
        let is_used = |region: &FakeRegion| matches!(region.foreign, Some(Foreign::Buffer { id: of, .. }) if of == id);
        if self.regions.values().any(is_used) {
            return Err(Errno::BUSY);
        }
        self.buffers.remove(&id);
        Ok(())
    }

    /// Returns the address of a byte of the device's memory.
    pub(super) fn place_in_buffer(&mut self, id: u64, offset: u64) -> Result<*mut u8, Errno> {
        let buffer = self.buffers.get_mut(&id).ok_or(Errno::BADF)?;
        Ok(buffer
            .words
            .as_mut_ptr()
            .cast::<u8>()
            .wrapping_add(offset as usize))
    }
}
