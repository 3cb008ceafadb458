//! The calls behind the feature `all`.

use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::fstat;
use rustix::io::Errno;

use super::{
    Call, FakeProvider, datagram::FakeAddress, handle::id_of, world::FakePair, xrc::FakeXrcDomain,
};
use crate::{
    abi::{gid::Gid, queue_pair_attributes::AddressVector, queue_pair_kind::QueuePairKind},
    provider::{
        AddressObject, BufferHandle, ContextHandle, DomainHandle, PairHandle, RegisteredRegion,
        XrcDomainHandle, all::AllProvider,
    },
};

impl AllProvider for FakeProvider {
    unsafe fn create_address(
        &self,
        domain: DomainHandle,
        vector: &AddressVector,
    ) -> Result<AddressObject, Errno> {
        let mut state = self.world.lock();
        state.grant(super::Call::CreateAddress)?;
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        state.source_of(state.domains[&domain].context, vector)?;
        let id = state.new_id();
        let vector = *vector;
        state.addresses.insert(id, FakeAddress { domain, vector });
        Ok(AddressObject::new(self.handle(id)).expect("a box"))
    }

    unsafe fn attach_multicast(&self, pair: PairHandle, group: Gid, _: u16) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(super::Call::AttachMulticast)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        if state.pairs[&id].kind != QueuePairKind::Datagram || !group.is_multicast() {
            return Err(Errno::INVAL);
        }
        // A queue pair that is attached twice still gets one copy.
        if !state.groups.contains(&(group, id)) {
            state.groups.push((group, id));
        }
        Ok(())
    }

    unsafe fn detach_multicast(&self, pair: PairHandle, group: Gid, _: u16) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(super::Call::DetachMulticast)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        let place = state.groups.iter().position(|one| *one == (group, id));
        state.groups.remove(place.ok_or(Errno::INVAL)?);
        Ok(())
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

    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        _align_log: u32,
    ) -> Result<BufferHandle, Errno> {
        // SAFETY: the trait's contract.
        self.new_buffer(unsafe { id_of(context.as_ptr()) }, bytes)
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

    unsafe fn open_xrc_domain(
        &self,
        context: ContextHandle,
        file: Option<RawFd>,
        flags: i32,
    ) -> Result<XrcDomainHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::OpenXrcDomain)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        if !state.device_of(context).has_xrc {
            return Err(Errno::OPNOTSUPP);
        }
        let file = match file {
            // SAFETY: the caller holds the file open during the call.
            Some(fd) => Some(fstat(unsafe { BorrowedFd::borrow_raw(fd) })?),
            None => None,
        };
        let file = file.map(|found| (found.st_dev, found.st_ino));
        let mut open = state.xrc_domains.values();
        let present = open.find(|domain| file.is_some() && domain.file == file);
        let present = present.map(|domain| domain.shared);
        let shared = match present {
            Some(_) if flags & libc::O_EXCL != 0 => return Err(Errno::INVAL),
            Some(shared) => shared,
            None if flags & libc::O_CREAT == 0 => return Err(Errno::INVAL),
            None => state.new_id(),
        };
        let id = state.new_id();
        let opened = FakeXrcDomain {
            context,
            shared,
            file,
        };
        state.xrc_domains.insert(id, opened);
        Ok(XrcDomainHandle::new(self.handle(id)).expect("a box"))
    }

    unsafe fn create_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
    ) -> Result<(PairHandle, u32), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreatePair)?;
        // SAFETY: the trait's contract.
        let (context, domain) = unsafe { (id_of(context.as_ptr()), id_of(domain.as_ptr())) };
        let id = state.new_id();
        let pair = FakePair {
            xrc: Some(state.xrc_domains[&domain].shared),
            ..FakePair::new(QueuePairKind::XrcReceive, context)
        };
        state.pairs.insert(id, pair);
        let handle = PairHandle::new(self.handle(id)).expect("a box");
        Ok((handle, id as u32))
    }

    unsafe fn open_xrc_receiver(
        &self,
        _: ContextHandle,
        domain: XrcDomainHandle,
        number: u32,
    ) -> Result<PairHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::OpenPair)?;
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        let id = u64::from(number);
        let shared = state.xrc_domains[&domain].shared;
        let pair = state.pairs.get_mut(&id);
        let pair = pair.filter(|pair| pair.xrc == Some(shared));
        pair.ok_or(Errno::INVAL)?.handles += 1;
        Ok(PairHandle::new(self.handle(id)).expect("a box"))
    }
}
