//! The state of all fake devices, and how bytes move between their queue pairs.
//!
//! Everything is under one lock. Objects are known by numbers; a handle is a pointer to
//! a box with the number and the world in it (`handle`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::slice;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use ibex_base::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{
    Call, FakeDevice, FakeExtended, FakeTags, Modification, PostedReceive, PostedSend,
    datagram::FakeAddress,
    memory::{FakeBuffer, Foreign},
    window::FakeWindow,
    xrc::{FakeXrcDomain, FakeXrcReceives},
};
use crate::{
    abi::{
        Sge, Wc, access_flags,
        gid::Gid,
        queue_pair_kind::QueuePairKind,
        queue_pair_state::{QueuePairAttributes, QueuePairState},
        send_flags, wc_flags, wc_opcode, wr_opcode,
    },
    device::fork_report::ForkStatus,
    provider::{QueuePairSizes, RawEvent},
};

/// The state of all fake devices.
#[derive(Debug)]
pub(super) struct World {
    state: Mutex<State>,
}

impl World {
    pub(super) fn new(devices: Vec<FakeDevice>) -> Self {
        Self {
            state: Mutex::new(State {
                devices,
                next_id: 1,
                ..State::default()
            }),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock has failed already.
        lock(&self.state)
    }
}

/// The state under the lock.
#[derive(Debug, Default)]
pub(super) struct State {
    // Settings by the test.
    pub(super) devices: Vec<FakeDevice>,
    pub(super) refusals: HashMap<Call, VecDeque<(u32, Errno)>>,
    pub(super) hold: bool,
    /// A queue pair that dies does not report its last request.
    pub(super) loses_last_events: bool,
    /// The device reports nothing, for no request.
    pub(super) is_silent: bool,
    /// Tells whether children may have registered memory; `None` leaves that to the kernel.
    pub(super) fork_status: Option<ForkStatus>,
    pub(super) limits_armed: u64,
    /// The time on all clocks.
    pub(super) ticks: u64,

    // News for the test.
    pub(super) posted: Vec<PostedSend>,
    pub(super) send_doorbells: u64,
    pub(super) receive_doorbells: u64,
    pub(super) modifications: Vec<Modification>,
    /// Advice on memory, its flags and its piece.
    pub(super) advised: Vec<(u32, u32, Sge)>,
    /// Completions and microseconds of each moderation.
    pub(super) moderations: Vec<(u16, u16)>,
    pub(super) rnr_naks: u64,
    pub(super) acknowledged: u64,
    pub(super) acknowledgements: u64,
    pub(super) batches: u64,
    pub(super) shown: u64,

    // Objects that exist.
    next_id: u64,
    pub(super) contexts: HashMap<u64, FakeContext>,
    pub(super) domains: HashMap<u64, u64>,
    pub(super) regions: HashMap<u64, FakeRegion>,
    /// Numbers that regions got when they were changed, by the numbers before.
    pub(super) moved: HashMap<u64, u64>,
    pub(super) buffers: HashMap<u64, FakeBuffer>,
    pub(super) windows: HashMap<u64, FakeWindow>,
    pub(super) channels: HashMap<u64, FakeChannel>,
    pub(super) completions: HashMap<u64, FakeCompletions>,
    pub(super) shared: HashMap<u64, FakeReceives>,
    pub(super) pairs: HashMap<u64, FakePair>,
    pub(super) addresses: HashMap<u64, FakeAddress>,
    pub(super) xrc_domains: HashMap<u64, FakeXrcDomain>,
    /// Multicast groups and the queue pairs that are attached to them.
    pub(super) groups: Vec<(Gid, u64)>,
}

#[derive(Debug)]
pub(super) struct FakeContext {
    pub(super) device: String,
    pub(super) events: VecDeque<RawEvent>,
    pub(super) fd: OwnedFd,
}

#[derive(Debug)]
pub(super) struct FakeRegion {
    pub(super) domain: u64,
    pub(super) base: u64,
    pub(super) bytes: u64,
    pub(super) access: u32,
    pub(super) maker: Maker,
    /// The place of a region whose addresses are not those of this process.
    pub(super) foreign: Option<Foreign>,
}

#[derive(Debug)]
pub(super) struct FakeChannel {
    pub(super) context: u64,
    pub(super) events: VecDeque<u64>,
    pub(super) fd: OwnedFd,
}

#[derive(Debug)]
pub(super) struct FakeCompletions {
    pub(super) context: u64,
    pub(super) tag: u64,
    pub(super) vector: u32,
    pub(super) capacity: usize,
    pub(super) ready: VecDeque<Stamped>,
    /// The queue's behaviour as an extended one, and the state of its batch.
    pub(super) extended: Option<FakeExtended>,
    pub(super) batch: Batch,
    pub(super) channel: Option<u64>,
    /// Armed, and whether for solicited completions only.
    pub(super) armed: Option<bool>,
    pub(super) unacknowledged: u32,
    pub(super) maker: Maker,
}

/// The thread that made an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Maker {
    /// The name of the thread.
    pub thread: String,
    /// The cores that it might run on at that moment.
    pub cores: Vec<usize>,
}

