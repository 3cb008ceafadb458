//! The calls of the control path.
//!
//! Each `unsafe` below turns a handle into the number of its object, which the trait's contract
//! allows: it came from here and has not been destroyed. For calls that destroy an object, the
//! contract adds that its handle is not used again.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::Advice;

use super::{
    Call, FakeExtended, FakeProvider, Modification,
    batch::batch_calls,
    handle::id_of,
    hot::HOT,
    objects::refuse_read_only,
    world::{FakeChannel, FakeContext, FakeDomain, FakeRegion, Maker, bell, unring},
};
use crate::{
    abi::{
        BindInfo, SendWr, attribute_mask::AttributeMask, fork_status::ForkStatus, gid::GidEntry,
        port::PortAttributes, queue_pair_attributes::QueuePairAttributes, wr_opcode,
    },
    error::VerbsError,
    provider::{
        AnyHandle, ChannelHandle, CompletionHandle, CompletionInit, ContextHandle, CreatedPair,
        CreatedSharedReceive, DeviceAttributes, DeviceEntry, DomainHandle, ExtendedQueue, NodeType,
        OpenedContext, PairHandle, Provider, QueriedPair, QueuePairInit, RawEvent, RegionHandle,
        RegisteredRegion, SharedReceiveAttributes, SharedReceiveHandle, SharedReceiveInit,
        WindowHandle, WindowKind,
    },
};

impl Provider for FakeProvider {
    fn devices(&self) -> Result<Vec<DeviceEntry>, VerbsError> {
        let mut state = self.world.lock();
        state.list_devices()?;
        let entry = |device: &super::FakeDevice| DeviceEntry {
            name: device.name.clone(),
            file: device.file.clone(),
            transport: device.transport,
            guid: device.guid,
            node_type: NodeType::ChannelAdapter,
        };
        let listed = state.devices.iter().filter(|device| device.is_listed);
        Ok(listed.map(entry).collect())
    }

    fn fork_status(&self) -> ForkStatus {
        let status = self.world.lock().fork_status;
        status.unwrap_or(ForkStatus::Unneeded)
    }

    fn open(&self, name: &str) -> Result<OpenedContext, VerbsError> {
        let mut state = self.world.lock();
        state.list_devices()?;
        let listed = state.devices.iter().filter(|device| device.is_listed);
        let present: Vec<_> = listed.map(|device| device.name.clone()).collect();
        if !present.iter().any(|device| device == name) {
            return Err(VerbsError::NoSuchDevice {
                name: name.to_owned(),
                present,
            });
        }
        let refused = |source| VerbsError::Open {
            device: name.to_owned(),
            source,
        };
        state.grant(Call::Open).map_err(refused)?;
        let fd = bell().map_err(refused)?;
        let async_fd = fd.as_raw_fd();
        let id = state.new_id();
        state.contexts.insert(
            id,
            FakeContext {
                device: name.to_owned(),
                events: VecDeque::new(),
                fd,
                is_removed: false,
            },
        );
        Ok(OpenedContext {
            handle: ContextHandle::new(self.handle(id)).expect("a box"),
            hot: HOT,
            async_fd,
        })
    }

    unsafe fn destroy(&self, handle: AnyHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        unsafe {
            match handle {
                AnyHandle::Context(it) => self.close(it),
                AnyHandle::Domain(it) => self.destroy_domain(it),
                AnyHandle::Region(it) => self.deregister(it),
                AnyHandle::Window(it) => self.destroy_window(it),
                AnyHandle::Buffer(it) => self.destroy_buffer(it),
                AnyHandle::Channel(it) => self.destroy_channel(it),
                AnyHandle::Completion(it) => self.destroy_completion_queue(it),
                AnyHandle::SharedReceive(it) => self.destroy_shared_receive(it),
                AnyHandle::Pair(it) => self.destroy_pair(it),
                AnyHandle::Address(it) => self.destroy_address(it),
                AnyHandle::XrcDomain(it) => self.close_xrc_domain(it),
            }
        }
    }

