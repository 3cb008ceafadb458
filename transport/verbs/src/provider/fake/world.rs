//! The state of all fake devices.
//!
//! Everything is under one lock. Objects are known by numbers; a handle is a pointer to
//! a box with the number and the world in it (`handle`).

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard};
use std::thread;

use ibex_base::sync::lock;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, read, write};
use rustix::mm::{Advice, madvise};
use rustix::param::page_size;
use rustix::thread::{CpuSet, sched_getaffinity};

use super::{
    FakeDevice, FakeExtended, Modification, PostedReceive, PostedSend,
    datagram::FakeAddress,
    foreign::{FakeBuffer, Foreign},
    script::{Step, WaitingSend},
    window::FakeWindow,
    xrc::{FakeXrcDomain, FakeXrcReceives},
};
use crate::{
    abi::{
        Wc, fork_status::ForkStatus, gid::Gid, queue_pair_attributes::QueuePairAttributes,
        queue_pair_kind::QueuePairKind, queue_pair_state::QueuePairState,
    },
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
    /// Faults that are still to come, of all scripts.
    pub(super) faults: Vec<Step>,
    /// Polls of completion queues so far.
    pub(super) polls: u64,
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

    // Events for the test.
    pub(super) posted: Vec<PostedSend>,
    pub(super) send_doorbells: u64,
    pub(super) receive_doorbells: u64,
    pub(super) modifications: Vec<Modification>,
    pub(super) rnr_naks: u64,
    pub(super) acknowledged: u64,
    pub(super) acknowledgements: u64,
    pub(super) batches: u64,
    pub(super) shown: u64,

    // Objects that exist.
    next_id: u64,
    pub(super) contexts: HashMap<u64, FakeContext>,
    pub(super) domains: HashMap<u64, FakeDomain>,
    pub(super) regions: HashMap<u64, FakeRegion>,
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
    /// Its device was removed.
    pub(super) is_removed: bool,
}

#[derive(Debug)]
pub(super) struct FakeDomain {
    pub(super) context: u64,
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
    pub(super) sends: VecDeque<WaitingSend>,
    /// Sends that went out and wait for a signaled one to free their places.
    pub(super) silent: usize,
    pub(super) receives: VecDeque<PostedReceive>,
    /// The domain of a receiving end of extended connections.
    pub(super) xrc: Option<u64>,
    /// The handles of the queue pair.
    pub(super) handles: u32,
}

impl State {
    pub(super) fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
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

pub(super) fn ring(fd: &OwnedFd) {
    // The counter cannot overflow, since no test rings 2^64 times.
    let _ = write(fd, &1_u64.to_ne_bytes());
}

/// Takes one ring back.
pub(super) fn unring(fd: &OwnedFd) {
    let _ = read(fd, &mut [0_u8; 8]);
}
