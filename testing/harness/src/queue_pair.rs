//! A reliable connection between the two processes of a pair: an RC queue pair, with frames of
//! registered memory in both directions.
//!
//! 1. Both queues are first in, first out, so frames are used in turn, and two counters say who
//!    owns a frame. A send frame belongs to the device from [`queue`](QueuePair::queue) until a
//!    completion retires it. A receive frame belongs to this process from
//!    [`arrival`](QueuePair::arrival) until the next one, and otherwise to the device.
//! 2. One send in [`SIGNAL`] is signaled. Its completion retires it and those before it.
//! 3. Sends are posted in lists of up to [`BATCH`], with one doorbell each, and receives in lists
//!    of exactly [`BATCH`].
//! 4. Completions are polled without back-off, and the two kinds have queues of their own: a wait
//!    for a message does not read completions of sends.

use std::{
    ffi::CStr,
    io,
    mem::zeroed,
    ops::Range,
    ptr::{self, null_mut},
};

use rdma_sys::{self as sys, ibv_qp_attr_mask as Mask, ibv_qp_state as State};
use serde::{Deserialize, Serialize};

use crate::{
    Error, clock, mapping::Mapping, pair::Watch, verbs_context::Context, verbs_port::VerbsPort,
};

/// An end of the connection.
pub(crate) struct QueuePair {
    // The objects of the connection, each null until it is created.
    pair: *mut sys::ibv_qp,
    sent: *mut sys::ibv_cq,
    received: *mut sys::ibv_cq,
    region: *mut sys::ibv_mr,
    domain: *mut sys::ibv_pd,
    context: Context,

    // The connection, and the process at its other end.
    port: VerbsPort,
    first_sequence: u32,
    inline_bytes: usize,
    watch: Watch,

    // Frames, those to send first, and their address for the device.
    memory: Mapping,
    address: u64,

    // Sends: counts of those filled, handed to the device, and handed back.
    queued: u64,
    posted: u64,
    retired: u64,
    sends: Vec<sys::ibv_send_wr>,

    // Receives: counts of those used and those reposted; and completions that were polled together.
    arrived: u64,
    reposted: u64,
    receives: Vec<sys::ibv_recv_wr>,
    polled: [sys::ibv_wc; BATCH],
    unread: Range<usize>,

    // Scatter entries of a list while it is posted.
    pieces: [sys::ibv_sge; BATCH],
}

/// Facts about an end that the other needs.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Endpoint {
    pub(crate) port: VerbsPort,
    number: u32,
    first_sequence: u32,
}

impl QueuePair {
    /// Creates an unconnected queue pair with all receives posted.
    pub(crate) fn new(port: &VerbsPort) -> Result<QueuePair, Error> {
        let bytes = (SENDS + RECEIVES) * FRAME;
        // SAFETY: integers and pointers, for which zeros are a value.
        let (receive, completion, piece) = unsafe { (zeroed(), zeroed(), zeroed()) };
        let mut this = QueuePair {
            pair: null_mut(),
            sent: null_mut(),
            received: null_mut(),
            region: null_mut(),
            domain: null_mut(),
            context: Context::open(port.device())?,
            port: port.clone(),
            first_sequence: clock::ticks() as u32 & 0xff_ffff,
            inline_bytes: 0,
            watch: Watch::default(),
            memory: Mapping::create(bytes)?,
            address: 0,
            queued: 0,
            posted: 0,
            retired: 0,
            // SAFETY: as above.
            sends: (0..BATCH).map(|_| unsafe { zeroed() }).collect(),
            arrived: 0,
            reposted: 0,
            receives: vec![receive; BATCH],
            polled: [completion; BATCH],
            unread: 0..0,
            pieces: [piece; BATCH],
        };
        let context = this.context.0;
        // SAFETY: no other code knows of this memory yet.
        let memory = unsafe { this.memory.write(0, bytes) }.as_mut_ptr();
        this.address = memory.expose_provenance() as u64;
        let local_write = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0 as i32;
        // SAFETY: each call gets objects that earlier calls made (checked not to be null); the
        // memory and all of these live until `drop` destroys them in reverse order.
        unsafe {
            this.domain = sys::ibv_alloc_pd(context);
            made(this.domain, "allocating a protection domain")?;
            this.region = sys::ibv_reg_mr(this.domain, memory.cast(), bytes, local_write);
            made(this.region, "registering memory (see `ulimit -l`)")?;
            let create = |entries: usize| {
                sys::ibv_create_cq(context, entries as i32, null_mut(), null_mut(), 0)
            };
            this.sent = create(SENDS);
            made(this.sent, "creating the completion queue of sends")?;
            this.received = create(RECEIVES);
            made(this.received, "creating the completion queue of receives")?;
        }
        this.create_pair()?;
        let mut attributes = this.attributes(State::IBV_QPS_INIT);
        attributes.port_num = port.number;
        let mask = Mask::IBV_QP_PKEY_INDEX | Mask::IBV_QP_PORT | Mask::IBV_QP_ACCESS_FLAGS;
        this.modify(attributes, mask, "moving the queue pair to INIT")?;
        for _ in 0..RECEIVES / BATCH {
            this.repost()?;
        }
        this.reposted = 0;
        Ok(this)
    }

