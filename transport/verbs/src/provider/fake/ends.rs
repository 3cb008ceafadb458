//! The ends of objects, by the contract of [`Provider`](crate::provider::Provider).

use rustix::io::Errno;
use rustix::mm::Advice;

use super::{
    Call, FakeProvider,
    handle::{id_of, take_back},
    refuse_if,
    world::Batch,
};
use crate::provider::{
    ChannelHandle, CompletionHandle, ContextHandle, DomainHandle, PairHandle, RegionHandle,
    SharedReceiveHandle, WindowHandle,
};

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

    pub(super) unsafe fn destroy_channel(&self, channel: ChannelHandle) -> Result<(), Errno> {
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

    pub(super) unsafe fn destroy_completion_queue(
        &self,
        queue: CompletionHandle,
    ) -> Result<(), Errno> {
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
