//! Datagrams on this machine's device; without a device, the error that says so (`verbs_device.rs`).
#![cfg(feature = "verbs")]

#[path = "two_ends/mod.rs"]
#[allow(dead_code, reason = "only the device is chosen by it")]
mod two_ends;

use std::time::Instant;

use ibex_verbs::{
    AddressHandle, AnonymousMemory, CompletionWait, ConnectionSettings, DatagramBuffer,
    DatagramDestination, DatagramQueuePair, Device, FirstSequence, Gid, LocalPort, MemoryRegion,
    MulticastGroup, Operation, ProtectionDomain, PushError, QKey, QueuePairBuilder, RegionAccess,
    ScatterEntry, SendRequest, WorkCompletion, WorkId, discovery::Choice,
};

use two_ends::{PATIENCE, chosen};

const KEY: QKey = QKey(0x1234);
const RECEIVE: WorkId = WorkId::new(Operation::Receive, 0, 0);
const SEND: WorkId = WorkId::new(Operation::Send, 0, 0);
const BUFFER: DatagramBuffer = DatagramBuffer::new(0, 1000);

/// A queue pair of datagrams, and all that it needs.
struct Post {
    pair: DatagramQueuePair,
    completions: CompletionWait,
    memory: MemoryRegion<AnonymousMemory>,
    domain: ProtectionDomain,
    local: LocalPort,
}

impl Post {
    fn new(device: &Device, choice: &Choice) -> Self {
        let domain = ProtectionDomain::new(device).unwrap();
        let completions = CompletionWait::open(device, 16).unwrap();
        let builder = QueuePairBuilder::new(&domain, completions.queue()).receives(4, 1);
        let mut pair = builder.build_datagram(choice.port, KEY).unwrap();
        let memory = AnonymousMemory::new(4096).unwrap();
        let memory = MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE).unwrap();
        let mut batch = pair.receive_batch().unwrap();
        batch.push(RECEIVE, BUFFER.entry(&memory)).unwrap();
        batch.post().unwrap();
        let local = LocalPort::with_gid(device, choice.port, |gid| *gid == choice.gid).unwrap();
        pair.start(FirstSequence::from_random(1), local).unwrap();
        Self {
            pair,
            completions,
            memory,
            domain,
            local,
        }
    }

    /// Sends bytes, and waits until they have gone out.
    fn send(&mut self, bytes: &[u8], address: &AddressHandle, queue_pair: u32) {
        let to = DatagramDestination {
            address,
            queue_pair,
            key: KEY,
        };
        let entries = [ScatterEntry::unregistered(bytes)];
        let request = SendRequest::send(SEND, &entries);
        let mut batch = self.pair.send_batch();
        batch.push(&request.inline().signaled(), &to).unwrap();
        batch.post().unwrap();
        assert_eq!(self.wait().id(), SEND);
        self.pair.retire_sends(1);
    }

    fn wait(&mut self) -> WorkCompletion {
        let mut room = [WorkCompletion::EMPTY; 1];
        let deadline = Some(Instant::now() + PATIENCE);
        let found = self.completions.wait(&mut room, deadline).unwrap();
        assert_eq!(found.len(), 1, "a completion comes in time");
        found[0].outcome().unwrap();
        found[0]
    }

    /// Waits for a datagram; returns its completion and its bytes.
    fn receive(&mut self) -> (WorkCompletion, Vec<u8>) {
        let completion = self.wait();
        let place = BUFFER.received(&completion).unwrap();
        let mut bytes = vec![0; place.len()];
        // SAFETY: in bounds; the completion of what arrived there has been seen.
        unsafe {
            let start = self.memory.base().as_ptr().add(place.start);
            start.copy_to(bytes.as_mut_ptr(), bytes.len());
        }
        (completion, bytes)
    }
}

fn both(test: impl FnOnce(&Choice, Post, Post)) {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    let device = Device::open(&provider, &choice.device).unwrap();
    test(
        &choice,
        Post::new(&device, &choice),
        Post::new(&device, &choice),
    );
}

#[test]
fn create_ah_from_wc_leads_back_to_the_sender() {
    both(|choice, mut one, mut other| {
        let remote = other
            .pair
            .endpoint(FirstSequence::from_random(1), &other.local);
        let settings = ConnectionSettings::default();
        let address = AddressHandle::to(&one.domain, &one.local, &remote, settings).unwrap();
        one.send(b"there", &address, other.pair.number());
        let (completion, bytes) = other.receive();
        assert_eq!(bytes, b"there");
        let source = completion.datagram().unwrap();
        assert_eq!(source.queue_pair, one.pair.number());
        // SAFETY: the datagram has arrived, and its place was not posted again.
        let header = unsafe { BUFFER.header(&other.memory) };
        let (domain, port) = (&other.domain, choice.port);
        let back = AddressHandle::from_completion(domain, port, &completion, &header).unwrap();
        other.send(b"and back", &back, source.queue_pair);
        assert_eq!(one.receive().1, b"and back");

        let to = DatagramDestination {
            address: &address,
            queue_pair: source.queue_pair,
            key: KEY,
        };
        let most = one.pair.max_bytes() as usize;
        let bytes = vec![0; most + 1];
        let entries = [ScatterEntry::unregistered(&bytes)];
        let mut batch = one.pair.send_batch();
        let long = SendRequest::send(SEND, &entries).inline();
        let refused = batch.push(&long, &to).unwrap_err();
        assert!(matches!(refused, PushError::DatagramTooLong { .. }));
    });
}

#[test]
fn attach_mcast_and_detach_mcast_are_taken() {
    both(|_, mut one, other| {
        let group = MulticastGroup::new(Gid::of("239.1.2.3".parse().unwrap()), 0).unwrap();
        one.pair.attach_multicast(group).unwrap();
        one.pair.detach_multicast(group).unwrap();
        // Dropped while it is attached.
        one.pair.attach_multicast(group).unwrap();
        drop((one, other));
    });
}