    /// Creates the queue pair with as much inline room as ibex asks for, halved until the device
    /// accepts, since no attribute of a device states its limit.
    fn create_pair(&mut self) -> Result<(), Error> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut init: sys::ibv_qp_init_attr = unsafe { zeroed() };
        init.send_cq = self.sent;
        init.recv_cq = self.received;
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        let mut inline_bytes = 220;
        while self.pair.is_null() {
            init.cap.max_send_wr = SENDS as u32;
            init.cap.max_recv_wr = RECEIVES as u32;
            init.cap.max_send_sge = 1;
            init.cap.max_recv_sge = 1;
            init.cap.max_inline_data = inline_bytes;
            // SAFETY: domain and completion queues exist.
            self.pair = unsafe { sys::ibv_create_qp(self.domain, &raw mut init) };
            if inline_bytes == 0 {
                made(self.pair, "creating the queue pair")?;
            }
            inline_bytes /= 2;
        }
        self.inline_bytes = init.cap.max_inline_data as usize;
        Ok(())
    }

    /// Lets a wait for the peer's frames end when the peer's process does.
    pub(crate) fn watched(mut self, watch: Watch) -> QueuePair {
        self.watch = watch;
        self
    }

    /// Returns the facts that the other end needs.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint {
            port: self.port.clone(),
            // SAFETY: the queue pair exists while we do.
            number: unsafe { (*self.pair).qp_num },
            first_sequence: self.first_sequence,
        }
    }

    /// Connects to `peer`, which may not be connected itself yet.
    pub(crate) fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        let mut attributes = self.attributes(State::IBV_QPS_RTR);
        attributes.path_mtu = self.port.mtu.min(peer.port.mtu);
        attributes.dest_qp_num = peer.number;
        attributes.rq_psn = peer.first_sequence;
        attributes.min_rnr_timer = 12; // 0.64 ms
        attributes.ah_attr.port_num = self.port.number;
        attributes.ah_attr.dlid = peer.port.lid;
        attributes.ah_attr.is_global = u8::from(self.port.is_global);
        attributes.ah_attr.grh.dgid.raw = peer.port.gid.value;
        attributes.ah_attr.grh.sgid_index = self.port.gid.index;
        attributes.ah_attr.grh.hop_limit = 64;
        let to_receive = Mask::IBV_QP_AV
            | Mask::IBV_QP_PATH_MTU
            | Mask::IBV_QP_DEST_QPN
            | Mask::IBV_QP_RQ_PSN
            | Mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | Mask::IBV_QP_MIN_RNR_TIMER;
        self.modify(attributes, to_receive, "moving the queue pair to RTR")?;
        let mut attributes = self.attributes(State::IBV_QPS_RTS);
        attributes.sq_psn = self.first_sequence;
        attributes.timeout = 14; // 67 ms
        attributes.retry_cnt = 6;
        attributes.rnr_retry = 7;
        let to_send = Mask::IBV_QP_SQ_PSN
            | Mask::IBV_QP_TIMEOUT
            | Mask::IBV_QP_RETRY_CNT
            | Mask::IBV_QP_RNR_RETRY
            | Mask::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attributes, to_send, "moving the queue pair to RTS")
    }

    /// Returns the next frame to send, for filling.
    #[inline]
    pub(crate) fn space(&mut self) -> Result<&mut [u8], Error> {
        while self.queued - self.retired == SENDS as u64 {
            self.retire()?;
        }
        let slot = (self.queued % SENDS as u64) as usize;
        // SAFETY: retired, so it is ours until it is queued (rule 1); `self` is borrowed, so no
        // other code has it.
        Ok(unsafe { self.memory.write(slot * FRAME, FRAME) })
    }

    /// Returns the number of sends queued since the last post.
    #[inline]
    pub(crate) fn waiting(&self) -> usize {
        (self.queued - self.posted) as usize
    }

    /// Queues `bytes` of the frame from [`space`](QueuePair::space).
    #[inline]
    pub(crate) fn queue(&mut self, bytes: usize, is_last: bool) {
        let (place, slot) = (self.waiting(), self.queued % SENDS as u64);
        self.queued += 1;
        let mut flags = sys::ibv_send_flags(0);
        if bytes <= self.inline_bytes {
            flags |= sys::ibv_send_flags::IBV_SEND_INLINE;
        }
        if is_last || self.queued.is_multiple_of(SIGNAL) {
            flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED;
        }
        let send = &mut self.sends[place];
        send.wr_id = self.queued;
        send.opcode = sys::ibv_wr_opcode::IBV_WR_SEND;
        send.num_sge = i32::from(bytes > 0);
        send.send_flags = flags.0;
        self.pieces[place] = self.piece(slot as usize, bytes);
    }

    /// Posts the queued sends.
    #[inline]
    pub(crate) fn post(&mut self) -> Result<(), Error> {
        let count = self.waiting();
        if count == 0 {
            return Ok(());
        }
        let (first, pieces) = (self.sends.as_mut_ptr(), self.pieces.as_mut_ptr());
        let mut refused = null_mut();
        // SAFETY: `place` is below BATCH, the length of both tables (`queue` indexed it).
        // The queue pair exists; it copies the list, and the pieces lie in its memory, in
        // frames that are its own until they are retired (rule 1).
        let status = unsafe {
            for place in 0..count {
                (*first.add(place)).sg_list = pieces.add(place);
                (*first.add(place)).next = first.add(place + 1);
            }
            (*first.add(count - 1)).next = null_mut();
            sys::ibv_post_send(self.pair, first, &raw mut refused)
        };
        self.posted = self.queued;
        accepted(status, "posting sends")
    }

    /// Waits until everything that was posted has arrived.
    pub(crate) fn drain(&mut self) -> Result<(), Error> {
        while self.retired < self.posted {
            self.retire()?;
        }
        Ok(())
    }

    /// Waits for the next frame and gives the one before back. Returns the bytes that arrived in
    /// it.
    #[inline]
    pub(crate) fn arrival(&mut self) -> Result<usize, Error> {
        if self.arrived - self.reposted >= BATCH as u64 {
            self.repost()?;
        }
        while self.unread.is_empty() {
            // In this order: if the other process has ended, everything that it sent has arrived.
            let ended = self.watch.has_ended();
            self.unread = 0..poll(self.received, &mut self.polled)?;
            if ended && self.unread.is_empty() {
                return Err(self.watch.ended_early());
            }
        }
        let completion = &self.polled[self.unread.start];
        if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
            return Err(self.why(completion));
        }
        self.unread.start += 1;
        self.arrived += 1;
        Ok(completion.byte_len as usize)
    }

    /// Returns the frame that arrived last.
    #[inline]
    pub(crate) fn frame(&self) -> &[u8] {
        let slot = (self.arrived.wrapping_sub(1) % RECEIVES as u64) as usize;
        // SAFETY: arrived and not reposted, so it is ours (rule 1); the slice ends before
        // the next `arrival`, for that borrows `self` alone.
        unsafe { self.memory.read((SENDS + slot) * FRAME, FRAME) }
    }

    #[inline]
    fn repost(&mut self) -> Result<(), Error> {
        let slot = (self.reposted % RECEIVES as u64) as usize;
        for place in 0..BATCH {
            self.pieces[place] = self.piece(SENDS + slot + place, FRAME);
        }
        let (first, pieces) = (self.receives.as_mut_ptr(), self.pieces.as_mut_ptr());
        let mut refused = null_mut();
        // SAFETY: as in `post`; RECEIVES is a multiple of BATCH, so the slots exist, and `arrival`
        // has gone beyond them.
        let status = unsafe {
            for place in 0..BATCH {
                (*first.add(place)).sg_list = pieces.add(place);
                (*first.add(place)).num_sge = 1;
                (*first.add(place)).next = first.add(place + 1);
            }
            (*first.add(BATCH - 1)).next = null_mut();
            sys::ibv_post_recv(self.pair, first, &raw mut refused)
        };
        self.reposted += BATCH as u64;
        accepted(status, "posting receives")
    }

    /// Polls for completions of sends.
    #[cold]
    fn retire(&mut self) -> Result<(), Error> {
        // SAFETY: integers, for which zeros are a value.
        let mut completions: [sys::ibv_wc; 4] = unsafe { zeroed() };
        let count = poll(self.sent, &mut completions)?;
        for completion in &completions[..count] {
            if completion.status != sys::ibv_wc_status::IBV_WC_SUCCESS {
                return Err(failure(completion));
            }
            self.retired = completion.wr_id;
        }
        Ok(())
    }

    /// Returns the error of a receive, or of the earlier send that broke the connection.
    #[cold]
    fn why(&self, flushed: &sys::ibv_wc) -> Error {
        // SAFETY: integers, for which zeros are a value.
        let mut completions: [sys::ibv_wc; SENDS] = unsafe { zeroed() };
        let count = poll(self.sent, &mut completions).unwrap_or(0);
        let is_failed = |completion: &&sys::ibv_wc| completion.status != 0;
        failure(
            completions[..count]
                .iter()
                .find(is_failed)
                .unwrap_or(flushed),
        )
    }

    fn piece(&self, frame: usize, bytes: usize) -> sys::ibv_sge {
        sys::ibv_sge {
            addr: self.address + (frame * FRAME) as u64,
            length: bytes as u32,
            // SAFETY: the region exists while we do.
            lkey: unsafe { (*self.region).lkey },
        }
    }

    fn attributes(&self, state: State::Type) -> sys::ibv_qp_attr {
        // SAFETY: integers, for which zeros are a value.
        let mut attributes: sys::ibv_qp_attr = unsafe { zeroed() };
        attributes.qp_state = state;
        attributes
    }

    fn modify(
        &self,
        mut attributes: sys::ibv_qp_attr,
        mask: Mask,
        what: &'static str,
    ) -> Result<(), Error> {
        let mask = mask | Mask::IBV_QP_STATE;
        // SAFETY: the queue pair exists; the attributes are read.
        let status = unsafe { sys::ibv_modify_qp(self.pair, &raw mut attributes, mask.0 as i32) };
        accepted(status, what)
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: every non-null object was made by us. Each is destroyed before the object that it
        // was made from, and the context, a field, after all of them. Destroying fails only for an
        // object in use, and none is.
        unsafe {
            let _ = self.pair.is_null() || sys::ibv_destroy_qp(self.pair) == 0;
            let _ = self.received.is_null() || sys::ibv_destroy_cq(self.received) == 0;
            let _ = self.sent.is_null() || sys::ibv_destroy_cq(self.sent) == 0;
            let _ = self.region.is_null() || sys::ibv_dereg_mr(self.region) == 0;
            let _ = self.domain.is_null() || sys::ibv_dealloc_pd(self.domain) == 0;
        }
    }
}

