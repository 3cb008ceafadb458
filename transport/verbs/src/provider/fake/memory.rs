//! Protection domains, registrations, dma-bufs, and memory of the device.
//!
//! A dma-buf is any descriptor that can be mapped, such as that of a memory file.

use std::num::NonZeroUsize;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, mmap, munmap};
use rustix::param::page_size;

use super::{
    Call, FakeProvider,
    handle::{id_of, take_back},
    refuse_if,
    world::{FakeDomain, FakeRegion, Maker, State},
};
use crate::{
    abi::{BindInfo, SendWr, Sge, access_flags, wr_opcode},
    provider::{
        BufferHandle, ContextHandle, DomainHandle, MemoryProvider, PairHandle, RegionHandle,
        RegisteredRegion, ReregisterFailure, Reregistration, ThreadDomainHandle, WindowHandle,
        WindowKind,
    },
};

impl MemoryProvider for FakeProvider {
    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateDomain)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        let id = state.new_id();
        let domain = FakeDomain {
            context,
            base: None,
            thread: None,
        };
        state.domains.insert(id, domain);
        Ok(DomainHandle::new(self.handle(id)).expect("a box"))
    }

    unsafe fn create_thread_domain(
        &self,
        context: ContextHandle,
    ) -> Result<ThreadDomainHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateThreadDomain)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        if !state.device_of(context).has_parent_domains {
            return Err(Errno::OPNOTSUPP);
        }
        let id = state.new_id();
        state.threads.insert(id, context);
        Ok(ThreadDomainHandle::new(self.handle(id)).expect("a box"))
    }

    unsafe fn destroy_thread_domain(&self, thread: ThreadDomainHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyThreadDomain)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(thread.as_ptr()) };
        let mut parents = state.domains.values();
        refuse_if(parents.any(|parent| parent.thread == Some(id)))?;
        state.threads.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(thread.as_ptr()) };
        Ok(())
    }

    unsafe fn create_parent_domain(
        &self,
        context: ContextHandle,
        domain: DomainHandle,
        thread: Option<ThreadDomainHandle>,
    ) -> Result<DomainHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateParentDomain)?;
        // SAFETY: the trait's contract.
        let parent = unsafe {
            FakeDomain {
                context: id_of(context.as_ptr()),
                base: Some(id_of(domain.as_ptr())),
                thread: thread.map(|thread| id_of(thread.as_ptr())),
            }
        };
        if !state.device_of(parent.context).has_parent_domains {
            return Err(Errno::OPNOTSUPP);
        }
        let id = state.new_id();
        state.domains.insert(id, parent);
        Ok(DomainHandle::new(self.handle(id)).expect("a box"))
    }

    unsafe fn destroy_domain(&self, domain: DomainHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyDomain)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(domain.as_ptr()) };
        let busy = state.regions.values().any(|region| region.domain == id)
            || state.windows.values().any(|window| window.domain == id)
            || state.addresses.values().any(|address| address.domain == id)
            || state.shared.values().any(|queue| queue.domain == id)
            || state.pairs.values().any(|pair| pair.domain == id)
            || state.domains.values().any(|other| other.base == Some(id));
        refuse_if(busy)?;
        state.domains.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(domain.as_ptr()) };
        Ok(())
    }

    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        let start = base.as_ptr().expose_provenance() as u64;
        state.advise_fork(start, bytes as u64, Advice::LinuxDontFork);
        if let Err(errno) = state.grant(Call::Register) {
            state.advise_fork(start, bytes as u64, Advice::LinuxDoFork);
            return Err(errno);
        }
        let id = state.new_id();
        state.regions.insert(
            id,
            FakeRegion {
                domain,
                base: start,
                bytes: bytes as u64,
                access,
                maker: Maker::calls(),
                foreign: None,
            },
        );
        Ok(RegisteredRegion {
            handle: RegionHandle::new(self.handle(id)).expect("a box"),
            lkey: id as u32,
            rkey: id as u32,
        })
    }

    unsafe fn deregister(&self, region: RegionHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::Deregister)?;
        // SAFETY: the trait's contract.
        let id = state.region_of(unsafe { id_of(region.as_ptr()) });
        let mut bound = state.windows.values().filter_map(|window| window.bound);
        refuse_if(bound.any(|bound| bound.region == id))?;
        if let Some(ended) = state.regions.remove(&id)
            && ended.foreign.is_none()
        {
            state.advise_fork(ended.base, ended.bytes, Advice::LinuxDoFork);
        }
        // SAFETY: the trait's contract.
        unsafe { take_back(region.as_ptr()) };
        Ok(())
    }

    unsafe fn reregister(
        &self,
        region: RegionHandle,
        change: &Reregistration,
    ) -> Result<(u32, u32), ReregisterFailure> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = state.region_of(unsafe { id_of(region.as_ptr()) });
        // SAFETY: the trait's contract.
        let domain = change.domain.map(|one| unsafe { id_of(one.as_ptr()) });
        state.change_region(id, domain, change)
    }

    unsafe fn register_dmabuf(
        &self,
        domain: DomainHandle,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        self.register_mapped(domain, buffer, offset, bytes, access)
    }

    unsafe fn advise(
        &self,
        _domain: DomainHandle,
        advice: u32,
        flags: u32,
        piece: Sge,
    ) -> Result<(), Errno> {
        self.world.lock().advise(advice, flags, piece)
    }

    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        _align_log: u32,
    ) -> Result<BufferHandle, Errno> {
        // SAFETY: the trait's contract.
        self.new_buffer(unsafe { id_of(context.as_ptr()) }, bytes)
    }

    unsafe fn destroy_buffer(&self, buffer: BufferHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(buffer.as_ptr()) };
        self.world.lock().end_buffer(id)?;
        // SAFETY: the trait's contract.
        unsafe { take_back(buffer.as_ptr()) };
        Ok(())
    }

    unsafe fn write_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        from: &[u8],
    ) -> Result<(), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract: the bytes are within the buffer.
        unsafe {
            let place = state.place_in_buffer(id_of(buffer.as_ptr()), offset)?;
            place.copy_from(from.as_ptr(), from.len());
        }
        Ok(())
    }

    unsafe fn read_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract: the bytes are within the buffer.
        unsafe {
            let place = state.place_in_buffer(id_of(buffer.as_ptr()), offset)?;
            place.copy_to(into.as_mut_ptr(), into.len());
        }
        Ok(())
    }

    unsafe fn register_buffer(
        &self,
        domain: DomainHandle,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        // SAFETY: the trait's contract.
        let (domain, buffer) = unsafe { (id_of(domain.as_ptr()), id_of(buffer.as_ptr())) };
        self.register_in_buffer(domain, buffer, offset, bytes, access)
    }

    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno> {
        // SAFETY: the trait's contract.
        self.new_window(unsafe { id_of(domain.as_ptr()) }, kind)
    }

    unsafe fn destroy_window(&self, window: WindowHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        self.end_window(unsafe { id_of(window.as_ptr()) })?;
        // SAFETY: the trait's contract.
        unsafe { take_back(window.as_ptr()) };
        Ok(())
    }

    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> Result<u32, Errno> {
        let mut request = SendWr {
            wr_id,
            opcode: wr_opcode::BIND_WINDOW,
            send_flags: flags,
            ..SendWr::EMPTY
        };
        request.bind.window = window.as_ptr();
        request.bind.info = *info;
        // SAFETY: the trait's contract.
        let (pair, window) = unsafe { (id_of(pair.as_ptr()), id_of(window.as_ptr())) };
        self.bind_first(pair, window, request)
    }

    unsafe fn set_window_key(&self, _window: WindowHandle, _key: u32) {
        // The key is known since the binding.
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
        let most = state
            .device_of(context)
            .attributes
            .extended
            .device_memory_bytes;
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

    pub(super) fn change_region(
        &mut self,
        id: u64,
        domain: Option<u64>,
        change: &Reregistration,
    ) -> Result<(u32, u32), ReregisterFailure> {
        self.grant(Call::Reregister)
            .map_err(ReregisterFailure::Unusable)?;
        let region = self.regions.get_mut(&id);
        let region = region.ok_or(ReregisterFailure::Unchanged(Errno::BADF))?;
        if let Some(domain) = domain {
            region.domain = domain;
        }
        let old = (region.base, region.bytes);
        if let Some((base, bytes)) = change.memory {
            region.base = base.as_ptr().expose_provenance() as u64;
            region.bytes = bytes as u64;
        }
        let new = (region.base, region.bytes);
        if let Some(access) = change.access {
            region.access = access;
        }
        if change.memory.is_some() {
            self.advise_fork(new.0, new.1, Advice::LinuxDontFork);
            self.advise_fork(old.0, old.1, Advice::LinuxDoFork);
        }
        // Drivers may keep the keys or not.
        let key = self.new_id();
        let region = self.regions.remove(&id).expect("it was there above");
        self.regions.insert(key, region);
        self.moved.insert(id, key);
        Ok((key as u32, key as u32))
    }

    pub(super) fn advise(&mut self, advice: u32, flags: u32, piece: Sge) -> Result<(), Errno> {
        self.grant(Call::Advise)?;
        let key = u64::from(piece.lkey);
        let region = self.regions.get(&key).ok_or(Errno::INVAL)?;
        if region.access & access_flags::ON_DEMAND == 0 || advice > 2 || flags > 1 {
            return Err(Errno::INVAL);
        }
        self.advised.push((advice, flags, piece));
        Ok(())
    }

    /// Returns the number under which the region of a handle is kept now.
    pub(super) fn region_of(&self, id: u64) -> u64 {
        let mut id = id;
        while let Some(&next) = self.moved.get(&id) {
            id = next;
        }
        id
    }
}
