//! A device made of memory, for tests and simulations.
//!
//! The device takes the same calls with the same C arguments as libibverbs and keeps the same
//! rules. A queue holds what it was made for, objects in use are not destroyed (`EBUSY`), a dead
//! queue pair flushes, a message without a receive waits. Two queue pairs that are connected to
//! each other, on one device or two, really move the bytes. A test can also see every request that
//! was posted, refuse any call, hold sends back and complete or fail them one by one, and put
//! completions and events wherever it likes.
//!
//! A [`FaultScript`] has requests dropped, delayed or failed, calls refused and the device removed,
//! each at a request or call that it counts. Faults of the moment are made by calls of
//! [`FakeProvider`]; the crate's README lists both. Here the device refuses the second of its
//! completion queues:
//!
//! ```
//! use ibex_verbs::provider::fake::{Call, FakeDevice, FakeProvider, FaultScript};
//! use ibex_verbs::{CompletionQueue, Device, Errno};
//!
//! let fake = FakeProvider::new(vec![FakeDevice::soft_roce("rxe0", 1, [192, 0, 2, 1])]);
//! let device = Device::open(&fake.provider(), "rxe0")?;
//! fake.play(&FaultScript::new().refuse(Call::CreateCompletionQueue, 2, Errno::NOMEM));
//! let first = CompletionQueue::polled(&device, 64)?;
//! assert!(CompletionQueue::polled(&device, 64).is_err());
//! # Ok::<(), ibex_verbs::VerbsError>(())
//! ```
//!
//! Numbers follow what was measured on soft-RoCE where devices differ: a message longer
//! than its receive is status 2 at the receiver and 11 at the sender.

mod all;
mod batch;
mod call;
mod control;
mod datagram;
mod delivery;
mod device;
mod ends;
mod fetch;
mod foreign;
mod handle;
mod hot;
mod mask;
mod new_queues;
mod objects;
mod script;
mod window;
mod world;
mod xrc;

use std::collections::BTreeMap;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Provider, RawEvent};
use crate::abi::{
    Sge, Wc, access_flags, attribute_mask::AttributeMask, completion_status::CompletionStatus,
    fork_status::ForkStatus, queue_pair_attributes::QueuePairAttributes,
    queue_pair_state::QueuePairState,
};

pub use call::Call;
pub use datagram::PostedDatagram;
pub use device::{FakeClock, FakeDevice, FakeExtended, FakePort};
pub use mask::Mask;
pub use script::FaultScript;
pub use window::PostedBind;

pub use world::Maker;
use world::World;

/// The provider; clones are the same one.
#[derive(Clone, Debug)]
pub struct FakeProvider {
    world: Arc<World>,
}

/// A send as it was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedSend {
    /// The queue pair.
    pub queue_pair: u32,
    /// The request's identity.
    pub wr_id: u64,
    /// `enum ibv_wr_opcode`.
    pub opcode: u32,
    /// `enum ibv_send_flags`.
    pub flags: u32,
    /// Immediate data, in network byte order, or the key to invalidate.
    pub immediate: u32,
    /// The peer's address and key, for RDMA.
    pub remote: (u64, u32),
    /// The operands of an atomic: the number to compare with or to add, and the number to store.
    pub operands: [u64; 2],
    /// The receiver of a datagram.
    pub datagram: Option<PostedDatagram>,
    /// The shared receive queue at the peer, of extended connections.
    pub receive_queue: u32,
    /// The binding of a memory window.
    pub bind: Option<PostedBind>,
    /// The pieces of memory.
    pub entries: Vec<Sge>,
    /// The bytes, if it is inline.
    pub inline: Option<Vec<u8>>,
    /// The number of the call that posted the request, counting from 1.
    pub doorbell: u64,
}

/// A receive as it was posted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PostedReceive {
    /// The request's identity.
    pub wr_id: u64,
    /// The pieces of memory.
    pub entries: Vec<Sge>,
}

/// A change of a queue pair's state, as it was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modification {
    /// The queue pair.
    pub queue_pair: u32,
    /// The attributes that were set.
    pub attributes: QueuePairAttributes,
    /// The mask of the attributes that were set.
    pub mask: AttributeMask,
}

impl FakeProvider {
    /// A machine with these devices.
    #[must_use]
    pub fn new(devices: Vec<FakeDevice>) -> Self {
        Self {
            world: Arc::new(World::new(devices)),
        }
    }

    /// Returns the provider in the form that the layer above takes.
    #[must_use]
    pub fn provider(&self) -> Arc<dyn Provider> {
        Arc::new(self.clone())
    }

