//! The calls for shared receive queues.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::{
    Call, FakeProvider,
    handle::{id_of, take_back},
    refuse_if,
    world::{FakeReceives, Maker},
    xrc::FakeXrcReceives,
};
use crate::provider::{
    CompletionHandle, CreatedSharedReceive, DomainHandle, SharedReceiveAttributes,
    SharedReceiveHandle, SharedReceiveInit, SharedReceiveProvider, XrcDomainHandle,
};

impl SharedReceiveProvider for FakeProvider {
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        init: &SharedReceiveInit,
    ) -> Result<CreatedSharedReceive, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let (domain, xrc) = unsafe {
            let ids = |(xrc, completions): (XrcDomainHandle, CompletionHandle)| {
                (id_of(xrc.as_ptr()), id_of(completions.as_ptr()))
            };
            (id_of(domain.as_ptr()), init.xrc.map(ids))
        };
        let context = state.domains[&domain].context;
        let call = match xrc {
            None => Call::CreateSharedReceive,
            Some(_) => Call::CreateXrcReceives,
        };
        state.grant_at(call, context)?;
        let limits = &state.device_of(context).attributes;
        if limits.max_shared_receive_queues == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if init.requests > limits.max_shared_receive_requests
            || init.entries > limits.max_shared_receive_entries
        {
            return Err(Errno::INVAL);
        }
        let requests = state.device_of(context).queue_size(init.requests);
        let id = state.new_id();
        let xrc = xrc.map(|(xrc, completions)| FakeXrcReceives {
            domain: (xrc, state.xrc_domains[&xrc].shared),
            completions,
        });
        let queue = FakeReceives {
            domain,
            context,
            tag: init.tag,
            capacity: requests as usize,
            entries: init.entries as usize,
            limit: 0,
            posted: VecDeque::new(),
            maker: Maker::calls(),
            xrc,
        };
        state.shared.insert(id, queue);
        Ok(CreatedSharedReceive {
            handle: SharedReceiveHandle::new(self.handle(id)).expect("a box"),
            number: id as u32,
            requests,
            entries: init.entries,
        })
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

/// The ends of objects, by the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
    pub(super) unsafe fn destroy_shared_receive(
        &self,
        queue: SharedReceiveHandle,
    ) -> Result<(), Errno> {
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
}
