//! Reads, atomics, and what a request can ask for beside its operation.

use rustix::io::Errno;

use super::*;
use crate::{
    AtomicRequest, AtomicResults, AtomicSupport, CompletionKind, CompletionStatus, PushError,
    ReadLimits, ReadRequest, RemoteAddress, RemoteKey, SendRequest,
    abi::{send_flags, wr_opcode},
    provider::fake::Call,
};

fn read_id(slot: u32) -> WorkId {
    WorkId::new(Operation::Read, slot, 1)
}

fn atomic_id(slot: u32) -> WorkId {
    WorkId::new(Operation::Atomic, slot, 1)
}

#[test]
fn read_brings_bytes_into_several_targets() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    put(&other.receives, 3000, b"far memory");
    let targets = [one.receives.target(10..13), one.receives.target(100..107)];
    let mut batch = one.pair.send_batch();
    let read = ReadRequest::new(read_id(0), &targets, other.receives.remote(3000));
    batch.push_read(&read.signaled().fenced()).unwrap();
    assert_eq!(batch.post(), Ok(1));

    assert_eq!(get(&one.receives, 10, 3), b"far");
    assert_eq!(get(&one.receives, 100, 7), b" memory");
    let done = one.poll();
    assert_eq!(done[0].id(), read_id(0));
    let completed = done[0].outcome().unwrap();
    assert_eq!(
        (completed.kind, completed.bytes),
        (CompletionKind::Read, 10)
    );
    let posted = &fake.posted()[0];
    assert_eq!(posted.opcode, wr_opcode::RDMA_READ);
    assert_eq!(posted.flags, send_flags::SIGNALED | send_flags::FENCE);
    one.pair.retire_sends(1);
}

#[test]
fn read_of_what_is_not_granted_fails_and_writes_nothing() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    // The region of sends lets no peer in.
    let targets = [one.receives.target(0..8)];
    let mut batch = one.pair.send_batch();
    let read = ReadRequest::new(read_id(0), &targets, other.sends.remote(0));
    batch.push_read(&read.signaled()).unwrap();
    batch.post().unwrap();
    let failure = one.poll()[0].outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RemoteAccess);
    assert_eq!(failure.id, read_id(0));
    assert_eq!(get(&one.receives, 0, 8), [0; 8]);
}

#[test]
fn a_read_lands_only_in_memory_that_the_device_may_write() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let target = std::panic::AssertUnwindSafe(|| end.sends.target(0..8).bytes());
    assert!(std::panic::catch_unwind(target).is_err());
    assert_eq!(end.receives.target(0..8).bytes(), 8);
}

#[test]
fn max_rd_atomic_is_what_both_ends_and_their_devices_allow() {
    let fake = one_device();
    fake.change(DEVICE, |device| {
        device.attributes.max_initiator_depth = 6;
        device.attributes.max_responder_resources = 7;
    });
    let provider = fake.provider();
    let (mut one, mut other) = (End::new(&provider, USUAL), End::new(&provider, USUAL));
    let settings = ConnectionSettings::default();
    let rebuild = |end: &End, depth, resources| {
        let settings = settings.read_depth(depth).read_resources(resources);
        let builder = QueuePairBuilder::new(&end.domain, &end.completions);
        builder.build(1, settings).unwrap()
    };
    one.pair = rebuild(&one, 16, 2);
    other.pair = rebuild(&other, 4, 16);
    let limits = |depth, resources| ReadLimits { depth, resources };
    let (ours, theirs) = (one.pair.read_limits(), other.pair.read_limits());
    assert_eq!((ours, theirs), (limits(6, 2), limits(4, 7)));
    one.pair.set_peer_read_limits(theirs);
    other.pair.set_peer_read_limits(ours);
    connect(&mut one, &mut other);
    assert_eq!(one.pair.read_limits(), limits(6, 2));
    assert_eq!(other.pair.read_limits(), limits(2, 6));
    let set: Vec<_> = fake
        .modifications()
        .iter()
        .map(|step| step.attributes)
        .map(|attributes| (attributes.responder_resources, attributes.initiator_depth))
        .filter(|pair| *pair != (0, 0))
        .collect();
    assert_eq!(set, [(2, 0), (0, 6), (6, 0), (0, 2)]);
}

