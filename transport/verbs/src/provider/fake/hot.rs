//! The calls of the data path: C functions, as a real provider's.
//!
//! The calls read the structures that their arguments point to, and keep only the addresses inside
//! of scatter entries. These addresses are followed only where a registered region covers them
//! (`world`), or, for inline data, during the call.

use std::ffi::{c_int, c_void};
use std::slice;

use rustix::io::Errno;

use super::{
    Call, PostedBind, PostedReceive, PostedSend,
    handle::{Handle, id_of},
    world::State,
};
use crate::{
    abi::{
        BindWr, RecvWr, SendWr, Sge, Wc, queue_pair_kind::QueuePairKind,
        queue_pair_state::QueuePairState, send_flags, wr_opcode,
    },
    provider::HotCalls,
};

pub(super) const HOT: HotCalls = HotCalls {
    post_send,
    post_receive,
    post_shared_receive,
    poll_queue,
    request_notify,
};

/// # Safety
/// [ibv_post_send(3)](https://man7.org/linux/man-pages/man3/ibv_post_send.3.html), with a handle of
/// this provider.
unsafe extern "C" fn post_send(
    pair: *mut c_void,
    mut request: *mut SendWr,
    refused: *mut *mut SendWr,
) -> c_int {
    // SAFETY: the caller's contract; no code writes to a handle (rule 1 of `handle`).
    let handle = unsafe { &*pair.cast::<Handle>() };
    let mut state = handle.world.lock();
    state.send_doorbells += 1;
    let mut status = 0;
    while !request.is_null() {
        // SAFETY: the caller's contract: a list that ends in null.
        let one = unsafe { &*request };
        if let Err(errno) = state.post_send(handle.id, one) {
            // SAFETY: the caller's contract.
            unsafe { *refused = request };
            status = errno.raw_os_error();
            break;
        }
        request = one.next;
    }
    state.flush_dead(handle.id);
    state.progress();
    status
}

/// # Safety
/// [ibv_post_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_recv.3.html), with a handle of
/// this provider.
unsafe extern "C" fn post_receive(
    pair: *mut c_void,
    request: *mut RecvWr,
    refused: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the caller's contract.
    let id = unsafe { id_of(pair.cast()) };
    // SAFETY: the caller's contract.
    unsafe { post_receives(pair, ReceiveTarget::Pair(id), request, refused) }
}

/// # Safety
/// [ibv_post_srq_recv(3)](https://man7.org/linux/man-pages/man3/ibv_post_srq_recv.3.html), with a
/// handle of this provider.
unsafe extern "C" fn post_shared_receive(
    queue: *mut c_void,
    request: *mut RecvWr,
    refused: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the caller's contract.
    let id = unsafe { id_of(queue.cast()) };
    // SAFETY: the caller's contract.
    unsafe { post_receives(queue, ReceiveTarget::Shared(id), request, refused) }
}

/// # Safety
/// The contract of the two functions above.
unsafe fn post_receives(
    handle: *mut c_void,
    mut target: ReceiveTarget,
    mut request: *mut RecvWr,
    refused: *mut *mut RecvWr,
) -> c_int {
    // SAFETY: the caller's contract; no code writes to a handle (rule 1 of `handle`).
    let handle = unsafe { &*handle.cast::<Handle>() };
    let mut state = handle.world.lock();
    state.receive_doorbells += 1;
    let mut status = 0;
    while !request.is_null() {
        // SAFETY: the caller's contract: a list that ends in null.
        let one = unsafe { &*request };
        if let Err(errno) = state.post_receive(&mut target, one) {
            // SAFETY: the caller's contract.
            unsafe { *refused = request };
            status = errno.raw_os_error();
            break;
        }
        request = one.next;
    }
    if let ReceiveTarget::Pair(id) = target
        && state.pairs[&id].state == QueuePairState::Error
    {
        state.flush(id);
    }
    state.progress();
    status
}

/// # Safety
/// [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html), with a handle of
/// this provider.
unsafe extern "C" fn poll_queue(queue: *mut c_void, room: c_int, into: *mut Wc) -> c_int {
    // SAFETY: the caller's contract; no code writes to a handle (rule 1 of `handle`).
    let handle = unsafe { &*queue.cast::<Handle>() };
    let mut state = handle.world.lock();
    if let Err(errno) = state.grant(Call::PollQueue) {
        return -errno.raw_os_error();
    }
    state.note_poll();
    let Some(queue) = state.completions.get_mut(&handle.id) else {
        return -Errno::BADF.raw_os_error();
    };
    let mut found = 0;
    while found < room
        && let Some(completion) = queue.ready.pop_front()
    {
        // SAFETY: the caller's contract: `into` has `room` places.
        unsafe { into.add(found as usize).write(completion.completion) };
        found += 1;
    }
    found
}

/// # Safety
/// [ibv_req_notify_cq(3)](https://man7.org/linux/man-pages/man3/ibv_req_notify_cq.3.html), with a
/// handle of this provider.
unsafe extern "C" fn request_notify(queue: *mut c_void, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's contract; no code writes to a handle (rule 1 of `handle`).
    let handle = unsafe { &*queue.cast::<Handle>() };
    let mut state = handle.world.lock();
    if let Err(errno) = state.grant(Call::RequestNotify) {
        return errno.raw_os_error();
    }
    if let Some(queue) = state.completions.get_mut(&handle.id) {
        queue.armed = Some(solicited_only != 0);
    }
    state.end_delays();
    0
}

