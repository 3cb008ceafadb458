//! Completion queues, their channels, and their clock.

use std::ffi::c_int;
use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr;

use rustix::io::Errno;

use super::{
    Libibverbs, clear_errno, count, extended_queue, last_errno, minus_one, status, sys, tag_pointer,
};
use crate::provider::{
    ChannelHandle, CompletionHandle, CompletionInit, CompletionProvider, ContextHandle,
    ExtendedQueue,
};

impl CompletionProvider for Libibverbs {
    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno> {
        clear_errno();
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_create_comp_channel(context.as_ptr()) };
        let handle = ChannelHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the channel exists.
        Ok((handle, unsafe { (*raw).fd }))
    }

    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<Option<u64>, Errno> {
        let mut queue = ptr::null_mut();
        let mut tag = ptr::null_mut();
        clear_errno();
        // SAFETY: the trait's contract; both are written to.
        let asked =
            unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &raw mut queue, &raw mut tag) };
        match minus_one(asked) {
            Ok(()) => Ok(Some(tag.addr() as u64)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    unsafe fn create_completion_queue(
        &self,
        context: ContextHandle,
        init: &CompletionInit,
    ) -> Result<(CompletionHandle, u32), Errno> {
        let entries = c_int::try_from(init.entries).map_err(|_| Errno::INVAL)?;
        let vector = c_int::try_from(init.vector).map_err(|_| Errno::INVAL)?;
        let tag = tag_pointer(init.tag);
        let channel = init.channel.map_or(ptr::null_mut(), ChannelHandle::as_ptr);
        clear_errno();
        // SAFETY: the trait's contract. The tag is never followed as a pointer.
        let raw = unsafe { sys::ibv_create_cq(context.as_ptr(), entries, tag, channel, vector) };
        let handle = CompletionHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the queue exists.
        Ok((handle, count(unsafe { (*raw).cqe })))
    }

    unsafe fn create_extended_queue(
        &self,
        context: ContextHandle,
        init: &CompletionInit,
    ) -> Result<ExtendedQueue, Errno> {
        // SAFETY: the trait's contract.
        unsafe { extended_queue::create(context, init) }
    }

    unsafe fn read_clock(&self, context: ContextHandle) -> Result<u64, Errno> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_values_ex = unsafe { zeroed() };
        raw.comp_mask = sys::constants::IBV_VALUES_MASK_RAW_CLOCK;
        // SAFETY: the trait's contract; `raw` is written to.
        status(unsafe { sys::ibv_query_rt_values_ex(context.as_ptr(), &raw mut raw) })?;
        if raw.comp_mask & sys::constants::IBV_VALUES_MASK_RAW_CLOCK == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // The field holds ticks, despite its name.
        Ok(raw.raw_clock.tv_nsec as u64)
    }

    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32) {
        // SAFETY: the trait's contract.
        unsafe { sys::ibv_ack_cq_events(queue.as_ptr(), events) };
    }
}