#[test]
fn read_without_depth_is_refused_here() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let none = ReadLimits {
        depth: 1,
        resources: 0,
    };
    one.pair.set_peer_read_limits(none);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let mut result = results.place().unwrap();
    let remote = other.receives.remote(0);
    let mut batch = one.pair.send_batch();
    let read = ReadRequest::new(read_id(0), &[], remote);
    assert_eq!(batch.push_read(&read), Err(PushError::NoReads));
    let add = AtomicRequest::fetch_and_add(atomic_id(0), remote, 1);
    let refused = batch.push_atomic(&add, &mut result);
    assert_eq!(refused, Err(PushError::NoReads));
    assert!(!result.is_outstanding());
    assert_eq!(fake.doorbells().0, 0);
}

/// Does one atomic and returns the value before it.
fn atomic(one: &mut End, request: &AtomicRequest, results: &AtomicResults) -> u64 {
    let mut result = results.place().unwrap();
    let mut batch = one.pair.send_batch();
    batch.push_atomic(request, &mut result).unwrap();
    assert_eq!(batch.post(), Ok(1));
    one.pair.retire_sends(1);
    let done = one.poll();
    result.take(&done[0]).unwrap().unwrap()
}

fn value(region: &MemoryRegion<AnonymousMemory>, offset: usize) -> u64 {
    u64::from_ne_bytes(get(region, offset, 8).try_into().unwrap())
}

#[test]
fn compare_and_swap_stores_only_over_the_expected_value() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let start = 0x0123_4567_89ab_cdef_u64;
    put(&other.receives, 64, &start.to_ne_bytes());
    let remote = other.receives.remote(64);
    let swap = |expected, new| AtomicRequest::compare_and_swap(atomic_id(1), remote, expected, new);

    assert_eq!(atomic(&mut one, &swap(start + 1, 7), &results), start);
    assert_eq!(value(&other.receives, 64), start);
    assert_eq!(atomic(&mut one, &swap(start, 7), &results), start);
    assert_eq!(value(&other.receives, 64), 7);
    let posted = fake.posted();
    assert_eq!(posted[0].opcode, wr_opcode::COMPARE_AND_SWAP);
    assert_eq!(posted[0].operands, [start + 1, 7]);
    assert_eq!(posted[0].remote, (remote.address, remote.rkey));
}

#[test]
fn fetch_and_add_wraps() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    put(&other.receives, 8, &(u64::MAX - 1).to_ne_bytes());
    let add = AtomicRequest::fetch_and_add(atomic_id(0), other.receives.remote(8), 5).fenced();
    assert_eq!(atomic(&mut one, &add, &results), u64::MAX - 1);
    assert_eq!(value(&other.receives, 8), 3);
    assert_eq!(atomic(&mut one, &add, &results), 3);
    assert_eq!(
        fake.posted()[0].flags,
        send_flags::SIGNALED | send_flags::FENCE
    );
}

#[test]
fn atomics_that_no_device_takes_are_refused_here() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let mut result = results.place().unwrap();
    let remote = other.receives.remote(12);
    let mut batch = one.pair.send_batch();
    let add = AtomicRequest::fetch_and_add(atomic_id(0), remote, 1);
    let refused = batch.push_atomic(&add, &mut result).unwrap_err();
    let address = remote.address;
    assert_eq!(refused, PushError::Unaligned { address });
    assert!(batch.is_empty() && !result.is_outstanding());

    fake.change(DEVICE, |device| {
        device.attributes.atomics = AtomicSupport::None;
    });
    let (mut without, _peer) = connected(&fake, USUAL);
    let mut batch = without.pair.send_batch();
    let add = AtomicRequest::fetch_and_add(atomic_id(0), other.receives.remote(0), 1);
    let refused = batch.push_atomic(&add, &mut result).unwrap_err();
    assert_eq!(refused, PushError::NoAtomics);
}

