//! Making an extended completion queue.

use std::ffi::c_void;
use std::mem::{transmute, zeroed};
use std::ptr::{self, NonNull};

use rustix::io::{self, Errno};

use super::{count, last_errno, sys, sys::constants, tag_pointer};
use crate::provider::{
    BatchCalls, ChannelHandle, CompletionHandle, CompletionInit, EndPoll, ExtendedQueue, NextPoll,
    ReadField, ReadTime, StartPoll,
};

/// # Safety
/// The contract of [`Provider::create_extended_queue`](crate::provider::Provider::create_extended_queue).
pub(super) unsafe fn create(init: &CompletionInit) -> io::Result<ExtendedQueue> {
    // SAFETY: integers and pointers, for which zeros are a value.
    let mut raw: sys::ibv_cq_init_attr_ex = unsafe { zeroed() };
    raw.cqe = init.entries;
    raw.cq_context = tag_pointer(init.tag);
    raw.channel = init.channel.map_or(ptr::null_mut(), ChannelHandle::as_ptr);
    raw.comp_vector = init.vector;
    let mut fields = constants::IBV_WC_EX_WITH_BYTE_LEN
        | constants::IBV_WC_EX_WITH_IMM
        | constants::IBV_WC_EX_WITH_QP_NUM;
    if init.times {
        fields |= constants::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP;
    }
    raw.wc_flags = fields;
    raw.comp_mask = constants::IBV_CQ_INIT_ATTR_MASK_FLAGS;
    raw.flags = constants::IBV_CREATE_CQ_ATTR_SINGLE_THREADED;
    // SAFETY: the caller's contract. The tag is never followed as a pointer.
    let queue = unsafe { sys::ibv_create_cq_ex(init.context.as_ptr(), &raw mut raw) };
    let handle = CompletionHandle::new(queue).ok_or_else(last_errno)?;
    // SAFETY: the queue exists.
    let calls = unsafe { batch_calls(queue, init) };
    let Some(calls) = calls else {
        // SAFETY: no other code uses it yet.
        unsafe { sys::ibv_destroy_cq(handle.as_ptr()) };
        return Err(Errno::OPNOTSUPP);
    };
    Ok(ExtendedQueue {
        handle,
        // SAFETY: the queue exists.
        entries: count(unsafe { (*queue).cqe }),
        calls,
    })
}

/// Returns the calls that an extended queue is polled by; `None` if a call is missing that was
/// requested
/// ([`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html)).
///
/// # Safety
/// The queue exists.
unsafe fn batch_calls(queue: *mut sys::ibv_cq_ex, init: &CompletionInit) -> Option<BatchCalls> {
    // SAFETY: the caller's contract, for the reads; each pair of types is the same C function type:
    // a thin pointer, to a structure of equal layout if the type differs, and a 32-bit integer or
    // enumeration.
    unsafe {
        let ops = &*queue;
        let field = |call: *const c_void| transmute::<*const c_void, ReadField>(call);
        Some(BatchCalls {
            start: transmute::<*const c_void, StartPoll>(ops.start_poll? as *const c_void),
            next: transmute::<*const c_void, NextPoll>(ops.next_poll? as *const c_void),
            end: transmute::<*const c_void, EndPoll>(ops.end_poll? as *const c_void),
            wr_id: NonNull::new(&raw mut (*queue).wr_id)?,
            status: NonNull::new((&raw mut (*queue).status).cast())?,
            opcode: field(ops.read_opcode? as *const c_void),
            vendor_err: field(ops.read_vendor_err? as *const c_void),
            flags: field(ops.read_wc_flags? as *const c_void),
            byte_len: field(ops.read_byte_len? as *const c_void),
            imm_data: field(ops.read_imm_data? as *const c_void),
            qp_num: field(ops.read_qp_num? as *const c_void),
            time: match init.times {
                true => Some(transmute::<*const c_void, ReadTime>(
                    ops.read_completion_ts? as *const c_void,
                )),
                false => None,
            },
        })
    }
}
