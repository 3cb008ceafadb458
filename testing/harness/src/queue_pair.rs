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
    ffi::c_void,
    io,
    ops::Range,
    ptr::{NonNull, null_mut},
};

use ibex_verbs::{
    AddressVector, CompletionStatus, Gid, GlobalRoute, Mtu, QueuePairKind, QueuePairState as State,
    abi::{
        RecvWr, SendWr, Sge, Wc, access_flags, attribute_mask::AttributeMask as Mask,
        queue_pair_attributes::QueuePairAttributes, send_flags, wr_opcode,
    },
    provider::{CompletionInit, HotCalls, Provider, QueuePairInit, QueuePairSizes},
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::{
    Error, clock, mapping::Mapping, pair::Watch, verbs_context::Context, verbs_objects::Objects,
    verbs_port::VerbsPort,
};

/// An end of the connection.
pub(crate) struct QueuePair {
    // The calls of the device, and what they are for; null until it is created.
    calls: HotCalls,
    pair: *mut c_void,
    sent: *mut c_void,
    received: *mut c_void,
    key: u32,
    number: u32,

    /// What is to be destroyed, before the memory goes.
    objects: Objects,

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
    sends: Vec<SendWr>,

    // Receives: counts of those used and those reposted; and completions that were polled together.
    arrived: u64,
    reposted: u64,
    receives: Vec<RecvWr>,
    polled: [Wc; BATCH],
    unread: Range<usize>,

    // Scatter entries of a list while it is posted.
    pieces: [Sge; BATCH],
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
        let context = Context::open(port.device())?;
        let mut this = QueuePair {
            calls: context.opened.hot,
            pair: null_mut(),
            sent: null_mut(),
            received: null_mut(),
            key: 0,
            number: 0,
            objects: Objects {
                pair: None,
                queues: Vec::new(),
                region: None,
                domain: None,
                context,
            },
            port: port.clone(),
            first_sequence: clock::ticks() as u32 & 0xff_ffff,
            inline_bytes: 0,
            watch: Watch::default(),
            memory: Mapping::create(bytes)?,
            address: 0,
            queued: 0,
            posted: 0,
            retired: 0,
            sends: vec![SendWr::EMPTY; BATCH],
            arrived: 0,
            reposted: 0,
            receives: vec![RecvWr::EMPTY; BATCH],
            polled: [Wc::default(); BATCH],
            unread: 0..0,
            pieces: [Sge::default(); BATCH],
        };
        // SAFETY: no other code knows of this memory yet.
        let memory = unsafe { this.memory.write(0, bytes) }.as_mut_ptr();
        this.address = memory.expose_provenance() as u64;
        let memory = NonNull::new(memory).expect("a mapping");
        let objects = &mut this.objects;
        let (library, context) = (&objects.context.library, objects.context.opened.handle);
        // SAFETY: each call gets objects that earlier calls made; the memory and all of these live
        // until `drop` destroys them in reverse order.
        unsafe {
            let domain = library.create_domain(context);
            let domain = domain.map_err(refused("allocating a protection domain"))?;
            objects.domain = Some(domain);
            let region = library.register(domain, memory, bytes, access_flags::LOCAL_WRITE);
            let region = region.map_err(refused("registering memory (see `ulimit -l`)"))?;
            objects.region = Some(region.handle);
            this.key = region.lkey;
            for (queue, entries, what) in [
                (
                    &mut this.sent,
                    SENDS,
                    "creating the completion queue of sends",
                ),
                (
                    &mut this.received,
                    RECEIVES,
                    "creating the completion queue of receives",
                ),
            ] {
                let init = CompletionInit {
                    context,
                    entries: entries as u32,
                    channel: None,
                    vector: 0,
                    tag: 0,
                    times: false,
                };
                let made = library.create_completion_queue(&init);
                let (handle, _) = made.map_err(refused(what))?;
                objects.queues.push(handle);
                *queue = handle.as_ptr();
            }
        }
        this.create_pair()?;
        let mut attributes = QueuePairAttributes::to(State::Init);
        attributes.port = port.number;
        let mask = Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        this.modify(&attributes, mask, "moving the queue pair to INIT")?;
        for _ in 0..RECEIVES / BATCH {
            this.repost()?;
        }
        this.reposted = 0;
        Ok(this)
    }

    /// Creates the queue pair with as much inline room as ibex asks for, halved until the device
    /// accepts, since no attribute of a device states its limit.
    fn create_pair(&mut self) -> Result<(), Error> {
        let objects = &mut self.objects;
        let domain = objects.domain.expect("it was made first");
        let mut inline_bytes = 220;
        loop {
            let init = QueuePairInit {
                domain,
                kind: QueuePairKind::Reliable,
                send_queue: objects.queues[0],
                receive_queue: objects.queues[1],
                shared: None,
                sizes: QueuePairSizes {
                    send_requests: SENDS as u32,
                    receive_requests: RECEIVES as u32,
                    send_entries: 1,
                    receive_entries: 1,
                    inline_bytes,
                },
            };
            // SAFETY: domain and completion queues exist.
            let made = unsafe { objects.context.library.create_pair(&init) };
            match made {
                Ok(made) => {
                    objects.pair = Some(made.handle);
                    self.pair = made.handle.as_ptr();
                    self.number = made.number;
                    self.inline_bytes = made.sizes.inline_bytes as usize;
                    return Ok(());
                }
                Err(_) if inline_bytes > 0 => inline_bytes /= 2,
                Err(errno) => return Err(refused("creating the queue pair")(errno)),
            }
        }
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
            number: self.number,
            first_sequence: self.first_sequence,
        }
    }

    /// Connects to `peer`, which may not be connected itself yet.
    pub(crate) fn connect(&mut self, peer: &Endpoint) -> Result<(), Error> {
        let mut attributes = QueuePairAttributes::to(State::ReadyToReceive);
        let mtu = Mtu::from_raw(self.port.mtu.min(peer.port.mtu));
        attributes.path_mtu = mtu.ok_or(Error::subject("the ports tell no MTU"))?;
        attributes.destination = peer.number;
        attributes.receive_sequence = peer.first_sequence;
        attributes.min_rnr_timer = 12; // 0.64 ms
        let route = GlobalRoute {
            destination: Gid(peer.port.gid.value),
            source_index: self.port.gid.index,
            hop_limit: 64,
            traffic_class: 0,
            flow_label: 0,
        };
        attributes.address = AddressVector {
            lid: peer.port.lid,
            route: self.port.is_global.then_some(route),
            port: self.port.number,
            ..AddressVector::default()
        };
        let to_receive = Mask::ADDRESS
            | Mask::PATH_MTU
            | Mask::DESTINATION
            | Mask::RECEIVE_SEQUENCE
            | Mask::RESPONDER_RESOURCES
            | Mask::MIN_RNR_TIMER;
        self.modify(&attributes, to_receive, "moving the queue pair to RTR")?;
        let mut attributes = QueuePairAttributes::to(State::ReadyToSend);
        attributes.send_sequence = self.first_sequence;
        attributes.timeout = 14; // 67 ms
        attributes.retry_count = 6;
        attributes.rnr_retry = 7;
        let to_send = Mask::SEND_SEQUENCE
            | Mask::TIMEOUT
            | Mask::RETRY_COUNT
            | Mask::RNR_RETRY
            | Mask::INITIATOR_DEPTH;
        self.modify(&attributes, to_send, "moving the queue pair to RTS")
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
        let mut flags = 0;
        if bytes <= self.inline_bytes {
            flags |= send_flags::INLINE;
        }
        if is_last || self.queued.is_multiple_of(SIGNAL) {
            flags |= send_flags::SIGNALED;
        }
        let send = &mut self.sends[place];
        send.wr_id = self.queued;
        send.opcode = wr_opcode::SEND;
        send.num_sge = i32::from(bytes > 0);
        send.send_flags = flags;
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
            (self.calls.post_send)(self.pair, first, &raw mut refused)
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
            self.unread = 0..poll(&self.calls, self.received, &mut self.polled)?;
            if ended && self.unread.is_empty() {
                return Err(self.watch.ended_early());
            }
        }
        let completion = &self.polled[self.unread.start];
        if completion.status != SUCCESS {
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
            (self.calls.post_receive)(self.pair, first, &raw mut refused)
        };
        self.reposted += BATCH as u64;
        accepted(status, "posting receives")
    }

    /// Polls for completions of sends.
    #[cold]
    fn retire(&mut self) -> Result<(), Error> {
        let mut completions = [Wc::default(); 4];
        let count = poll(&self.calls, self.sent, &mut completions)?;
        for completion in &completions[..count] {
            if completion.status != SUCCESS {
                return Err(failure(completion));
            }
            self.retired = completion.wr_id;
        }
        Ok(())
    }

    /// Returns the error of a receive, or of the earlier send that broke the connection.
    #[cold]
    fn why(&self, flushed: &Wc) -> Error {
        let mut completions = [Wc::default(); SENDS];
        let count = poll(&self.calls, self.sent, &mut completions).unwrap_or(0);
        let is_failed = |completion: &&Wc| completion.status != SUCCESS;
        failure(
            completions[..count]
                .iter()
                .find(is_failed)
                .unwrap_or(flushed),
        )
    }

    fn piece(&self, frame: usize, bytes: usize) -> Sge {
        Sge {
            addr: self.address + (frame * FRAME) as u64,
            length: bytes as u32,
            lkey: self.key,
        }
    }

    fn modify(
        &self,
        attributes: &QueuePairAttributes,
        mask: Mask,
        what: &'static str,
    ) -> Result<(), Error> {
        let pair = self.objects.pair.expect("it was made");
        let library = &self.objects.context.library;
        // SAFETY: the queue pair exists.
        let modified = unsafe { library.modify_pair(pair, attributes, mask | Mask::STATE) };
        modified.map_err(refused(what))
    }
}

