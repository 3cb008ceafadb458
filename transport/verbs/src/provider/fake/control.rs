//! The calls of the control path.
//!
//! Each `unsafe` below turns a handle into the number of its object, which the trait's contract
//! allows: it came from here and has not been destroyed. For calls that destroy an object, the
//! contract adds that its handle is not used again.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr::NonNull;

use rustix::io::Errno;
use rustix::mm::Advice;

use super::{
    Call, FakeExtended, FakeProvider, Modification,
    batch::batch_calls,
    handle::{id_of, take_back},
    hot::HOT,
    world::{
        Batch, FakeChannel, FakeContext, FakePair, FakeReceives, FakeRegion, Maker, bell, unring,
    },
};
use crate::{
    abi::{
        BindInfo, SendWr, Sge,
        gid::GidEntry,
        port::PortAttributes,
        queue_pair_kind::QueuePairKind,
        queue_pair_state::{AttributeMask, QueuePairAttributes},
        wr_opcode,
    },
    completion::details::CompletionFields,
    device::fork_report::ForkStatus,
    error::VerbsError,
    provider::{
        BufferHandle, ChannelHandle, ClockAttributes, CompletionHandle, ContextHandle, CreatedPair,
        DeviceAttributes, DeviceEntry, DomainHandle, ExtendedInit, ExtendedQueue, NodeType,
        OpenedContext, PairHandle, Provider, QueriedPair, QueuePairInit, RawEvent, RegionHandle,
        RegisteredRegion, ReregisterFailure, Reregistration, SharedReceiveAttributes,
        SharedReceiveHandle, WindowHandle, WindowKind, sealed,
    },
};

fn refuse_if(busy: bool) -> Result<(), Errno> {
    if busy { Err(Errno::BUSY) } else { Ok(()) }
}