    unsafe fn query_device(&self, context: ContextHandle) -> Result<DeviceAttributes, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::QueryDevice, id)?;
        let device = state.device_of(id);
        let clock = device.clock.map(|clock| (clock.kilohertz, clock.mask));
        let (clock_kilohertz, timestamp_mask) = clock.unwrap_or_default();
        Ok(DeviceAttributes {
            clock_kilohertz,
            timestamp_mask,
            ..device.attributes.clone()
        })
    }

    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> Result<PortAttributes, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::QueryPort, id)?;
        let ports = &state.device_of(id).ports;
        let port = ports.get(usize::from(port).wrapping_sub(1));
        port.map(|port| port.attributes).ok_or(Errno::INVAL)
    }

    unsafe fn query_gid(
        &self,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> Result<Option<GidEntry>, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::QueryGid, id)?;
        let ports = &state.device_of(id).ports;
        let port = ports
            .get(usize::from(port).wrapping_sub(1))
            .ok_or(Errno::INVAL)?;
        Ok(port.gids.iter().find(|gid| gid.index == index).copied())
    }

    unsafe fn query_pkey(
        &self,
        context: ContextHandle,
        port: u8,
        index: u16,
    ) -> Result<u16, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::QueryPkey, id)?;
        let ports = &state.device_of(id).ports;
        let port = ports
            .get(usize::from(port).wrapping_sub(1))
            .ok_or(Errno::INVAL)?;
        let pkey = port.pkeys.get(usize::from(index));
        pkey.copied().ok_or(Errno::INVAL)
    }

    unsafe fn async_event(&self, context: ContextHandle) -> Result<Option<RawEvent>, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::AsyncEvent)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        let context = state.contexts.get_mut(&id).ok_or(Errno::BADF)?;
        let event = context.events.pop_front();
        if event.is_some() {
            unring(&context.fd);
        }
        Ok(event)
    }

    unsafe fn create_pair(&self, init: &QueuePairInit) -> Result<CreatedPair, Errno> {
        // SAFETY: the trait's contract.
        unsafe { self.new_pair(init) }
    }

    unsafe fn modify_pair(
        &self,
        pair: PairHandle,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        state.modifications.push(Modification {
            queue_pair: id as u32,
            attributes: *attributes,
            mask,
        });
        let context = state.pairs[&id].context;
        state.grant_at(Call::ModifyPair, context)?;
        state.modify(id, attributes, mask)
    }

    unsafe fn query_pair(&self, pair: PairHandle) -> Result<QueriedPair, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        let context = state.pairs[&id].context;
        state.grant_at(Call::QueryPair, context)?;
        state.describe_pair(id)
    }

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

    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::CreateChannel, context)?;
        let fd = bell()?;
        let raw = fd.as_raw_fd();
        let id = state.new_id();
        state.channels.insert(
            id,
            FakeChannel {
                context,
                events: VecDeque::new(),
                fd,
            },
        );
        let handle = ChannelHandle::new(self.handle(id)).expect("a box");
        Ok((handle, raw))
    }

    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<Option<u64>, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ChannelEvent)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(channel.as_ptr()) };
        let channel = state.channels.get_mut(&id).ok_or(Errno::BADF)?;
        let Some(queue) = channel.events.pop_front() else {
            return Ok(None);
        };
        unring(&channel.fd);
        let queue = state.completions.get_mut(&queue).ok_or(Errno::BADF)?;
        queue.unacknowledged += 1;
        Ok(Some(queue.tag))
    }

    unsafe fn create_completion_queue(
        &self,
        init: &CompletionInit,
    ) -> Result<(CompletionHandle, u32), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(init.context.as_ptr()) };
        state.grant_at(Call::CreateCompletionQueue, context)?;
        // SAFETY: the trait's contract.
        let channel = init.channel.map(|one| unsafe { id_of(one.as_ptr()) });
        let (id, capacity) = state.new_completions(context, init, channel, None)?;
        let handle = CompletionHandle::new(self.handle(id)).expect("a box");
        Ok((handle, capacity))
    }

    unsafe fn create_extended_queue(&self, init: &CompletionInit) -> Result<ExtendedQueue, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(init.context.as_ptr()) };
        state.grant_at(Call::CreateExtendedQueue, context)?;
        // SAFETY: the trait's contract.
        let channel = init.channel.map(|one| unsafe { id_of(one.as_ptr()) });
        let device = state.device_of(context);
        let kind = device.extended;
        let lacks_times = init.times && device.clock.is_none();
        if kind == FakeExtended::Absent || lacks_times {
            return Err(Errno::OPNOTSUPP);
        }
        let made = state.new_completions(context, init, channel, Some(kind));
        let (id, entries) = made?;
        let handle = self.handle(id);
        // SAFETY: the handle was just made.
        let calls = unsafe { batch_calls(&*handle, init) };
        Ok(ExtendedQueue {
            handle: CompletionHandle::new(handle).expect("a box"),
            entries,
            calls,
        })
    }

    unsafe fn read_clock(&self, context: ContextHandle) -> Result<u64, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ReadClock)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        let clock = state.device_of(id).clock.ok_or(Errno::OPNOTSUPP)?;
        Ok(state.ticks & clock.mask)
    }

    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32) {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        if let Some(queue) = state.completions.get_mut(&id) {
            queue.unacknowledged = queue
                .unacknowledged
                .checked_sub(events)
                .expect("no more acknowledgements than events");
        }
        state.acknowledged += u64::from(events);
        state.acknowledgements += 1;
    }

    unsafe fn create_shared_receive(
        &self,
        init: &SharedReceiveInit,
    ) -> Result<CreatedSharedReceive, Errno> {
        // SAFETY: the trait's contract.
        unsafe { self.new_shared_receive(init) }
    }

    unsafe fn arm_shared_receive_limit(
        &self,
        queue: SharedReceiveHandle,
        limit: u32,
    ) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ArmSharedReceiveLimit)?;
        state.limits_armed += 1;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        let queue = state.shared.get_mut(&id).ok_or(Errno::BADF)?;
        queue.limit = limit as usize;
        Ok(())
    }

    unsafe fn query_shared_receive(
        &self,
        queue: SharedReceiveHandle,
    ) -> Result<SharedReceiveAttributes, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::QuerySharedReceive)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        state.describe_shared(id)
    }
}