/// Polls a completion queue once. Returns the number of completions.
#[inline]
fn poll(queue: *mut sys::ibv_cq, into: &mut [sys::ibv_wc]) -> Result<usize, Error> {
    // SAFETY: the queue exists as long as the queue pair, whose methods alone call this.
    let count = unsafe { sys::ibv_poll_cq(queue, into.len() as i32, into.as_mut_ptr()) };
    usize::try_from(count).map_err(|_| Error::subject("a completion queue cannot be polled"))
}

fn failure(completion: &sys::ibv_wc) -> Error {
    let (status, vendor) = (completion.status, completion.vendor_err);
    // SAFETY: takes any number and gives a static string.
    let text = unsafe { sys::ibv_wc_status_str(status) };
    let text = match ptr::NonNull::new(text.cast_mut()) {
        // SAFETY: as above.
        Some(text) => unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy(),
        None => "unknown".into(),
    };
    Error::subject(format!(
        "the connection broke: {text} (status {status}, vendor {vendor:#x})"
    ))
}

/// Checks a call that returns an object, or null and an errno.
fn made<T>(object: *mut T, what: &'static str) -> Result<(), Error> {
    if object.is_null() {
        return Err(Error::io(what)(io::Error::last_os_error()));
    }
    Ok(())
}

/// Checks a call that returns an errno; some providers return its negative, or -1 and set it.
#[inline]
fn accepted(status: i32, what: &'static str) -> Result<(), Error> {
    let source = match status {
        0 => return Ok(()),
        -1 => io::Error::last_os_error(),
        other => io::Error::from_raw_os_error(other.saturating_abs()),
    };
    Err(Error::io(what)(source))
}

/// Bytes of a frame, which are those of ibex's receive buffers.
pub(crate) const FRAME: usize = 4096;
/// Frames of one list.
pub(crate) const BATCH: usize = 16;
/// Receives that are posted at first.
pub(crate) const RECEIVES: usize = 20 * BATCH;
const SENDS: usize = 4 * BATCH;
const SIGNAL: u64 = 16;
