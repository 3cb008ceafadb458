//! Datagrams on this machine's device; without a device, the error that says so (`verbs_device.rs`).
#![cfg(feature = "verbs")]

#[path = "two_ends/mod.rs"]
#[allow(dead_code, reason = "only the device is chosen by it")]
mod two_ends;

use std::process::Command;
use std::time::Instant;
use std::{env, fs};

use ibex_verbs::{
    AddressHandle, AddressVector, AnonymousMemory, CompletionWait, ConnectionSettings,
    DatagramBuffer, DatagramDestination, DatagramQueuePair, Device, FirstSequence, Gid,
    GlobalRoute, LocalPort, MemoryRegion, MulticastGroup, Operation, ProtectionDomain, PushError,
    QKey, QueuePairBuilder, RegionAccess, ScatterEntry, SendRequest, WorkCompletion, WorkId,
    discovery::Choice,
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
    fn new(device: &Device, port: u8, gid: Gid) -> Self {
        let domain = ProtectionDomain::new(device).unwrap();
        let completions = CompletionWait::open(device, 16).unwrap();
        let builder = QueuePairBuilder::new(&domain, completions.queue()).receives(4, 1);
        let mut pair = builder.build_datagram(port, KEY).unwrap();
        let memory = AnonymousMemory::new(4096).unwrap();
        let memory = MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE).unwrap();
        let mut batch = pair.receive_batch().unwrap();
        batch.push(RECEIVE, BUFFER.entry(&memory)).unwrap();
        batch.post().unwrap();
        let local = LocalPort::with_gid(device, port, |one| one.gid == gid).unwrap();
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
    let post = || Post::new(&device, choice.port, choice.gid.gid);
    test(&choice, post(), post());
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

/// The two devices of `cargo xtask vm --pair`, with the link between them. Elsewhere the test passes
/// without doing anything, unless `IBEX_TEST_GUEST` claims that this is that guest.
#[test]
fn attach_mcast_brings_a_group_from_another_device() {
    let settings = fs::read_to_string("/run/vm/settings").unwrap_or_default();
    if !settings.lines().any(|line| line == "topology=pair") {
        assert_ne!(env::var("IBEX_TEST_GUEST").as_deref(), Ok("pair"));
        println!("this is not the guest with a link");
        return;
    }
    let (provider, _) = chosen().expect("the guest has devices");
    let end = |name, address: &str| {
        let device = Device::open(&provider, name).unwrap();
        Post::new(&device, 1, Gid::of(address.parse().unwrap()))
    };
    let (mut one, mut other) = (end("rxe0", "192.0.2.1"), end("rxe1", "192.0.2.2"));
    let group = MulticastGroup::new(Gid::of("239.1.2.3".parse().unwrap()), 0).unwrap();
    other.pair.attach_multicast(group).unwrap();
    // The kernel hands a packet to soft-RoCE only if the interface listens to the group.
    let there = env::var("VM_PEER").unwrap_or_default();
    let join = format!("{there} ip address add 239.1.2.3/32 dev v1 autojoin");
    let joined = Command::new("sh").args(["-c", &join]).status();
    assert!(joined.unwrap().success(), "{join}");
    let vector = AddressVector {
        route: Some(GlobalRoute {
            destination: group.gid(),
            source_index: one.local.gid.index as u8,
            hop_limit: 1,
            traffic_class: 0,
            flow_label: 0,
        }),
        port: 1,
        ..AddressVector::default()
    };
    let address = AddressHandle::new(&one.domain, &vector).unwrap();
    one.send(b"to the group", &address, MulticastGroup::QUEUE_PAIR);
    let (completion, bytes) = other.receive();
    assert_eq!(bytes, b"to the group");
    assert_eq!(completion.datagram().unwrap().queue_pair, one.pair.number());
    other.pair.detach_multicast(group).unwrap();
}
