//! The verbs that channels do without, on this machine's device; without a device, the error that
//! says so (`verbs_device.rs`).
#![cfg(feature = "verbs")]

#[path = "two_ends/mod.rs"]
mod two_ends;

use std::sync::Arc;
use std::time::Duration;

use ibex_verbs::{
    AnonymousMemory, AtomicRequest, AtomicResults, BindRequest, CompletionKind, CompletionPolling,
    CompletionStatus, ConnectionSettings, Device, MemoryRegion, MemoryWindow, OnDeviceMemory,
    Operation, QueuePairState, ReadRequest, RegionAccess, RemoteAddress, SendRequest, VerbsError,
    WindowKind, WindowState, WorkCompletion, WorkId, discovery::Choice, provider::Provider,
};

use two_ends::{End, Like, chosen, connected, id, tear_down};

type Region = Arc<MemoryRegion<AnonymousMemory>>;

/// Both ends, each way in which completions are polled.
fn each_way(mut test: impl FnMut(&Arc<dyn Provider>, &Choice, &mut End, &mut End)) {
    let Some((provider, choice)) = chosen() else {
        return;
    };
    for polling in [CompletionPolling::Plain, CompletionPolling::Extended] {
        let like = Like {
            polling,
            // A guest may be starved for longer than the usual time-out, and soft-RoCE does not always
            // survive that an atomic is sent again.
            connection: ConnectionSettings::default()
                .timeout(Duration::from_secs(8))
                .unwrap()
                .read_depth(4)
                .read_resources(4),
            ..Like::default()
        };
        let (mut one, mut other) = connected(&provider, &choice, &like);
        test(&provider, &choice, &mut one, &mut other);
        tear_down(one);
        tear_down(other);
    }
}

fn region(end: &End, access: RegionAccess) -> Region {
    let memory = AnonymousMemory::new(4096).unwrap();
    Arc::new(MemoryRegion::register(&end.domain, memory, access).unwrap())
}

fn put(region: &Region, offset: usize, bytes: &[u8]) {
    assert!(offset + bytes.len() <= region.bytes());
    // SAFETY: in bounds; no request is outstanding there and there is no reference to it.
    unsafe {
        let place = region.base().as_ptr().add(offset);
        place.copy_from(bytes.as_ptr(), bytes.len());
    }
}

fn get(region: &Region, offset: usize, length: usize) -> Vec<u8> {
    assert!(offset + length <= region.bytes());
    let mut bytes = vec![0; length];
    // SAFETY: in bounds; the completion of the bytes that arrived there has been seen.
    unsafe {
        let place = region.base().as_ptr().add(offset);
        place.copy_to(bytes.as_mut_ptr(), length);
    }
    bytes
}

/// Waits for one completion and frees the places of the send queue that it stands for.
fn done(end: &mut End, sends: u32) -> WorkCompletion {
    let found = end.wait(1);
    assert_eq!(found.len(), 1);
    end.pair.retire_sends(sends);
    found[0]
}

/// Reads bytes of the peer. Returns the status, where it failed.
fn read(
    end: &mut End,
    into: &Region,
    length: usize,
    remote: RemoteAddress,
) -> Result<(), CompletionStatus> {
    let targets = [into.target(0..length)];
    let id = WorkId::new(Operation::Read, 1, 1);
    let mut batch = end.pair.send_batch();
    let request = ReadRequest::new(id, &targets, remote).signaled();
    batch.push_read(&request).unwrap();
    batch.post().unwrap();
    let completion = done(end, 1);
    assert_eq!(completion.id(), id);
    match completion.outcome() {
        Ok(completed) => {
            assert_eq!(completed.kind, CompletionKind::Read);
            Ok(())
        }
        Err(failure) => Err(failure.status),
    }
}

