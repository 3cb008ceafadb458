//! The calls of the control path.
//!
//! Each `unsafe` below turns a handle into the number of its object, which the trait's contract
//! allows: it came from here and has not been destroyed. For calls that destroy an object, the
//! contract adds that its handle is not used again.

use std::collections::VecDeque;
use std::os::fd::AsRawFd;

use rustix::io::Errno;

use super::{
    Call, FakeProvider, Modification,
    handle::{id_of, take_back},
    hot::HOT,
    refuse_if,
    world::{Batch, FakeContext, FakePair, bell, unring},
};
use crate::{
    abi::{
        attribute_mask::AttributeMask, fork_status::ForkStatus, gid::GidEntry,
        port::PortAttributes, queue_pair_attributes::QueuePairAttributes,
        queue_pair_kind::QueuePairKind,
    },
    error::VerbsError,
    provider::{
        AnyHandle, ContextHandle, CreatedPair, DeviceAttributes, DeviceEntry, DomainHandle,
        NodeType, OpenedContext, PairHandle, Provider, QueriedPair, QueuePairInit, RawEvent,
        sealed,
    },
};

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

    unsafe fn create_pair(
        &self,
        domain: DomainHandle,
        init: &QueuePairInit,
    ) -> Result<CreatedPair, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let (domain, send_completions, receive_completions, shared) = unsafe {
            (
                id_of(domain.as_ptr()),
                id_of(init.send_queue.as_ptr()),
                id_of(init.receive_queue.as_ptr()),
                init.shared.map(|queue| id_of(queue.as_ptr())),
            )
        };
        let context = state.domains[&domain].context;
        state.grant_at(Call::CreatePair, context)?;
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
}

/// The ends of objects, by the contract of [`Provider`].
impl FakeProvider {
    pub(super) unsafe fn close(&self, context: ContextHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::Close)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(context.as_ptr()) };
        let busy = state.domains.values().any(|domain| domain.context == id)
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

    pub(super) unsafe fn destroy_pair(&self, pair: PairHandle) -> Result<(), Errno> {
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