impl Maker {
    pub(super) fn calls() -> Self {
        let cores = sched_getaffinity(None).unwrap_or_default();
        Self {
            thread: thread::current().name().unwrap_or_default().to_owned(),
            cores: (0..CpuSet::MAX_CPU)
                .filter(|core| cores.is_set(*core))
                .collect(),
        }
    }
}

/// A completion and the time at which it came.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stamped {
    pub(super) completion: Wc,
    pub(super) ticks: u64,
    pub(super) tags: FakeTags,
}

/// The state of an extended queue's batch.
#[derive(Clone, Copy, Debug, Default)]
pub(super) enum Batch {
    #[default]
    None,
    /// The batch is at this completion, which is taken when the batch moves on or ends.
    At(Stamped),
    /// The batch is behind the last completion.
    Drained,
}

#[derive(Debug)]
pub(super) struct FakeReceives {
    pub(super) domain: u64,
    pub(super) context: u64,
    pub(super) tag: u64,
    pub(super) capacity: usize,
    pub(super) entries: usize,
    pub(super) limit: usize,
    pub(super) posted: VecDeque<PostedReceive>,
    pub(super) maker: Maker,
    pub(super) xrc: Option<FakeXrcReceives>,
}

#[derive(Debug)]
pub(super) struct FakePair {
    pub(super) kind: QueuePairKind,
    /// The key that datagrams have to carry.
    pub(super) q_key: u32,
    pub(super) context: u64,
    pub(super) domain: u64,
    pub(super) state: QueuePairState,
    /// The attributes that were set.
    pub(super) attributes: QueuePairAttributes,
    pub(super) sizes: QueuePairSizes,
    pub(super) send_completions: u64,
    pub(super) receive_completions: u64,
    pub(super) shared: Option<u64>,
    pub(super) destination: u64,
    pub(super) access: u32,
    /// The peer's reads and atomics that it serves.
    pub(super) responder_resources: u8,
    /// Sends that were posted and have not gone out.
    pub(super) sends: VecDeque<PostedSend>,
    /// Sends that went out and wait for a signaled one to free their places.
    pub(super) silent: usize,
    pub(super) receives: VecDeque<PostedReceive>,
    /// The domain of a receiving end of extended connections.
    pub(super) xrc: Option<u64>,
    /// The handles of the queue pair.
    pub(super) handles: u32,
}

/// The result of an attempt to do what a request asks for.
pub(super) enum Attempt {
    /// The peer is not ready.
    Waits,
    /// The request fails with this status.
    Failed(u32),
    /// The request is done: what its completion has.
    Done { opcode: u32, bytes: u32 },
}

const SUCCESS: u32 = 0;
const LOCAL_OPERATION: u32 = 2;
pub(super) const LOCAL_PROTECTION: u32 = 4;
const FLUSHED: u32 = 5;
pub(super) const WINDOW_BIND: u32 = 6;
pub(super) const REMOTE_INVALID_REQUEST: u32 = 9;
pub(super) const REMOTE_ACCESS: u32 = 10;
const REMOTE_OPERATION: u32 = 11;

