//! Receives of a shared queue that are lost with queue pairs and replaced by others.

use ibex_verbs::{
    CompletionQueue, ConnectionSettings, Device, ProtectionDomain, QueuePair, QueuePairBuilder,
    ReceiveQueue, WorkId, provider::fake::FakeProvider,
};

use super::{DEVICE, one_device, soft_roce};
use crate::rdma::{ArrivalBuffers, SharedReceives};

/// A shared receive queue, its buffers, and a queue pair that takes them.
struct Receives {
    fake: FakeProvider,
    pair: QueuePair,
    shared: SharedReceives,
}

const POSTED: u32 = 64;
const BUFFER_BYTES: usize = 4096;
/// Fewest posted receives, because less than a batch waits to be posted again.
const LEAST: usize = POSTED as usize - 15;

impl Receives {
    fn new(held: u32) -> Self {
        Self::on(one_device(), held)
    }

    fn on(fake: FakeProvider, held: u32) -> Self {
        let device = Device::open(&fake.provider(), DEVICE).unwrap();
        let domain = ProtectionDomain::new(&device).unwrap();
        let replaceable = held / 2;
        let completions = CompletionQueue::polled(&device, 127).unwrap();
        let queue = ReceiveQueue::shared(&domain, POSTED + replaceable, 1).unwrap();
        let builder = QueuePairBuilder::new(&domain, &completions).shared_receive_queue(&queue);
        let pair = builder.build(1, ConnectionSettings::default()).unwrap();
        let buffers =
            ArrivalBuffers::register(&domain, POSTED, replaceable, held, BUFFER_BYTES).unwrap();
        let mut shared = SharedReceives::new(queue, buffers, POSTED);
        shared.refill().unwrap();
        Self { fake, pair, shared }
    }

    /// Returns the receives that the device has, the next one first.
    fn posted(&self) -> Vec<WorkId> {
        let tag = self.shared.queue.tag().unwrap();
        let posted = self.fake.shared_receives(tag);
        posted
            .iter()
            .map(|one| WorkId::from_raw(one.wr_id))
            .collect()
    }

    /// Lets the device take the given number of receives.
    fn taken(&self, receives: usize) -> Vec<WorkId> {
        let mut taken = self.posted();
        taken.truncate(receives);
        self.fake.swallow_receives(self.pair.number(), receives);
        taken
    }

    /// Lets messages arrive and be released, as in a turn of the engine.
    fn arrive(&mut self, messages: u32) {
        for _ in 0..messages {
            let id = self.taken(1)[0];
            drop(self.shared.complete(id).expect("it was posted"));
            if self.shared.buffers.wants_refill() {
                self.shared.refill().unwrap();
            }
        }
    }
}

#[test]
fn however_many_queue_pairs_go_undrained_as_many_are_posted_as_before() {
    let mut receives = Receives::new(2048);
    for _ in 0..100 {
        receives.taken(9);
        receives.shared.may_miss_some();
        receives.arrive(2 * POSTED + 16);
        assert!(receives.posted().len() >= LEAST);
    }
    assert_eq!(receives.shared.buffers.is_spent(), None);
}

#[test]
fn a_late_receive_is_handed_out_once_and_not_replaced_again() {
    let mut receives = Receives::new(256);
    let late = receives.taken(3);
    receives.shared.may_miss_some();
    receives.arrive(2 * POSTED + 16);
    receives.shared.refill().unwrap();
    assert_eq!(receives.posted().len(), POSTED as usize);
    for id in late {
        let arrived = receives.shared.complete(id).expect("it was replaced only");
        assert_eq!(arrived.lease.index(), id.slot());
        assert!(receives.shared.complete(id).is_none());
    }
    receives.shared.refill().unwrap();
    assert_eq!(receives.posted().len(), POSTED as usize);
    // The buffers are used again.
    receives.arrive(10 * POSTED);
}

#[test]
fn receives_that_are_only_late_are_not_replaced() {
    let mut receives = Receives::new(256);
    receives.shared.may_miss_some();
    receives.arrive(10 * POSTED);
    receives.shared.refill().unwrap();
    assert_eq!(receives.posted().len(), POSTED as usize);
}

#[test]
fn a_queue_that_ran_low_does_not_wait_for_messages() {
    let mut receives = Receives::new(256);
    receives.taken(POSTED as usize - 3);
    receives.shared.may_miss_some();
    receives.shared.run_low().unwrap();
    // According to the device's report, up to an eighth may still be posted.
    assert!(receives.posted().len() >= (POSTED - POSTED / 8) as usize);
    receives.arrive(2 * POSTED + 16);
    assert!(receives.posted().len() >= LEAST);
    // If no receive is missing, the report only means that the queue is busy.
    receives.shared.run_low().unwrap();
    assert!(receives.posted().len() <= POSTED as usize);
}

/// The event that few receives are left may predate the last refill; the device then still has all
/// receives that are given up.
#[test]
fn the_device_never_has_more_receives_than_its_queue_was_made_for() {
    let mut device = soft_roce();
    device.has_exact_queues = true;
    let mut receives = Receives::on(FakeProvider::new(vec![device]), 40);
    receives.shared.may_miss_some();
    receives.shared.run_low().unwrap();
    let posted = receives.posted().len();
    assert_eq!(posted, POSTED as usize + 20, "half of 40 are replaced");
    assert_eq!(posted, receives.shared.queue.outstanding() as usize);
    // All receives but the last eighth were to be replaced.
    assert_eq!(receives.shared.buffers.is_spent(), Some(56));
    for id in receives.taken(posted) {
        drop(receives.shared.complete(id).expect("it was posted"));
    }
    assert_eq!(receives.shared.queue.outstanding(), 0);
    receives.shared.refill().unwrap();
    assert_eq!(receives.posted().len(), POSTED as usize);
}

#[test]
fn buffers_are_spent_when_more_than_half_of_the_held_ones_are_lost() {
    let mut receives = Receives::new(32);
    for (lost, spent) in [(16, None), (1, Some(17))] {
        receives.taken(lost);
        receives.shared.may_miss_some();
        receives.arrive(2 * POSTED + 16);
        assert_eq!(receives.shared.buffers.is_spent(), spent);
    }
}
