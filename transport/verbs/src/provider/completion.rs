//! The calls for completion queues, their channels and their clock.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::os::fd::RawFd;
use std::ptr::NonNull;

use rustix::io::Errno;

use super::{ChannelHandle, CompletionHandle, ContextHandle};
use crate::abi::PollAttributes;

/// `ibv_start_poll`.
pub type StartPoll = unsafe extern "C" fn(*mut c_void, *mut PollAttributes) -> c_int;
/// `ibv_next_poll`.
pub type NextPoll = unsafe extern "C" fn(*mut c_void) -> c_int;
/// `ibv_end_poll`.
pub type EndPoll = unsafe extern "C" fn(*mut c_void);
/// `ibv_wc_read_opcode` and its like.
pub type ReadField = unsafe extern "C" fn(*mut c_void) -> u32;
/// `ibv_wc_read_completion_ts`.
pub type ReadTime = unsafe extern "C" fn(*mut c_void) -> u64;

/// The calls of one extended completion queue, and the places where it shows the completion that it
/// stands at. A provider sets them when it makes the queue and never again.
#[derive(Clone, Copy)]
pub struct BatchCalls {
    /// The call that begins a batch, at its first completion.
    pub start: StartPoll,
    /// The call that moves on to the next completion.
    pub next: NextPoll,
    /// The call that ends the batch.
    pub end: EndPoll,
    /// The request's identity.
    pub wr_id: NonNull<u64>,
    /// The request's status.
    pub status: NonNull<u32>,
    /// `enum ibv_wc_opcode`.
    pub opcode: ReadField,
    /// The device's own code for the failure.
    pub vendor_err: ReadField,
    /// Bits of `enum ibv_wc_flags`.
    pub flags: ReadField,
    /// Bytes received.
    pub byte_len: ReadField,
    /// Immediate data, in network byte order.
    pub imm_data: ReadField,
    /// The local queue pair.
    pub qp_num: ReadField,
    /// The completion's time by the device's clock; only where it was requested.
    pub time: Option<ReadTime>,
}

// SAFETY: functions, and places that the queue's one owner reads between them (rule 2).
unsafe impl Send for BatchCalls {}
// SAFETY: as above.
unsafe impl Sync for BatchCalls {}

impl fmt::Debug for BatchCalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BatchCalls")
    }
}

/// The description of a completion queue.
#[derive(Clone, Copy, Debug)]
pub struct CompletionInit {
    /// Entries wanted.
    pub entries: u32,
    /// The channel that the queue wakes.
    pub channel: Option<ChannelHandle>,
    /// The completion vector whose interrupt serves its channel.
    pub vector: u32,
    /// The tag by which events name the queue.
    pub tag: u64,
    /// True if each completion has a time, which only an extended queue tells.
    pub times: bool,
}

/// An extended completion queue.
#[derive(Clone, Copy, Debug)]
pub struct ExtendedQueue {
    /// The queue, for all calls that take a completion queue.
    pub handle: CompletionHandle,
    /// The size that the provider gave the queue.
    pub entries: u32,
    /// The calls by which the queue is polled.
    pub calls: BatchCalls,
}

/// The part of [`Provider`](super::Provider) that is about completions.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait CompletionProvider {
    /// `ibv_create_comp_channel`; returns its descriptor too.
    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno>;
    /// `ibv_get_cq_event`; returns the tag of the queue, or `None` without an event. The caller has to
    /// acknowledge it.
    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<Option<u64>, Errno>;
    /// `ibv_create_cq` on a completion vector; returns the size of the queue.
    unsafe fn create_completion_queue(
        &self,
        context: ContextHandle,
        init: &CompletionInit,
    ) -> Result<(CompletionHandle, u32), Errno>;
    /// `ibv_create_cq_ex` for one thread, with the fields that [`BatchCalls`] has.
    /// `EOPNOTSUPP` where there is none, or none with times.
    unsafe fn create_extended_queue(
        &self,
        context: ContextHandle,
        init: &CompletionInit,
    ) -> Result<ExtendedQueue, Errno>;
    /// `ibv_query_rt_values_ex`: the clock, now.
    unsafe fn read_clock(&self, context: ContextHandle) -> Result<u64, Errno>;
    /// `ibv_ack_cq_events`.
    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32);
}