impl State {
    pub(super) fn post_send(&mut self, id: u64, request: &SendWr) -> Result<(), Errno> {
        self.grant(Call::PostSend)?;
        let doorbell = self.send_doorbells;
        let context = self.pairs.get(&id).ok_or(Errno::BADF)?.context;
        let with_immediate = matches!(
            request.opcode,
            wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        if with_immediate && !self.device_of(context).has_immediate {
            return Err(Errno::INVAL);
        }
        let datagram = match self.pairs[&id].kind {
            QueuePairKind::Datagram => {
                let (address, queue_pair, q_key) = request.datagram();
                // SAFETY: the caller's contract: the request names an address handle that exists.
                let address = unsafe { id_of(address.cast()) };
                Some(self.posted_datagram(id, (address, queue_pair, q_key))?)
            }
            _ => None,
        };
        let pair = self.pairs.get_mut(&id).ok_or(Errno::BADF)?;
        if !pair.kind.does(request.opcode) {
            return Err(Errno::INVAL);
        }
        if !matches!(
            pair.state,
            QueuePairState::ReadyToSend
                | QueuePairState::SendQueueDrained
                | QueuePairState::SendQueueError
                | QueuePairState::Error
        ) {
            return Err(Errno::INVAL);
        }
        if pair.sends.len() + pair.silent >= pair.sizes.send_requests as usize {
            return Err(Errno::NOMEM);
        }
        // SAFETY: the caller's contract, that of ibv_post_send(3).
        let entries = unsafe { entries_of(request.sg_list, request.num_sge) };
        let is_atomic = matches!(
            request.opcode,
            wr_opcode::COMPARE_AND_SWAP | wr_opcode::FETCH_AND_ADD
        );
        let has_eight = matches!(entries, [entry] if entry.length == 8);
        if is_atomic && !(request.remote_addr.is_multiple_of(8) && has_eight) {
            return Err(Errno::INVAL);
        }
        let bind = match request.opcode {
            // SAFETY: the caller's contract: the objects that a binding names exist.
            wr_opcode::BIND_WINDOW => Some(unsafe { posted_bind(&request.bind) }),
            _ => None,
        };
        let is_inline = request.send_flags & send_flags::INLINE != 0;
        let bytes: u64 = entries.iter().map(|entry| u64::from(entry.length)).sum();
        if entries.len() > pair.sizes.send_entries as usize
            || (is_inline && bytes > pair.sizes.inline_bytes.into())
        {
            return Err(Errno::INVAL);
        }
        let inline = is_inline.then(|| {
            let mut copied = Vec::new();
            for entry in entries {
                // SAFETY: the caller's contract: inline data is mapped during the call.
                copied.extend_from_slice(unsafe {
                    slice::from_raw_parts(entry.addr as usize as *const u8, entry.length as usize)
                });
            }
            copied
        });
        let posted = PostedSend {
            queue_pair: id as u32,
            wr_id: request.wr_id,
            opcode: request.opcode,
            flags: request.send_flags,
            immediate: request.imm_data,
            remote: match is_atomic {
                true => (request.remote_addr, request.atomic_rkey()),
                false => (request.remote_addr, request.rkey),
            },
            operands: match is_atomic {
                true => request.operands(),
                false => [0; 2],
            },
            datagram,
            receive_queue: request.xrc[0],
            bind,
            entries: entries.to_vec(),
            inline,
            doorbell,
        };
        self.append(id, posted);
        Ok(())
    }

    fn post_receive(&mut self, queue: &mut ReceiveTarget, request: &RecvWr) -> Result<(), Errno> {
        self.grant(Call::PostReceive)?;
        // SAFETY: the caller's contract, that of ibv_post_recv(3).
        let entries = unsafe { entries_of(request.sg_list, request.num_sge) };
        let (posted, capacity, most_entries) = match queue {
            ReceiveTarget::Shared(id) => {
                let queue = self.shared.get_mut(id).ok_or(Errno::BADF)?;
                (&mut queue.posted, queue.capacity, queue.entries)
            }
            ReceiveTarget::Pair(id) => {
                let pair = self.pairs.get_mut(id).ok_or(Errno::BADF)?;
                if pair.shared.is_some() || pair.state == QueuePairState::Reset {
                    return Err(Errno::INVAL);
                }
                let sizes = pair.sizes;
                (
                    &mut pair.receives,
                    sizes.receive_requests as usize,
                    sizes.receive_entries as usize,
                )
            }
        };
        if entries.len() > most_entries {
            return Err(Errno::INVAL);
        }
        if posted.len() >= capacity {
            return Err(Errno::NOMEM);
        }
        posted.push_back(PostedReceive {
            wr_id: request.wr_id,
            entries: entries.to_vec(),
        });
        Ok(())
    }
}

/// The queue that receives are posted to.
enum ReceiveTarget {
    Shared(u64),
    Pair(u64),
}

/// Returns the binding that a request asks for.
///
/// # Safety
/// The window and the region, if there is one, are handles that have not been taken back.
unsafe fn posted_bind(bind: &BindWr) -> PostedBind {
    let region: *mut Handle = bind.info.region.cast();
    PostedBind {
        // SAFETY: the caller's contract.
        window: unsafe { id_of(bind.window.cast()) },
        // SAFETY: the caller's contract.
        region: (!region.is_null()).then(|| unsafe { id_of(region) }),
        key: bind.rkey,
        address: bind.info.address,
        bytes: bind.info.bytes,
        access: bind.info.access,
    }
}

/// Returns the entries that a request's list points to.
///
/// # Safety
/// `list` points to `count` entries, unless `count` is 0.
unsafe fn entries_of<'entries>(list: *mut Sge, count: c_int) -> &'entries [Sge] {
    match usize::try_from(count) {
        Ok(count @ 1..) => {
            // SAFETY: the caller's contract.
            unsafe { slice::from_raw_parts(list, count) }
        }
        _ => &[],
    }
}