#[test]
fn the_place_of_a_result_is_in_use_until_its_completion() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    fake.hold_sends(true);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let mut result = results.place().unwrap();
    let remote = other.receives.remote(0);
    let add = AtomicRequest::fetch_and_add(atomic_id(3), remote, 1);
    let mut batch = one.pair.send_batch();
    batch.push_atomic(&add, &mut result).unwrap();
    let again = batch.push_atomic(&add, &mut result);
    let id = atomic_id(3);
    assert_eq!(again, Err(PushError::ResultOutstanding { id }));
    batch
        .push(&SendRequest::send(send_id(9), &[]).signaled())
        .unwrap();
    batch.post().unwrap();
    other.post_receives(1);
    fake.hold_sends(false);
    let done = one.poll();
    // Another request's completion says nothing about the result.
    assert_eq!(result.take(&done[1]), Ok(None));
    assert!(result.is_outstanding());
    assert_eq!(result.take(&done[0]), Ok(Some(0)));
    assert_eq!(result.take(&done[0]), Ok(None));

    // A place that is dropped while the device may write to it is not given to another request.
    let places = 4096 / 8;
    let mut others: Vec<_> = std::iter::from_fn(|| results.place()).collect();
    assert!(others.len() >= places - 1);
    fake.hold_sends(true);
    let mut batch = one.pair.send_batch();
    batch.push_atomic(&add, &mut result).unwrap();
    batch.post().unwrap();
    drop(result);
    assert!(results.place().is_none());
    others.pop();
    assert!(results.place().is_some());
}

#[test]
fn a_failed_atomic_gives_no_value() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let mut result = results.place().unwrap();
    let mut batch = one.pair.send_batch();
    let request = AtomicRequest::fetch_and_add(atomic_id(0), other.sends.remote(0), 1);
    batch.push_atomic(&request, &mut result).unwrap();
    batch.post().unwrap();
    let failure = result.take(&one.poll()[0]).unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RemoteAccess);
    assert_eq!(value(&other.sends, 0), 0);
}

#[test]
fn a_refused_atomic_keeps_its_place_in_use() {
    let fake = one_device();
    let (mut one, other) = connected(&fake, USUAL);
    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let mut result = results.place().unwrap();
    fake.refuse(Call::PostSend, Errno::NOMEM);
    let mut batch = one.pair.send_batch();
    let request = AtomicRequest::fetch_and_add(atomic_id(0), other.receives.remote(0), 1);
    batch.push_atomic(&request, &mut result).unwrap();
    assert_eq!(batch.post().unwrap_err().accepted, 0);
    assert_eq!(one.pair.outstanding_sends(), 0);
    assert!(result.is_outstanding());
}

#[test]
fn send_with_invalidate_of_an_unknown_key_breaks_the_connection() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(1);
    let mut batch = one.pair.send_batch();
    let key = RemoteKey::from_raw(0x8012_3400);
    let send = SendRequest::send_with_invalidate(send_id(0), &[], key).signaled();
    batch.push(&send).unwrap();
    batch.post().unwrap();
    let failure = one.poll()[0].outcome().unwrap_err();
    assert_eq!(failure.status, CompletionStatus::RemoteInvalidRequest);
    assert!(other.poll()[0].outcome().is_err());
}

#[test]
#[should_panic(expected = "carries no immediate data")]
fn a_message_invalidates_or_carries_immediate_data() {
    let key = RemoteKey::from_raw(1);
    let _ = SendRequest::send_with_invalidate(send_id(0), &[], key).with_immediate(1);
}

#[test]
fn inline_solicited_and_fence_are_for_each_request_that_may_have_them() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    other.post_receives(2);
    let bytes = [crate::ScatterEntry::unregistered(b"inline")];
    let remote = other.receives.remote(4096);
    let mut batch = one.pair.send_batch();
    let write = SendRequest::write(send_id(0), &bytes, remote)
        .inline()
        .fenced();
    batch.push(&write).unwrap();
    batch.push(&write.with_immediate(1).solicited()).unwrap();
    batch
        .push(&SendRequest::send(send_id(1), &bytes).inline().signaled())
        .unwrap();
    assert_eq!(batch.post(), Ok(3));
    assert_eq!(get(&other.receives, 4096, 6), b"inline");
    let flags: Vec<_> = fake.posted().iter().map(|send| send.flags).collect();
    use send_flags::{FENCE, INLINE, SIGNALED, SOLICITED};
    assert_eq!(
        flags,
        [
            INLINE | FENCE,
            INLINE | FENCE | SOLICITED,
            INLINE | SIGNALED
        ]
    );
    assert_eq!(other.poll().len(), 2);
}

#[test]
fn remote_places_count_from_the_one_that_was_told() {
    let place = RemoteAddress {
        address: u64::MAX,
        rkey: 7,
    };
    let next = place.plus(9);
    assert_eq!((next.address, next.key()), (8, RemoteKey::from_raw(7)));
}
