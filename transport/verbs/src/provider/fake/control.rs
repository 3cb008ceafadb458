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
    handle::{id_of, take_back},
    hot::HOT,
    world::{
        Batch, FakeChannel, FakeCompletions, FakeContext, FakePair, FakeReceives, FakeRegion,
        Maker, State, bell, unring,
    },
};
use crate::{
    abi::{
        gid::GidEntry,
        port::PortAttributes,
        queue_pair_state::{AttributeMask, QueuePairAttributes, QueuePairState, check_transition},
    },
    device::fork_report::ForkStatus,
    error::VerbsError,
    provider::{
        ChannelHandle, ClockAttributes, CompletionHandle, ContextHandle, CreatedPair,
        DeviceAttributes, DeviceEntry, DomainHandle, ExtendedInit, ExtendedQueue, OpenedContext,
        PairHandle, Provider, QueuePairInit, RawEvent, RegionHandle, RegisteredRegion,
        SharedReceiveHandle, sealed,
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
            || state.completions.values().any(|queue| queue.context == id)
            || state.channels.values().any(|channel| channel.context == id);
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
        let id = unsafe { id_of(region.as_ptr()) };
        if let Some(ended) = state.regions.remove(&id) {
            state.advise_fork(ended.base, ended.bytes, Advice::LinuxDoFork);
        }
        // SAFETY: the trait's contract.
        unsafe { take_back(region.as_ptr()) };
        Ok(())
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

    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<bool, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::ChannelEvent)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(channel.as_ptr()) };
        let channel = state.channels.get_mut(&id).ok_or(Errno::BADF)?;
        let Some(queue) = channel.events.pop_front() else {
            return Ok(false);
        };
        unring(&channel.fd);
        if let Some(queue) = state.completions.get_mut(&queue) {
            queue.unacknowledged += 1;
        }
        Ok(true)
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
        let (kind, has_clock) = (device.extended, device.clock.is_some());
        if kind == FakeExtended::Absent || init.times && !has_clock {
            return Err(Errno::OPNOTSUPP);
        }
        let made = state.new_completions(context, init, channel, Some(kind));
        let (id, entries) = made?;
        let handle = self.handle(id);
        // SAFETY: the handle was just made.
        let calls = unsafe { batch_calls(&*handle, init.times) };
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
        refuse_if(busy || state.completions[&id].unacknowledged > 0)?;
        state.completions.remove(&id);
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

    unsafe fn destroy_shared_receive(&self, queue: SharedReceiveHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroySharedReceive)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(queue.as_ptr()) };
        refuse_if(state.pairs.values().any(|pair| pair.shared == Some(id)))?;
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
        let (sends, receives) = (sizes.send_requests, sizes.receive_requests);
        sizes.send_requests = device.queue_size(sends);
        if shared.is_none() {
            sizes.receive_requests = device.queue_size(receives);
        }
        let id = state.new_id();
        state.pairs.insert(
            id,
            FakePair {
                context,
                domain,
                state: QueuePairState::Reset,
                sizes,
                send_completions,
                receive_completions,
                shared,
                destination: 0,
                access: 0,
                sends: VecDeque::new(),
                silent: 0,
                receives: VecDeque::new(),
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

    unsafe fn destroy_pair(&self, pair: PairHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::DestroyPair)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(pair.as_ptr()) };
        if let Some(pair) = state.pairs.remove(&id) {
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

impl State {
    fn modify(
        &mut self,
        id: u64,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), Errno> {
        let pair = &self.pairs[&id];
        check_transition(pair.state, attributes.state, mask).map_err(|_| Errno::INVAL)?;
        if let (true, Some(route)) = (
            mask.contains(AttributeMask::ADDRESS),
            attributes.address.route,
        ) {
            // The kernel does the same when the index has moved.
            let ports = &self.device_of(pair.context).ports;
            let port = ports.get(usize::from(attributes.address.port).wrapping_sub(1));
            let gids = &port.ok_or(Errno::INVAL)?.gids;
            let index = u32::from(route.source_index);
            if !gids.iter().any(|gid| gid.index == index) {
                return Err(Errno::NODATA);
            }
        }
        let pair = self.pairs.get_mut(&id).ok_or(Errno::BADF)?;
        if mask.contains(AttributeMask::DESTINATION) {
            pair.destination = attributes.destination.into();
        }
        if mask.contains(AttributeMask::ACCESS_FLAGS) {
            pair.access = attributes.access_flags;
        }
        match attributes.state {
            QueuePairState::Error => self.die(id),
            QueuePairState::Reset => {
                pair.state = QueuePairState::Reset;
                pair.sends.clear();
                pair.receives.clear();
                pair.silent = 0;
            }
            other => {
                pair.state = other;
                self.progress();
            }
        }
        Ok(())
    }
}

impl State {
    /// Takes the list of devices, as `ibv_get_device_list` does, unless a test refuses it.
    fn list_devices(&mut self) -> Result<(), VerbsError> {
        self.grant(Call::Devices).map_err(|source| match source {
            Errno::NOSYS => VerbsError::NoKernelSupport {
                source,
                hidden: None,
            },
            source => VerbsError::DeviceList { source },
        })
    }

    fn new_completions(
        &mut self,
        context: u64,
        init: &ExtendedInit,
        channel: Option<u64>,
        extended: Option<FakeExtended>,
    ) -> Result<(u64, u32), Errno> {
        let &ExtendedInit {
            entries,
            vector,
            tag,
            ..
        } = init;
        let attributes = &self.device_of(context).attributes;
        if entries == 0
            || entries > attributes.max_completions
            || vector >= attributes.completion_vectors
        {
            return Err(Errno::INVAL);
        }
        let capacity = self.device_of(context).queue_size(entries);
        let id = self.new_id();
        self.completions.insert(
            id,
            FakeCompletions {
                context,
                tag,
                vector,
                capacity: capacity as usize,
                ready: VecDeque::new(),
                extended,
                batch: Batch::None,
                channel,
                armed: None,
                unacknowledged: 0,
                maker: Maker::calls(),
            },
        );
        Ok((id, capacity))
    }
}