    /// Changes a device, which must exist: its ports, GIDs, limits.
    ///
    /// # Panics
    /// If there is no such device.
    pub fn change(&self, device: &str, change: impl FnOnce(&mut FakeDevice)) {
        let mut state = self.world.lock();
        let device = state
            .devices
            .iter_mut()
            .find(|known| known.name == device)
            .expect("a device of that name");
        change(device);
    }

    /// Sets whether sends wait for [`release`](Self::release) instead of going out at once.
    pub fn hold_sends(&self, hold: bool) {
        let mut state = self.world.lock();
        state.hold = hold;
        if !hold {
            state.progress();
        }
    }

    /// Sets whether queue pairs that die from now on omit the event that their last request was
    /// reached, as some devices do. A wait for the event then lasts until the time is up.
    pub fn lose_last_events(&self, lose: bool) {
        self.world.lock().loses_last_events = lose;
    }

    /// Sets the answer of `ibv_is_fork_initialized` from now on. With [`ForkStatus::Enabled`] the
    /// end of a registration lets children have its pages, as libibverbs does.
    pub fn set_fork_status(&self, status: ForkStatus) {
        self.world.lock().fork_status = Some(status);
    }

    /// Makes queue pairs that die from now on report nothing, for no request.
    pub fn fall_silent(&self) {
        self.world.lock().is_silent = true;
    }

    /// Makes a queue pair take this many receives that never complete; fewer if there are fewer.
    pub fn swallow_receives(&self, queue_pair: u32, receives: usize) {
        let mut state = self.world.lock();
        (0..receives).for_each(|_| state.swallow_receive(queue_pair.into()));
    }

    /// Lets the oldest `sends` of a queue pair go out.
    pub fn release(&self, queue_pair: u32, sends: usize) {
        let mut state = self.world.lock();
        for _ in 0..sends {
            state.deliver_next(queue_pair);
        }
    }

    /// Returns the sends of a queue pair that are held back, oldest first.
    #[must_use]
    pub fn held_sends(&self, queue_pair: u32) -> Vec<PostedSend> {
        let state = self.world.lock();
        let pair = state.pairs.get(&queue_pair.into());
        let held = pair.into_iter().flat_map(|pair| &pair.sends);
        held.map(|held| held.send.clone()).collect()
    }

    /// Changes the oldest send that is held back, as if the peer had sent it so.
    pub fn forge(&self, queue_pair: u32, change: impl FnOnce(&mut PostedSend)) {
        let mut state = self.world.lock();
        let pair = state.pairs.get_mut(&queue_pair.into()).expect("it lives");
        change(&mut pair.sends.front_mut().expect("one is held back").send);
    }

    /// Fails the oldest send of a queue pair with a [`CompletionStatus`], or its number; the queue
    /// pair dies of it.
    ///
    /// # Panics
    /// If it has no such request.
    pub fn fail_send(
        &self,
        queue_pair: u32,
        status: impl Into<CompletionStatus>,
        vendor_error: u32,
    ) {
        let status = status.into().to_raw();
        self.world
            .lock()
            .fail_next(queue_pair, status, vendor_error);
    }

    /// Fails the oldest sends of a queue pair, each with a status of its own; the queue pair
    /// dies of it.
    ///
    /// # Panics
    /// If it has fewer.
    pub fn fail_sends<S: Into<CompletionStatus> + Copy>(
        &self,
        queue_pair: u32,
        statuses: &[S],
        vendor_error: u32,
    ) {
        let statuses: Vec<_> = statuses
            .iter()
            .map(|&status| status.into().to_raw())
            .collect();
        self.world
            .lock()
            .fail_oldest(queue_pair, &statuses, vendor_error);
    }

    /// Fails the oldest receive that a queue pair may take with a status; the queue pair dies
    /// of it.
    ///
    /// # Panics
    /// If it has no such request.
    pub fn fail_receive(
        &self,
        queue_pair: u32,
        status: impl Into<CompletionStatus>,
        vendor_error: u32,
    ) {
        let status = status.into().to_raw();
        self.world
            .lock()
            .fail_receive(queue_pair, status, vendor_error);
    }

    /// Returns the tags of the completion queues and of the shared receive queues, in the order in
    /// which they were made.
    #[must_use]
    pub fn tags(&self) -> (Vec<u64>, Vec<u64>) {
        self.world.lock().tags()
    }

    /// The completion vector and the capacity of each completion queue, in the order in which
    /// they were made.
    #[must_use]
    pub fn completion_queues(&self) -> Vec<(u32, usize)> {
        self.world.lock().completion_queues()
    }

    /// Returns how often the limit event of a shared receive queue was armed.
    #[must_use]
    pub fn limits_armed(&self) -> u64 {
        self.world.lock().limits_armed
    }

