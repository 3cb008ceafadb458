//! The calls for completion queues and their channels.

use std::collections::VecDeque;
use std::os::fd::{AsRawFd, RawFd};

use rustix::io::Errno;

use super::{
    Call, FakeExtended, FakeProvider,
    batch::batch_calls,
    handle::{id_of, take_back},
    refuse_if,
    world::{FakeChannel, bell, unring},
};
use crate::provider::{
    ChannelHandle, CompletionHandle, CompletionInit, CompletionProvider, ContextHandle,
    ExtendedQueue,
};

impl CompletionProvider for FakeProvider {
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
        context: ContextHandle,
        init: &CompletionInit,
    ) -> Result<(CompletionHandle, u32), Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        state.grant_at(Call::CreateCompletionQueue, context)?;
        // SAFETY: the trait's contract.
        let channel = init.channel.map(|one| unsafe { id_of(one.as_ptr()) });
        let (id, capacity) = state.new_completions(context, init, channel, None)?;
        let handle = CompletionHandle::new(self.handle(id)).expect("a box");
        Ok((handle, capacity))
    }

    unsafe fn create_extended_queue(
        &self,
        context: ContextHandle,
        init: &CompletionInit,
    ) -> Result<ExtendedQueue, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
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
}

/// The ends of objects, by the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
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
}
