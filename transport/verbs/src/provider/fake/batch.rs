//! Extended completion queues: batches that begin and end.
//!
//! A caller breaks
//! [ibv_create_cq_ex(3)](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html) and is
//! stopped at once if it ends a batch that has not begun, begins one within another, or asks for a
//! completion outside of a batch.

use std::ffi::{c_int, c_void};

use rustix::io::Errno;

use super::{
    Call, FakeExtended,
    handle::Handle,
    world::{Batch, FakeCompletions, Stamped, State},
};
use crate::{
    abi::{PollAttributes, Wc},
    provider::{BatchCalls, CompletionInit},
};

/// Returns the calls that a queue is polled by.
pub(super) fn batch_calls(handle: &Handle, init: &CompletionInit) -> BatchCalls {
    let (wr_id, status) = handle.shown();
    BatchCalls {
        start,
        next,
        end,
        wr_id,
        status,
        opcode,
        vendor_err,
        flags,
        byte_len,
        imm_data,
        qp_num,
        time: init.times.then_some(time),
    }
}

/// # Safety
/// `ibv_start_poll`, with a handle of this provider.
unsafe extern "C" fn start(queue: *mut c_void, attributes: *mut PollAttributes) -> c_int {
    // SAFETY: the caller's contract.
    let handle = unsafe { &*queue.cast::<Handle>() };
    // SAFETY: the caller's contract.
    let comp_mask = unsafe { (*attributes).comp_mask };
    assert_eq!(comp_mask, 0, "no attribute is known");
    let mut state = handle.world.lock();
    if let Err(errno) = state.grant(Call::StartPoll) {
        return errno.raw_os_error();
    }
    state.note_poll();
    let queue = queue_of(&mut state, handle);
    assert!(matches!(queue.batch, Batch::None), "a batch within a batch");
    let Some(first) = queue.take() else {
        return Errno::NOENT.raw_os_error();
    };
    queue.batch = Batch::At(first);
    state.batches += 1;
    state.show(handle, first);
    0
}

/// # Safety
/// `ibv_next_poll`, with a handle of this provider.
unsafe extern "C" fn next(queue: *mut c_void) -> c_int {
    // SAFETY: the caller's contract.
    let handle = unsafe { &*queue.cast::<Handle>() };
    let mut state = handle.world.lock();
    let granted = state.grant(Call::NextPoll);
    let queue = queue_of(&mut state, handle);
    assert!(!matches!(queue.batch, Batch::None), "no batch has begun");
    queue.batch = Batch::Drained;
    if let Err(errno) = granted {
        return errno.raw_os_error();
    }
    let Some(next) = queue.take() else {
        if queue.extended == Some(FakeExtended::DrainsBeyond) {
            queue.ready.push_back(Stamped::default());
        }
        return Errno::NOENT.raw_os_error();
    };
    queue.batch = Batch::At(next);
    state.show(handle, next);
    0
}

/// # Safety
/// `ibv_end_poll`, with a handle of this provider.
unsafe extern "C" fn end(queue: *mut c_void) {
    // SAFETY: the caller's contract.
    let handle = unsafe { &*queue.cast::<Handle>() };
    let mut state = handle.world.lock();
    let queue = queue_of(&mut state, handle);
    assert!(!matches!(queue.batch, Batch::None), "no batch has begun");
    queue.batch = Batch::None;
}

macro_rules! readers {
    ($($name:ident: $type:ty = $read:expr;)*) => {$(
        /// # Safety
        /// `ibv_wc_read_…`, with a handle of this provider.
        unsafe extern "C" fn $name(queue: *mut c_void) -> $type {
            // SAFETY: the caller's contract.
            let handle = unsafe { &*queue.cast::<Handle>() };
            let mut state = handle.world.lock();
            match queue_of(&mut state, handle).batch {
                Batch::At(stamped) => $read(stamped),
                Batch::None | Batch::Drained => panic!("the queue stands at no completion"),
            }
        }
    )*};
}

readers! {
    opcode: u32 = |at: Stamped| done(at).opcode;
    vendor_err: u32 = |at: Stamped| at.completion.vendor_err;
    flags: u32 = |at: Stamped| done(at).wc_flags;
    byte_len: u32 = |at: Stamped| done(at).byte_len;
    imm_data: u32 = |at: Stamped| done(at).imm_data;
    qp_num: u32 = |at: Stamped| at.completion.qp_num;
    time: u64 = |at: Stamped| at.ticks;
}

/// Checks a read of a field that a failed completion does not have.
fn done(at: Stamped) -> Wc {
    assert_eq!(at.completion.status, 0, "a failed one has no such field");
    at.completion
}

fn queue_of<'state>(state: &'state mut State, handle: &Handle) -> &'state mut FakeCompletions {
    let queue = state.completions.get_mut(&handle.id);
    queue.expect("polled while it exists")
}

impl FakeCompletions {
    fn take(&mut self) -> Option<Stamped> {
        let taken = self.ready.pop_front()?;
        match self.extended {
            Some(FakeExtended::Loses) => self.ready.pop_front(),
            _ => Some(taken),
        }
    }
}

impl State {
    fn show(&mut self, handle: &Handle, stamped: Stamped) {
        self.shown += 1;
        let Wc { wr_id, status, .. } = stamped.completion;
        // SAFETY: the queue's poller calls this (rule 2 of the provider).
        unsafe { handle.show(wr_id, status) };
    }
}