/// Polls a completion queue once. Returns the number of completions.
#[inline]
fn poll(calls: &HotCalls, queue: *mut c_void, into: &mut [Wc]) -> Result<usize, Error> {
    // SAFETY: the queue exists as long as the queue pair, whose methods alone call this.
    let count = unsafe { (calls.poll_queue)(queue, into.len() as i32, into.as_mut_ptr()) };
    usize::try_from(count).map_err(|_| Error::subject("a completion queue cannot be polled"))
}

fn failure(completion: &Wc) -> Error {
    let (status, vendor) = (completion.status, completion.vendor_err);
    let text = CompletionStatus::from_raw(status);
    Error::subject(format!("the connection broke: {text} (vendor {vendor:#x})"))
}

/// Makes the error of a call that the device has refused.
fn refused(what: &'static str) -> impl FnOnce(Errno) -> Error {
    move |errno| Error::io(what)(io::Error::from(errno))
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

const SUCCESS: u32 = 0;
/// Bytes of a frame, which are those of ibex's receive buffers.
pub(crate) const FRAME: usize = 4096;
/// Frames of one list.
pub(crate) const BATCH: usize = 16;
/// Receives that are posted at first.
pub(crate) const RECEIVES: usize = 20 * BATCH;
const SENDS: usize = 4 * BATCH;
const SIGNAL: u64 = 16;