impl State {
    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Checks whether a call goes through.
    pub(super) fn grant(&mut self, call: Call) -> Result<(), Errno> {
        let Some(refusals) = self.refusals.get_mut(&call) else {
            return Ok(());
        };
        match refusals.front_mut() {
            Some((0, errno)) => {
                let errno = *errno;
                refusals.pop_front();
                Err(errno)
            }
            Some((granted, _)) => {
                *granted -= 1;
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Advises pages of memory that is registered or is no more, as libibverbs does after
    /// `ibv_fork_init` (`ibv_dontfork_range` and `ibv_dofork_range`, libibverbs/memory.c; it
    /// counts the registrations of each page, which tests do not need).
    pub(super) fn advise_fork(&self, base: u64, bytes: u64, advice: Advice) {
        if self.fork_status != Some(ForkStatus::Enabled) {
            return;
        }
        let page = page_size();
        let start = base as usize & !(page - 1);
        let end = (base + bytes) as usize;
        // SAFETY: memory of a registration, which is mapped; the advice changes no byte in
        // this process.
        let advised = unsafe {
            let length = end.next_multiple_of(page) - start;
            madvise(std::ptr::without_provenance_mut(start), length, advice)
        };
        assert_eq!(advised, Ok(()), "memory that is registered is mapped");
    }

    pub(super) fn device_of(&self, context: u64) -> &FakeDevice {
        let name = &self.contexts[&context].device;
        self.devices
            .iter()
            .find(|device| device.name == *name)
            .expect("devices are never taken away")
    }

    pub(super) fn alive(&self) -> BTreeMap<&'static str, usize> {
        let mut alive = BTreeMap::from([
            ("contexts", self.contexts.len()),
            ("protection domains", self.domains.len()),
            ("memory regions", self.regions.len()),
            ("device memory", self.buffers.len()),
            ("memory windows", self.windows.len()),
            ("completion channels", self.channels.len()),
            ("completion queues", self.completions.len()),
            ("shared receive queues", self.shared.len()),
            ("queue pairs", self.pairs.len()),
            ("address handles", self.addresses.len()),
            ("XRC domains", self.xrc_domains.len()),
        ]);
        alive.retain(|_, count| *count > 0);
        alive
    }

    pub(super) fn shared_receives(&self, tag: u64) -> Vec<PostedReceive> {
        let queue = self.shared.values().find(|queue| queue.tag == tag);
        queue.map_or_else(Vec::new, |queue| queue.posted.iter().cloned().collect())
    }

    pub(super) fn own_receives(&self, queue_pair: u32) -> Vec<PostedReceive> {
        let pair = self.pairs.get(&queue_pair.into());
        pair.map_or_else(Vec::new, |pair| pair.receives.iter().cloned().collect())
    }

    pub(super) fn complete_by_tag(&mut self, tag: u64, completion: Wc) {
        let queue = self.completions.iter().find(|(_, queue)| queue.tag == tag);
        if let Some((&id, _)) = queue {
            self.complete(id, completion, false);
        }
    }

    pub(super) fn raise_at(&mut self, device: &str, event: RawEvent) {
        let contexts = self.contexts.values_mut();
        for context in contexts.filter(|context| context.device == device) {
            context.raise(event);
        }
    }

    /// Sends all requests that can go out.
    pub(super) fn progress(&mut self) {
        if self.hold {
            return;
        }
        let sending = self.pairs.iter().filter(|(_, pair)| !pair.sends.is_empty());
        let mut pairs: Vec<_> = sending.map(|(&id, _)| id).collect();
        pairs.sort_unstable();
        for pair in pairs {
            while self.deliver_next(pair as u32) {}
        }
    }

    /// Sends the oldest send of a queue pair; false if there is none or it has to wait.
    pub(super) fn deliver_next(&mut self, number: u32) -> bool {
        let Some(pair) = self.pairs.get(&number.into()) else {
            return false;
        };
        if pair.state != QueuePairState::ReadyToSend {
            return false;
        }
        let peer_id = pair.destination;
        let Some(send) = pair.sends.front().cloned() else {
            return false;
        };
        match self.attempt(number, peer_id, &send) {
            Attempt::Waits => false,
            Attempt::Failed(status) => {
                self.fail_next(number, status, 0);
                false
            }
            Attempt::Done { opcode, bytes } => {
                self.succeed(number, &send, opcode, bytes);
                true
            }
        }
    }

    /// Does what a request asks for.
    fn attempt(&mut self, number: u32, peer_id: u64, send: &PostedSend) -> Attempt {
        if let Some(local) = self.attempt_here(number.into(), send) {
            return local;
        }
        if let Some(unreliable) = self.attempt_unreliable(number, send) {
            return unreliable;
        }
        let receives = |peer: &FakePair| {
            matches!(
                peer.state,
                QueuePairState::ReadyToReceive
                    | QueuePairState::ReadyToSend
                    | QueuePairState::SendQueueDrained
            ) && peer.destination == u64::from(number)
        };
        if !self.pairs.get(&peer_id).is_some_and(receives) {
            return Attempt::Waits;
        }
        if !self.aim(peer_id, send) {
            self.die(peer_id);
            return Attempt::Failed(REMOTE_INVALID_REQUEST);
        }
        if let Some(fetched) = self.attempt_fetch(peer_id, send) {
            return fetched;
        }
        let Some(bytes) = self.gather(send) else {
            return Attempt::Failed(LOCAL_PROTECTION);
        };
        let write = matches!(
            send.opcode,
            wr_opcode::RDMA_WRITE | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        let takes_receive = send.opcode != wr_opcode::RDMA_WRITE;
        if takes_receive && self.receives_of(peer_id).is_empty() {
            self.rnr_naks += 1;
            return Attempt::Waits;
        }
        if write && !self.write_remote(peer_id, send, &bytes) {
            self.die(peer_id);
            return Attempt::Failed(REMOTE_ACCESS);
        }
        if takes_receive && let Err(status) = self.receive(peer_id, send, &bytes, write) {
            return Attempt::Failed(status);
        }
        Attempt::Done {
            opcode: match write {
                true => wc_opcode::RDMA_WRITE,
                false => wc_opcode::SEND,
            },
            bytes: 0,
        }
    }

    /// Takes the oldest send of a queue pair, which is done, and completes it if it is signaled.
    fn succeed(&mut self, number: u32, send: &PostedSend, opcode: u32, bytes: u32) {
        let pair = self.pairs.get_mut(&number.into()).expect("a queue pair");
        pair.sends.pop_front();
        if send.flags & send_flags::SIGNALED == 0 {
            pair.silent += 1;
            return;
        }
        pair.silent = 0;
        let completions = pair.send_completions;
        let done = Wc {
            wr_id: send.wr_id,
            status: SUCCESS,
            opcode,
            byte_len: bytes,
            qp_num: number,
            ..Wc::default()
        };
        self.complete(completions, done, false);
    }

    /// Fails the oldest send of a queue pair, which dies of it.
    pub(super) fn fail_next(&mut self, number: u32, status: u32, vendor_err: u32) {
        self.fail_one(number, status, vendor_err);
        if !self.keeps_receiving(number) {
            self.die(number.into());
        }
    }

    /// Fails the oldest sends, each with a status of its own.
    pub(super) fn fail_oldest(&mut self, number: u32, statuses: &[u32], vendor_err: u32) {
        for &status in statuses {
            self.fail_one(number, status, vendor_err);
        }
        self.die(number.into());
    }

    fn fail_one(&mut self, number: u32, status: u32, vendor_err: u32) {
        let pair = self.pairs.get_mut(&number.into()).expect("a queue pair");
        let send = pair.sends.pop_front().expect("a send to fail");
        let completions = pair.send_completions;
        let failed = Wc {
            wr_id: send.wr_id,
            status,
            vendor_err,
            qp_num: number,
            ..Wc::default()
        };
        self.complete(completions, failed, false);
    }

    /// Fails the oldest receive that a queue pair may take.
    pub(super) fn fail_receive(&mut self, number: u32, status: u32, vendor_err: u32) {
        let id = number.into();
        let receive = self.receives_of(id).pop_front().expect("a receive to fail");
        let failed = Wc {
            wr_id: receive.wr_id,
            status,
            vendor_err,
            qp_num: number,
            ..Wc::default()
        };
        self.complete(self.pairs[&id].receive_completions, failed, false);
        self.die(id);
    }

    pub(super) fn tags(&self) -> (Vec<u64>, Vec<u64>) {
        let mut tags = (
            self.completions.values().map(|queue| queue.tag).collect(),
            self.shared.values().map(|queue| queue.tag).collect(),
        );
        let sort = |tags: &mut Vec<u64>| tags.sort_unstable();
        sort(&mut tags.0);
        sort(&mut tags.1);
        tags
    }

    pub(super) fn completion_queues(&self) -> Vec<(u32, usize)> {
        let mut queues: Vec<_> = self.completions.values().collect();
        queues.sort_unstable_by_key(|queue| queue.tag);
        let shape = |queue: &FakeCompletions| (queue.vector, queue.capacity);
        queues.into_iter().map(shape).collect()
    }

    /// Moves a queue pair to ERR and flushes what it has.
    pub(super) fn die(&mut self, id: u64) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        let was_alive = pair.state != QueuePairState::Error;
        pair.state = QueuePairState::Error;
        let (context, shared) = (pair.context, pair.shared);
        self.flush(id);
        if was_alive && shared.is_some() && !self.loses_last_events && !self.is_silent {
            let last = RawEvent {
                event_type: 16,
                element: id,
            };
            if let Some(context) = self.contexts.get_mut(&context) {
                context.raise(last);
            }
        }
    }

    /// Completes everything that a dead queue pair has, unsuccessfully.
    pub(super) fn flush(&mut self, id: u64) {
        let Some(pair) = self.pairs.get_mut(&id) else {
            return;
        };
        let sends: Vec<_> = pair.sends.drain(..).map(|send| send.wr_id).collect();
        let receives: Vec<_> = pair.receives.drain(..).map(|one| one.wr_id).collect();
        let (to_sends, to_receives) = (pair.send_completions, pair.receive_completions);
        pair.silent = 0;
        if self.is_silent {
            return;
        }
        let flushed = |wr_id| Wc {
            wr_id,
            status: FLUSHED,
            qp_num: id as u32,
            ..Wc::default()
        };
        for wr_id in receives {
            self.complete(to_receives, flushed(wr_id), false);
        }
        for wr_id in sends {
            self.complete(to_sends, flushed(wr_id), false);
        }
    }

    /// Puts a completion into a queue and wakes the threads that asked for that.
    pub(super) fn complete(&mut self, queue_id: u64, completion: Wc, solicited: bool) {
        let ticks = self.ticks;
        let Some(queue) = self.completions.get(&queue_id) else {
            return;
        };
        let tags = self.device_of(queue.context).tags.unwrap_or_default();
        let queue = self.completions.get_mut(&queue_id).expect("a queue");
        if queue.ready.len() == queue.capacity {
            let overrun = RawEvent {
                event_type: 0,
                element: queue.tag,
            };
            let context = queue.context;
            if let Some(context) = self.contexts.get_mut(&context) {
                context.raise(overrun);
            }
            return;
        }
        queue.ready.push_back(Stamped {
            completion,
            ticks,
            tags,
        });
        let wakes =
            |solicited_only: bool| !solicited_only || solicited || completion.status != SUCCESS;
        if queue.armed.is_some_and(wakes) {
            queue.armed = None;
            let channel = queue.channel;
            if let Some(channel) = channel.and_then(|id| self.channels.get_mut(&id)) {
                channel.events.push_back(queue_id);
                ring(&channel.fd);
            }
        }
    }

    pub(super) fn receives_of(&mut self, pair_id: u64) -> &mut VecDeque<PostedReceive> {
        let pair = self.pairs.get_mut(&pair_id).expect("a queue pair");
        match pair.shared {
            Some(shared) => {
                let queue = self.shared.get_mut(&shared);
                &mut queue.expect("queues in use are not destroyed").posted
            }
            None => &mut pair.receives,
        }
    }

    /// Returns the bytes of a send; `None` if it names memory that is not registered.
    pub(super) fn gather(&self, send: &PostedSend) -> Option<Vec<u8>> {
        if let Some(inline) = &send.inline {
            return Some(inline.clone());
        }
        let mut bytes = Vec::new();
        for entry in &send.entries {
            let place = self.region(entry.lkey, entry.addr, entry.length, 0)?;
            // SAFETY: a registered region covers the range, so it is mapped; the posting
            // side does not write to what it has posted.
            let piece = unsafe {
                slice::from_raw_parts(place as usize as *const u8, entry.length as usize)
            };
            bytes.extend_from_slice(piece);
        }
        Some(bytes)
    }

    /// Puts a message, or the announcement of a write, into the next receive of a queue
    /// pair. The error is the sender's status.
    pub(super) fn receive(
        &mut self,
        peer_id: u64,
        send: &PostedSend,
        bytes: &[u8],
        write: bool,
    ) -> Result<(), u32> {
        let receive = self.receives_of(peer_id).pop_front().expect("a receive");
        self.announce_limit(peer_id);
        let payload = if write { &[][..] } else { bytes };
        let invalidates = send.opcode == wr_opcode::SEND_WITH_INVALIDATE;
        let outcome = if !self.scatter(&receive.entries, payload) {
            Err((LOCAL_OPERATION, REMOTE_OPERATION))
        } else if invalidates && !self.invalidate(peer_id, send.immediate) {
            Err((REMOTE_INVALID_REQUEST, REMOTE_INVALID_REQUEST))
        } else {
            Ok(())
        };
        let with_immediate = matches!(
            send.opcode,
            wr_opcode::SEND_WITH_IMM | wr_opcode::RDMA_WRITE_WITH_IMM
        );
        let completion = Wc {
            wr_id: receive.wr_id,
            status: outcome.map_or_else(|(status, _)| status, |()| SUCCESS),
            opcode: if write {
                wc_opcode::RECV_RDMA_WITH_IMM
            } else {
                wc_opcode::RECV
            },
            byte_len: bytes.len() as u32,
            imm_data: send.immediate,
            wc_flags: match (with_immediate, invalidates) {
                (true, _) => wc_flags::WITH_IMM,
                (_, true) => wc_flags::WITH_INV,
                _ => 0,
            },
            qp_num: peer_id as u32,
            ..Wc::default()
        };
        let completions = self.pairs[&peer_id].receive_completions;
        let solicited = send.flags & send_flags::SOLICITED != 0;
        self.complete(completions, completion, solicited);
        outcome.map_err(|(_, status)| {
            self.die(peer_id);
            status
        })
    }

    /// Makes a queue pair take a receive for a message that never completes.
    pub(super) fn swallow_receive(&mut self, pair_id: u64) {
        if self.receives_of(pair_id).pop_front().is_some() {
            self.announce_limit(pair_id);
        }
    }

    pub(super) fn announce_limit(&mut self, pair_id: u64) {
        let shared = self.pairs[&pair_id].shared;
        let Some(queue) = shared.and_then(|id| self.shared.get_mut(&id)) else {
            return;
        };
        if queue.posted.len() < queue.limit {
            queue.limit = 0;
            let event = RawEvent {
                event_type: 15,
                element: queue.tag,
            };
            let context = queue.context;
            if let Some(context) = self.contexts.get_mut(&context) {
                context.raise(event);
            }
        }
    }

    /// Writes bytes over the pieces of a receive; false if they do not fit or may not.
    pub(super) fn scatter(&self, entries: &[Sge], mut bytes: &[u8]) -> bool {
        for entry in entries {
            if bytes.is_empty() {
                break;
            }
            let taken = bytes.len().min(entry.length as usize);
            let (piece, rest) = bytes.split_at(taken);
            if !self.store(entry.lkey, entry.addr, piece, access_flags::LOCAL_WRITE) {
                return false;
            }
            bytes = rest;
        }
        bytes.is_empty()
    }

    pub(super) fn write_remote(&self, peer_id: u64, send: &PostedSend, bytes: &[u8]) -> bool {
        let access = access_flags::REMOTE_WRITE;
        let granted = self.grants(peer_id, send.remote, bytes.len() as u32, access);
        bytes.is_empty()
            || granted.is_some_and(|place| {
                self.put(place, bytes);
                true
            })
    }

    /// Writes to registered memory; false if the memory is not registered, or not for this access.
    pub(super) fn store(&self, key: u32, address: u64, bytes: &[u8], access: u32) -> bool {
        let granted = self.region(key, address, bytes.len() as u32, access);
        granted.is_some_and(|place| {
            self.put(place, bytes);
            true
        })
    }

    /// Writes to memory that a key was found for.
    fn put(&self, address: u64, bytes: &[u8]) {
        // SAFETY: a registered region covers the range, so it is mapped, and the code that
        // registered it for this holds no reference into it (rule 2 of `memory::region`).
        unsafe {
            (address as usize as *mut u8).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    pub(super) fn lets_in(&self, key: u32, address: u64) -> bool {
        let access = access_flags::REMOTE_WRITE;
        self.region(key, address, 1, access).is_some()
    }

    /// Returns the place of a range that a key covers with these rights. Local and remote keys are the
    /// same.
    pub(super) fn region(&self, key: u32, address: u64, length: u32, access: u32) -> Option<u64> {
        let region = self.regions.get(&key.into())?;
        let offset = address.checked_sub(region.base)?;
        let end = offset.checked_add(length.into())?;
        let is_granted = end <= region.bytes && region.access & access == access;
        let start = region.foreign.as_ref().map_or(region.base, Foreign::start);
        is_granted.then_some(start + offset)
    }
}

impl FakeContext {
    pub(super) fn raise(&mut self, event: RawEvent) {
        self.events.push_back(event);
        ring(&self.fd);
    }
}

/// A descriptor that is readable once for each time that it was rung.
pub(super) fn bell() -> Result<OwnedFd, Errno> {
    eventfd(
        0,
        EventfdFlags::SEMAPHORE | EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC,
    )
}

fn ring(fd: &OwnedFd) {
    // The counter cannot overflow, since no test rings 2^64 times.
    let _ = write(fd, &1_u64.to_ne_bytes());
}

/// Takes one ring back.
pub(super) fn unring(fd: &OwnedFd) {
    let _ = read(fd, &mut [0_u8; 8]);
}
