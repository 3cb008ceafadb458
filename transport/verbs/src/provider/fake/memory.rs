//! The calls for protection domains and for the memory that belongs to them.

use std::fs;
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::Advice;

use super::{
    Call, FakeProvider,
    handle::{id_of, take_back},
    refuse_if,
    world::{FakeDomain, FakeRegion, Maker},
};
use crate::{
    abi::{BindInfo, SendWr, access_flags, wr_opcode},
    provider::{
        ContextHandle, DomainHandle, MemoryProvider, PairHandle, RegionHandle, RegisteredRegion,
        WindowHandle, WindowKind,
    },
};

impl MemoryProvider for FakeProvider {
    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::CreateDomain, context)?;
        let id = state.new_id();
        state.domains.insert(id, FakeDomain { context });
        Ok(DomainHandle::new(self.handle(id)).expect("a box"))
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
        let context = state.domains[&domain].context;
        let granted = state.grant_at(Call::Register, context);
        if let Err(errno) = granted.and_then(|()| refuse_read_only(start, access)) {
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

    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> Result<(WindowHandle, u32), Errno> {
        // SAFETY: the trait's contract.
        self.new_window(unsafe { id_of(domain.as_ptr()) }, kind)
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

/// The ends of objects, by the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
    pub(super) unsafe fn destroy_domain(&self, domain: DomainHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyDomain)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(domain.as_ptr()) };
        let busy = state.regions.values().any(|region| region.domain == id)
            || state.windows.values().any(|window| window.domain == id)
            || state.addresses.values().any(|address| address.domain == id)
            || state.shared.values().any(|queue| queue.domain == id)
            || state.pairs.values().any(|pair| pair.domain == id);
        refuse_if(busy)?;
        state.domains.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(domain.as_ptr()) };
        Ok(())
    }

    pub(super) unsafe fn deregister(&self, region: RegionHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::Deregister)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(region.as_ptr()) };
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

    pub(super) unsafe fn destroy_window(&self, window: WindowHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        self.end_window(unsafe { id_of(window.as_ptr()) })?;
        // SAFETY: the trait's contract.
        unsafe { take_back(window.as_ptr()) };
        Ok(())
    }
}

/// Fails as the kernel does where memory that is mapped for reading alone is registered with a right
/// to write. The right to bind windows is one (`ib_access_writable`).
fn refuse_read_only(start: u64, access: u32) -> Result<(), Errno> {
    const WRITES: u32 = access_flags::LOCAL_WRITE
        | access_flags::REMOTE_WRITE
        | access_flags::REMOTE_ATOMIC
        | access_flags::WINDOW_BIND;
    if access & WRITES == 0 {
        return Ok(());
    }
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let is_read_only = maps.lines().any(|line| {
        let (range, rest) = line.split_once(' ').unwrap_or_default();
        let (first, end) = range.split_once('-').unwrap_or_default();
        let number = |hexadecimal| u64::from_str_radix(hexadecimal, 16).unwrap_or(0);
        (number(first)..number(end)).contains(&start) && rest.starts_with("r-")
    });
    if is_read_only {
        Err(Errno::FAULT)
    } else {
        Ok(())
    }
}