    /// Puts any completion into the completion queue with that tag.
    pub fn complete(&self, queue_tag: u64, completion: Wc) {
        self.world.lock().complete_by_tag(queue_tag, completion);
    }

    /// Sets the time that the devices' clocks show from now on.
    pub fn set_clock(&self, ticks: u64) {
        self.world.lock().ticks = ticks;
    }

    /// Batches of completions that were begun, and completions that were shown in them.
    #[must_use]
    pub fn batches(&self) -> (u64, u64) {
        let state = self.world.lock();
        (state.batches, state.shown)
    }

    /// Raises an asynchronous event at every open context of a device.
    pub fn raise(&self, device: &str, event: RawEvent) {
        self.world.lock().raise_at(device, event);
    }

    /// Returns all sends that were posted so far, in order.
    #[must_use]
    pub fn posted(&self) -> Vec<PostedSend> {
        self.world.lock().posted.clone()
    }

    /// Forgets the sends that were posted so far.
    pub fn forget_posted(&self) {
        self.world.lock().posted.clear();
    }

    /// Receives that wait in a shared receive queue, by its tag.
    #[must_use]
    pub fn shared_receives(&self, tag: u64) -> Vec<PostedReceive> {
        self.world.lock().shared_receives(tag)
    }

    /// Receives that wait in a queue pair's own queue.
    #[must_use]
    pub fn own_receives(&self, queue_pair: u32) -> Vec<PostedReceive> {
        self.world.lock().own_receives(queue_pair)
    }

    /// Calls that posted sends, and calls that posted receives.
    #[must_use]
    pub fn doorbells(&self) -> (u64, u64) {
        let state = self.world.lock();
        (state.send_doorbells, state.receive_doorbells)
    }

    /// Returns all changes of queue pairs' states, refused ones too.
    #[must_use]
    pub fn modifications(&self) -> Vec<Modification> {
        self.world.lock().modifications.clone()
    }

    /// Returns how often a message found no receive.
    #[must_use]
    pub fn rnr_naks(&self) -> u64 {
        self.world.lock().rnr_naks
    }

    /// Completion events acknowledged so far, and calls that did so.
    #[must_use]
    pub fn acknowledged(&self) -> (u64, u64) {
        let state = self.world.lock();
        (state.acknowledged, state.acknowledgements)
    }

    /// Returns whether a key lets a peer write to an address.
    #[must_use]
    pub fn is_registered(&self, key: u32, address: u64) -> bool {
        self.world.lock().lets_in(key, address)
    }

    /// Returns whether a queue pair lets its peer read all bytes of a window by this binding.
    #[must_use]
    pub fn lets_read(&self, queue_pair: u32, bind: &PostedBind) -> bool {
        let state = self.world.lock();
        let place = (bind.address, bind.key);
        let (id, bytes) = (queue_pair.into(), bind.bytes as u32);
        let is_alive = state
            .pairs
            .get(&id)
            .is_some_and(|pair| pair.state == QueuePairState::ReadyToSend);
        is_alive
            && state
                .grants(id, place, bytes, access_flags::REMOTE_READ)
                .is_some()
    }

    /// The rights of all memory regions, in the order in which they were registered.
    #[must_use]
    pub fn region_accesses(&self) -> Vec<u32> {
        let state = self.world.lock();
        let mut regions: Vec<_> = state.regions.iter().collect();
        regions.sort_unstable_by_key(|(number, _)| **number);
        regions.iter().map(|(_, region)| region.access).collect()
    }

    /// Bytes of all memory regions.
    #[must_use]
    pub fn registered_bytes(&self) -> u64 {
        let state = self.world.lock();
        state.regions.values().map(|region| region.bytes).sum()
    }

    /// The thread that made each completion queue, each shared receive queue, and each memory region
    /// of at least `bytes`.
    #[must_use]
    pub fn makers(&self, bytes: u64) -> [Vec<Maker>; 3] {
        let state = self.world.lock();
        let regions = state.regions.values();
        let large = regions.filter(|region| region.bytes >= bytes);
        let completions = state.completions.values();
        [
            completions.map(|queue| queue.maker.clone()).collect(),
            state.shared.values().map(|it| it.maker.clone()).collect(),
            large.map(|region| region.maker.clone()).collect(),
        ]
    }

    /// Objects that exist, by kind; empty when everything has been destroyed.
    #[must_use]
    pub fn alive(&self) -> BTreeMap<&'static str, usize> {
        self.world.lock().alive()
    }
}

/// Refuses to destroy what is in use.
fn refuse_if(busy: bool) -> Result<(), Errno> {
    if busy { Err(Errno::BUSY) } else { Ok(()) }
}
