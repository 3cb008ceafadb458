//! The layer over the fake provider: every error path and every posted request, on
//! machines without any device.

mod completions;
mod connecting;
mod datagrams;
mod discovery;
mod discovery_failures;
mod errors;
mod extended;
mod fault_script;
mod forks;
mod lifetimes;
mod memory;
mod operations;
mod posting;
mod queries;
mod sleeping;
mod sysfs_tree;
mod teardown;
mod unreliable;
mod verbs_table;
mod windows;
mod xrc;

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::{
    AnonymousMemory, CompletionQueue, ConnectionSettings, Device, FirstSequence, LocalPort,
    MemoryRegion, Operation, ProtectionDomain, QueuePair, QueuePairBuilder, ReceiveQueue,
    ReceiveRequest, RegionAccess, WorkCompletion, WorkId,
    provider::{
        Provider,
        fake::{FakeDevice, FakeProvider},
    },
};

const DEVICE: &str = "rxe0";
const ADDRESS: [u8; 4] = [192, 0, 2, 1];

fn one_device() -> FakeProvider {
    FakeProvider::new(vec![soft_roce()])
}

/// The device of `one_device`, as it is at first.
fn soft_roce() -> FakeDevice {
    FakeDevice::soft_roce(DEVICE, 7, ADDRESS)
}

fn memory() -> AnonymousMemory {
    AnonymousMemory::new(64 << 10).unwrap()
}

fn put(region: &MemoryRegion<AnonymousMemory>, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= region.bytes());
    // SAFETY: in bounds, as just seen; one thread, and no reference into the region.
    unsafe {
        region
            .base()
            .as_ptr()
            .add(offset)
            .copy_from(bytes.as_ptr(), bytes.len());
    }
}

fn get(region: &MemoryRegion<AnonymousMemory>, offset: usize, length: usize) -> Vec<u8> {
    assert!(offset + length <= region.bytes());
    let mut bytes = vec![0; length];
    // SAFETY: as in `put`.
    unsafe {
        region
            .base()
            .as_ptr()
            .add(offset)
            .copy_to(bytes.as_mut_ptr(), length);
    }
    bytes
}

/// An end that is not connected: everything that a queue pair needs.
struct End {
    device: Device,
    domain: ProtectionDomain,
    completions: CompletionQueue,
    shared: Option<ReceiveQueue>,
    sends: MemoryRegion<AnonymousMemory>,
    receives: MemoryRegion<AnonymousMemory>,
    pair: QueuePair,
}

/// The properties of an end that tests vary.
#[derive(Clone, Copy)]
struct Shape {
    shared: bool,
    channel: bool,
    send_requests: u32,
    completions: u32,
}

/// All rights of a peer.
const EVERYTHING: RegionAccess = RegionAccess::REMOTE_WRITE
    .and(RegionAccess::REMOTE_READ)
    .and(RegionAccess::REMOTE_ATOMIC);

const USUAL: Shape = Shape {
    shared: true,
    channel: false,
    send_requests: 15,
    completions: 127,
};

impl End {
    fn new(provider: &Arc<dyn Provider>, shape: Shape) -> Self {
        let device = Device::open(provider, DEVICE).unwrap();
        let domain = ProtectionDomain::new(&device).unwrap();
        let completions = if shape.channel {
            CompletionQueue::with_channel(&device, shape.completions).unwrap()
        } else {
            CompletionQueue::polled(&device, shape.completions).unwrap()
        };
        let shared = shape
            .shared
            .then(|| ReceiveQueue::shared(&domain, 15, 2).unwrap());
        let mut builder = QueuePairBuilder::new(&domain, &completions)
            .send_requests(shape.send_requests)
            .receives(14, 2)
            .remote_access(EVERYTHING);
        if let Some(shared) = &shared {
            builder = builder.shared_receive_queue(shared);
        }
        Self {
            pair: builder.build(1, ConnectionSettings::default()).unwrap(),
            sends: MemoryRegion::register(&domain, memory(), RegionAccess::SEND).unwrap(),
            receives: MemoryRegion::register(&domain, memory(), EVERYTHING).unwrap(),
            shared,
            completions,
            device,
            domain,
        }
    }

    fn receive_queue(&mut self) -> &mut ReceiveQueue {
        match &mut self.shared {
            Some(shared) => shared,
            None => self.pair.receive_queue().unwrap(),
        }
    }

    /// Posts `count` receives of 1 KiB each, in slots from 0.
    fn post_receives(&mut self, count: usize) {
        let queue = match &mut self.shared {
            Some(shared) => shared,
            None => self.pair.receive_queue().unwrap(),
        };
        let entries: Vec<_> = (0..count)
            .map(|slot| [self.receives.entry(slot * 1024..(slot + 1) * 1024)])
            .collect();
        let mut batch = queue.batch();
        for (slot, entries) in entries.iter().enumerate() {
            let id = WorkId::new(Operation::Receive, slot as u32, 0);
            batch.push(&ReceiveRequest::new(id, entries)).unwrap();
        }
        assert_eq!(batch.post(), Ok(count as u32));
    }

    fn poll(&mut self) -> Vec<WorkCompletion> {
        let mut room = [WorkCompletion::EMPTY; 64];
        self.completions.poll(&mut room).unwrap().to_vec()
    }

    fn local(&self) -> LocalPort {
        LocalPort::with_gid(&self.device, 1, |_| true).unwrap()
    }
}

fn connect(one: &mut End, other: &mut End) {
    let (local_one, local_other) = (one.local(), other.local());
    let (psn_one, psn_other) = (
        FirstSequence::from_random(0x1111),
        FirstSequence::from_random(0x2222),
    );
    let endpoint_one = one.pair.endpoint(psn_one, &local_one);
    let endpoint_other = other.pair.endpoint(psn_other, &local_other);
    one.pair
        .connect(psn_one, local_one, endpoint_other)
        .unwrap();
    other
        .pair
        .connect(psn_other, local_other, endpoint_one)
        .unwrap();
}

/// Two ends on one device, connected, without receives.
fn connected(fake: &FakeProvider, shape: Shape) -> (End, End) {
    let provider = fake.provider();
    let (mut one, mut other) = (End::new(&provider, shape), End::new(&provider, shape));
    connect(&mut one, &mut other);
    (one, other)
}

fn send_id(slot: u32) -> WorkId {
    WorkId::new(Operation::Send, slot, 5)
}

/// A moment, and one that many seconds later.
fn moments() -> (Instant, Instant) {
    let now = Instant::now();
    (now, now + Duration::from_secs(3600))
}
