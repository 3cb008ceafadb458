//! The calls for completion queues, their channels and their clock.

use std::ffi::{c_int, c_void};
use std::fmt;
use std::ptr::NonNull;

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
    /// The open device.
    pub context: ContextHandle,
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