#[test]
fn read_brings_what_the_peer_has() {
    each_way(|_, _, one, other| {
        let (into, from) = (
            region(one, RegionAccess::RECEIVE),
            region(other, RegionAccess::REMOTE_READ),
        );
        put(&from, 100, b"read by the peer");
        assert_eq!(read(one, &into, 16, from.remote(100)), Ok(()));
        assert_eq!(get(&into, 0, 16), b"read by the peer");

        // A write that waits for the read sends what the read has brought.
        let back = region(other, RegionAccess::REMOTE_WRITE);
        let targets = [into.target(200..204)];
        let entries = [into.entry(200..204)];
        let mut batch = one.pair.send_batch();
        batch
            .push_read(&ReadRequest::new(id(0), &targets, from.remote(100)))
            .unwrap();
        let write = SendRequest::write(id(1), &entries, back.remote(8));
        batch.push(&write.fenced().signaled()).unwrap();
        batch.post().unwrap();
        assert!(done(one, 2).outcome().is_ok());
        assert_eq!(get(&back, 8, 4), b"read");
    });
}

#[test]
fn compare_and_swap_and_fetch_and_add_bring_the_value_before() {
    each_way(|_, _, one, other| {
        let memory = region(other, RegionAccess::REMOTE_ATOMIC);
        put(&memory, 64, &40_u64.to_ne_bytes());
        let results = AtomicResults::new(&one.domain, 1).unwrap();
        let id = WorkId::new(Operation::Atomic, 1, 1);
        let remote = memory.remote(64);
        let mut atomic = |request: AtomicRequest| {
            let mut result = results.place().unwrap();
            let mut batch = one.pair.send_batch();
            batch.push_atomic(&request, &mut result).unwrap();
            batch.post().unwrap();
            result.take(&done(one, 1)).unwrap().unwrap()
        };
        assert_eq!(atomic(AtomicRequest::fetch_and_add(id, remote, 2)), 40);
        assert_eq!(
            atomic(AtomicRequest::compare_and_swap(id, remote, 41, 7)),
            42
        );
        assert_eq!(get(&memory, 64, 8), 42_u64.to_ne_bytes());
        let swap = AtomicRequest::compare_and_swap(id, remote, 42, u64::MAX);
        assert_eq!(atomic(swap.fenced()), 42);
        assert_eq!(
            atomic(AtomicRequest::fetch_and_add(id, remote, 1)),
            u64::MAX
        );
        assert_eq!(get(&memory, 64, 8), 0_u64.to_ne_bytes());
    });
}

fn bind(end: &mut End, window: &mut MemoryWindow, region: &Region, slot: u32) -> RemoteAddress {
    let id = WorkId::new(Operation::Window, slot, 1);
    let request = BindRequest::new(id, 8..24, RegionAccess::REMOTE_READ);
    let place = end.pair.bind_window(window, region, &request).unwrap();
    let completion = done(end, 1);
    assert_eq!(window.take(&completion), Ok(true));
    assert_eq!(window.state(), WindowState::Bound);
    place
}

fn windows(end: &End) -> Region {
    region(end, RegionAccess::RECEIVE.and(RegionAccess::WINDOWS))
}

#[test]
fn bind_and_local_invalidate_open_and_shut_windows_of_both_types() {
    for kind in [WindowKind::One, WindowKind::Two] {
        each_way(|_, _, one, other| {
            let (into, memory) = (region(one, RegionAccess::RECEIVE), windows(other));
            put(&memory, 8, b"by a window only");
            let mut window = MemoryWindow::new(&other.domain, kind).unwrap();
            let first = bind(other, &mut window, &memory, 0);
            assert_eq!(read(one, &into, 16, first), Ok(()));
            assert_eq!(get(&into, 0, 16), b"by a window only");
            let id = WorkId::new(Operation::Window, 1, 1);
            other.pair.invalidate_window(&mut window, id).unwrap();
            let completion = done(other, 1);
            assert_eq!(window.take(&completion), Ok(true));
            // Soft-RoCE's kernel would panic.
            assert!(other.pair.invalidate_window(&mut window, id).is_err());

            let second = bind(other, &mut window, &memory, 2);
            assert_ne!(first.rkey, second.rkey);
            assert_eq!(read(one, &into, 16, second), Ok(()));
            let refused = read(one, &into, 16, first);
            assert_eq!(refused, Err(CompletionStatus::RemoteAccess));
        });
    }
}

