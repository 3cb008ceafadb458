//! The calls for shared receive queues.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::{
    Call, FakeProvider,
    handle::{id_of, take_back},
    refuse_if,
    world::{FakeReceives, Maker},
};
use crate::provider::{
    DomainHandle, SharedReceiveAttributes, SharedReceiveHandle, SharedReceiveProvider,
};

impl SharedReceiveProvider for FakeProvider {
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        requests: u32,
        entries: u32,
        tag: u64,
    ) -> Result<(SharedReceiveHandle, u32, u32), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        let context = state.domains[&domain].context;
        state.grant_at(Call::CreateSharedReceive, context)?;
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