impl sealed::Sealed for FakeProvider {}

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
            },
        );
        Ok(OpenedContext {
            handle: ContextHandle::new(self.handle(id)).expect("a box"),
            hot: HOT,
            async_fd,
        })
    }

    unsafe fn close(&self, context: ContextHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::Close)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        let busy = state.domains.values().any(|of| *of == id)
            || state.buffers.values().any(|buffer| buffer.context == id)
            || state.completions.values().any(|queue| queue.context == id)
            || state.channels.values().any(|channel| channel.context == id)
            || state
                .xrc_domains
                .values()
                .any(|domain| domain.context == id);
        refuse_if(busy)?;
        state.contexts.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(context.as_ptr()) };
        Ok(())
    }

    unsafe fn query_device(&self, context: ContextHandle) -> Result<DeviceAttributes, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::QueryDevice)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        Ok(state.device_of(id).attributes.clone())
    }

    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> Result<PortAttributes, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::QueryPort)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
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
        state.grant(Call::QueryGid)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
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
        state.grant(Call::QueryPkey)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
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

    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateDomain)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        let id = state.new_id();
        state.domains.insert(id, context);
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
            || state.pairs.values().any(|pair| pair.domain == id);
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

    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateChannel)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
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

    unsafe fn destroy_channel(&self, channel: ChannelHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyChannel)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(channel.as_ptr()) };
        let mut queues = state.completions.values();
        refuse_if(queues.any(|queue| queue.channel == Some(id)))?;
        state.channels.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(channel.as_ptr()) };
        Ok(())
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
        context: ContextHandle,
        entries: u32,
        channel: Option<ChannelHandle>,
        vector: u32,
        tag: u64,
    ) -> Result<(CompletionHandle, u32), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateCompletionQueue)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        // SAFETY: the trait's contract.
        let channel = channel.map(|channel| unsafe { id_of(channel.as_ptr()) });
        let init = ExtendedInit {
            entries,
            channel: None,
            vector,
            tag,
            times: false,
            fields: CompletionFields::default(),
        };
        let (id, capacity) = state.new_completions(context, &init, channel, None)?;
        let handle = CompletionHandle::new(self.handle(id)).expect("a box");
        Ok((handle, capacity))
    }

    unsafe fn create_extended_queue(
        &self,
        context: ContextHandle,
        init: &ExtendedInit,
    ) -> Result<ExtendedQueue, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateExtendedQueue)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        // SAFETY: the trait's contract.
        let channel = init.channel.map(|one| unsafe { id_of(one.as_ptr()) });
        let device = state.device_of(context);
        let kind = device.extended;
        if kind == FakeExtended::Absent || !device.has_fields(init) {
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

    unsafe fn query_clock(&self, context: ContextHandle) -> Result<Option<ClockAttributes>, Errno> {
        let state = self.world.lock();
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        let clock = state.device_of(id).clock;
        Ok(clock.map(|clock| ClockAttributes {
            kilohertz: clock.kilohertz,
            mask: clock.mask,
        }))
    }

    unsafe fn read_clock(&self, context: ContextHandle) -> Result<u64, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ReadClock)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        let clock = state.device_of(id).clock.ok_or(Errno::OPNOTSUPP)?;
        Ok(state.ticks & clock.mask)
    }

    unsafe fn resize_completion_queue(
        &self,
        queue: CompletionHandle,
        entries: u32,
    ) -> Result<u32, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ResizeCompletionQueue)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        state.resize_completions(id, entries)
    }

    unsafe fn moderate_completions(
        &self,
        queue: CompletionHandle,
        count: u16,
        micros: u16,
    ) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ModerateCompletions)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        state.moderate(id, count, micros)
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

    unsafe fn destroy_completion_queue(&self, queue: CompletionHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyCompletionQueue)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        let busy = state
            .pairs
            .values()
            .any(|pair| pair.send_completions == id || pair.receive_completions == id);
        // The library would wait for acknowledgements for ever; here the mistake shows at once.
        refuse_if(busy || state.completes_xrc(id) || state.completions[&id].unacknowledged > 0)?;
        state.end_completions(id);
        // SAFETY: the trait's contract.
        unsafe { take_back(queue.as_ptr()) };
        Ok(())
    }

    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        requests: u32,
        entries: u32,
        tag: u64,
    ) -> Result<(SharedReceiveHandle, u32, u32), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreateSharedReceive)?;
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        let context = state.domains[&domain];
        let limits = &state.device_of(context).attributes;
        if limits.max_shared_receive_queues == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if requests > limits.max_shared_receive_requests
            || entries > limits.max_shared_receive_entries
        {
            return Err(Errno::INVAL);
        }
        let capacity = state.device_of(context).queue_size(requests);
        let id = state.new_id();
        state.shared.insert(
            id,
            FakeReceives {
                domain,
                context,
                tag,
                capacity: capacity as usize,
                entries: entries as usize,
                limit: 0,
                posted: VecDeque::new(),
                maker: Maker::calls(),
                xrc: None,
            },
        );
        let handle = SharedReceiveHandle::new(self.handle(id)).expect("a box");
        Ok((handle, capacity, entries))
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

    unsafe fn resize_shared_receive(
        &self,
        queue: SharedReceiveHandle,
        requests: u32,
    ) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ResizeSharedReceive)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        state.resize_shared(id, requests)
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

    unsafe fn destroy_shared_receive(&self, queue: SharedReceiveHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroySharedReceive)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        // A receiving end of an extended connection only took from it.
        let mut own = state.pairs.values().filter(|pair| pair.xrc.is_none());
        refuse_if(own.any(|pair| pair.shared == Some(id)))?;
        state.shared.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(queue.as_ptr()) };
        Ok(())
    }

    unsafe fn create_pair(
        &self,
        domain: DomainHandle,
        init: &QueuePairInit,
    ) -> Result<CreatedPair, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreatePair)?;
        // SAFETY: the trait's contract.
        let (domain, send_completions, receive_completions, shared) = unsafe {
            (
                id_of(domain.as_ptr()),
                id_of(init.send_queue.as_ptr()),
                id_of(init.receive_queue.as_ptr()),
                init.shared.map(|queue| id_of(queue.as_ptr())),
            )
        };
        let context = state.domains[&domain];
        let device = state.device_of(context);
        let (limits, mut sizes) = (&device.attributes, init.sizes);
        let most = limits.max_queue_pair_requests;
        if sizes.send_requests > most
            || sizes.receive_requests > most
            || sizes.send_entries.max(sizes.receive_entries) > limits.max_entries
            || sizes.inline_bytes > device.max_inline_bytes
        {
            return Err(Errno::INVAL);
        }
        if state.pairs.len() >= limits.max_queue_pairs as usize {
            return Err(Errno::NOMEM);
        }
        if init.kind == QueuePairKind::XrcSend && !device.has_xrc {
            return Err(Errno::OPNOTSUPP);
        }
        let (sends, receives) = (sizes.send_requests, sizes.receive_requests);
        sizes.send_requests = device.queue_size(sends);
        if shared.is_none() {
            sizes.receive_requests = device.queue_size(receives);
        }
        let id = state.new_id();
        state.pairs.insert(
            id,
            FakePair {
                domain,
                sizes,
                send_completions,
                receive_completions,
                shared,
                ..FakePair::new(init.kind, context)
            },
        );
        Ok(CreatedPair {
            handle: PairHandle::new(self.handle(id)).expect("a box"),
            number: id as u32,
            sizes,
        })
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
        state.grant(Call::ModifyPair)?;
        state.modify(id, attributes, mask)
    }

    unsafe fn query_pair(&self, pair: PairHandle) -> Result<QueriedPair, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::QueryPair)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        state.describe_pair(id)
    }

    unsafe fn destroy_pair(&self, pair: PairHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyPair)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        // A device may keep a queue pair for as long as a window is bound by it, as soft-RoCE does.
        let bound = state.windows.values().filter_map(|window| window.bound);
        refuse_if(bound.map(|bound| bound.pair).any(|pair| pair == id))?;
        refuse_if(state.groups.iter().any(|(_, pair)| *pair == id))?;
        if state.close_pair(id)
            && let Some(pair) = state.pairs.remove(&id)
        {
            // Completions of a destroyed queue pair are taken out of its queues
            // (ibv_destroy_qp(3)).
            for queue in [pair.send_completions, pair.receive_completions] {
                if let Some(queue) = state.completions.get_mut(&queue) {
                    // An extended queue is made for one thread, so no lock separates the two calls.
                    assert!(
                        matches!(queue.batch, Batch::None),
                        "a queue pair goes in the middle of a batch"
                    );
                    queue
                        .ready
                        .retain(|one| u64::from(one.completion.qp_num) != id);
                }
            }
        }
        // SAFETY: the trait's contract.
        unsafe { take_back(pair.as_ptr()) };
        Ok(())
    }
}