#[test]
fn send_with_invalidate_shuts_the_peers_window() {
    each_way(|_, _, one, other| {
        other.post_receives(2);
        let (into, memory) = (region(one, RegionAccess::RECEIVE), windows(other));
        let mut window = MemoryWindow::new(&other.domain, WindowKind::Two).unwrap();
        let request = BindRequest::new(
            WorkId::new(Operation::Window, 0, 1),
            0..64,
            RegionAccess::REMOTE_READ,
        );
        let place = other
            .pair
            .bind_window(&mut window, &memory, &request.peer_invalidates())
            .unwrap();
        let completion = done(other, 1);
        assert_eq!(window.take(&completion), Ok(true));
        assert_eq!(read(one, &into, 64, place), Ok(()));
        let mut batch = one.pair.send_batch();
        let send = SendRequest::send_with_invalidate(id(0), &[], place.key());
        batch.push(&send.signaled().solicited()).unwrap();
        batch.post().unwrap();
        assert!(done(one, 1).outcome().is_ok());
        let arrived = other.wait(1);
        assert_eq!(arrived[0].invalidated(), Some(place.key()));
        assert!(window.note_invalidated(&arrived[0]));
        let refused = read(one, &into, 64, place);
        assert_eq!(refused, Err(CompletionStatus::RemoteAccess));
    });
}

#[test]
fn query_qp_query_srq_and_query_device_ex_tell_what_is_there() {
    each_way(|provider, choice, one, other| {
        let queried = one.pair.query().unwrap();
        assert_eq!(queried.attributes.state, QueuePairState::ReadyToSend);
        assert_eq!(queried.attributes.destination, other.pair.number());
        assert_eq!(queried.attributes.initiator_depth, 4);
        assert_eq!(queried.attributes.responder_resources, 4);
        assert_eq!(queried.sizes.inline_bytes, one.pair.max_inline_bytes());
        let shared = one.receive_queue();
        assert_eq!(shared.query().unwrap().requests, shared.capacity());
        shared.arm_limit(3).unwrap();
        assert_eq!(shared.query().unwrap().limit, 3);

        let attributes = one.device.attributes();
        assert!(attributes.max_windows > 0 && attributes.capabilities != 0);
        let port = one.device.query_port(choice.port).unwrap();
        assert!(port.width.lanes().is_some() && port.speed.megabits().is_some());
        let listed = provider.devices().unwrap();
        let entry = listed.iter().find(|entry| entry.name == one.device.name());
        let guid = entry.unwrap().guid;
        assert_eq!(guid, attributes.node_guid);
        let again = Device::open_by_guid(provider, guid).unwrap();
        assert_eq!(again.attributes().node_guid, guid);
    });
}

/// Prints what the device lacks; another error fails.
fn unless_unsupported<T>(made: Result<T, VerbsError>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(error @ VerbsError::Unsupported { .. }) => {
            println!("{error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn reg_mr_on_demand_and_alloc_dm_work_or_are_refused_by_type() {
    each_way(|_, _, one, _| {
        let memory = AnonymousMemory::new(64 << 10).unwrap();
        let access = RegionAccess::RECEIVE.and(RegionAccess::ON_DEMAND);
        unless_unsupported(MemoryRegion::register(&one.domain, memory, access));
        if let Some(memory) = unless_unsupported(OnDeviceMemory::new(&one.device, 64, 3)) {
            memory.write(8, b"device").unwrap();
            let mut bytes = [0; 6];
            memory.read(8, &mut bytes).unwrap();
            assert_eq!(&bytes, b"device");
        }
    });
}
