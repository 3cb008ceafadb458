//! Registrations that change, memory without an address here, and memory that is not pinned.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{Errno, pread, pwrite};

use super::*;
use crate::{
    AtomicRequest, AtomicResults, CompletionStatus, DeviceMemory, ForeignRegion, OnDeviceMemory,
    Prefetch, ReadRequest, SendRequest, VerbsError, provider::fake::Call,
};

/// Writes four bytes into memory of the peer. Returns the status, where that failed.
fn write(end: &mut End, remote: crate::RemoteAddress) -> Result<(), CompletionStatus> {
    put(&end.sends, 0, b"four");
    let entries = [end.sends.entry(0..4)];
    let mut batch = end.pair.send_batch();
    let write = SendRequest::write(send_id(0), &entries, remote).signaled();
    batch.push(&write).unwrap();
    batch.post().unwrap();
    end.pair.retire_sends(1);
    let done = end.poll();
    done[0]
        .outcome()
        .map(|_| ())
        .map_err(|failure| failure.status)
}

#[test]
fn rereg_mr_changes_the_rights() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    let before = other.receives.remote(0);
    assert_eq!(write(&mut one, before), Ok(()));
    other.receives.change_access(RegionAccess::RECEIVE).unwrap();
    assert_eq!(other.receives.access(), RegionAccess::RECEIVE);
    let after = other.receives.remote(0);
    assert_eq!(write(&mut one, after), Err(CompletionStatus::RemoteAccess));
    drop((one, other));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn rereg_mr_puts_other_memory_in_place() {
    let fake = one_device();
    let (mut one, mut other) = connected(&fake, USUAL);
    put(&other.receives, 8, b"old memory");
    let before = other.receives.remote(0);
    let old = other
        .receives
        .replace_memory(AnonymousMemory::new(128 << 10).unwrap())
        .unwrap();
    assert_eq!((old.bytes(), other.receives.bytes()), (64 << 10, 128 << 10));
    assert_eq!(write(&mut one, other.receives.remote(100_000)), Ok(()));
    assert_eq!(get(&other.receives, 100_000, 4), b"four");
    assert_eq!(get(&other.receives, 8, 10), [0; 10]);
    drop(old);
    assert_eq!(write(&mut one, before), Err(CompletionStatus::RemoteAccess));
}

#[test]
fn rereg_mr_moves_a_region_to_another_domain() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    let second = ProtectionDomain::new(&end.device).unwrap();
    end.receives.move_to(&second).unwrap();
    // The domain of before no longer ends it, and the new one does.
    end.domain.end_registrations();
    assert!(end.receives.is_registered() && !end.sends.is_registered());
    second.end_registrations();
    assert!(!end.receives.is_registered());
    let error = end.receives.change_access(RegionAccess::SEND).unwrap_err();
    assert!(matches!(error, VerbsError::Closed { .. }), "{error}");

    let elsewhere = ProtectionDomain::new(&Device::open(&fake.provider(), DEVICE).unwrap());
    let mut more = End::new(&fake.provider(), USUAL);
    let error = more.sends.move_to(&elsewhere.unwrap()).unwrap_err();
    assert!(matches!(error, VerbsError::OtherDevice { .. }), "{error}");
}

#[test]
fn rereg_mr_that_fails_in_the_device_keeps_both_memories_until_the_drop() {
    let fake = one_device();
    let mut end = End::new(&fake.provider(), USUAL);
    for _ in 0..2 {
        fake.refuse(Call::Reregister, Errno::OPNOTSUPP);
        let error = end.receives.replace_memory(memory()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "RDMA device rxe0 has no registrations that can be changed: ibv_rereg_mr failed: \
             Operation not supported (os error 95); the region cannot be used any more: drop it \
             and register the memory"
        );
    }
    drop(end);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn reg_dmabuf_mr_moves_bytes_of_another_drivers_memory() {
    let fake = one_device();
    let file = memfd_create("dma-buf", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, 3 * 4096).unwrap();
    pwrite(&file, b"from a card", 4200).unwrap();
    let share = |domain: &ProtectionDomain, range| {
        let buffer = file.try_clone().unwrap();
        ForeignRegion::of_dmabuf(domain, buffer, range, EVERYTHING)
    };
    let (_one, refusing) = connected(&fake, USUAL);
    let refused = share(&refusing.domain, 0..4096).unwrap_err();
    assert!(
        matches!(refused, VerbsError::Unsupported { .. }),
        "{refused}"
    );

    fake.change(DEVICE, |device| device.has_dmabufs = true);
    let (mut one, other) = connected(&fake, USUAL);
    let empty = share(&other.domain, 8..8).unwrap_err();
    assert!(matches!(empty, VerbsError::Setting { .. }), "{empty}");
    let region = share(&other.domain, 4200..12_288).unwrap();
    assert_eq!(region.bytes(), 8088);
    assert!(region.is_registered());
    let targets = [one.receives.target(0..11)];
    let mut batch = one.pair.send_batch();
    let id = WorkId::new(Operation::Read, 0, 0);
    batch
        .push_read(&ReadRequest::new(id, &targets, region.remote(0)))
        .unwrap();
    batch.post().unwrap();
    assert_eq!(get(&one.receives, 0, 11), b"from a card");
    assert_eq!(write(&mut one, region.remote(100)), Ok(()));
    let mut bytes = [0; 4];
    pread(&file, &mut bytes, 4300).unwrap();
    assert_eq!(&bytes, b"four");
    assert_eq!(region.entry(1..9).bytes(), 8);
    drop(region);
    drop((one, other, _one, refusing));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn alloc_dm_is_probed_and_used_by_requests_and_calls() {
    let fake = one_device();
    let without = Device::open(&fake.provider(), DEVICE).unwrap();
    let refused = OnDeviceMemory::new(&without, 64, 0).unwrap_err();
    assert!(
        matches!(refused, VerbsError::Unsupported { .. }),
        "{refused}"
    );

    fake.change(DEVICE, |device| {
        device.attributes.extended.device_memory_bytes = 4096;
    });
    let (mut one, other) = connected(&fake, USUAL);
    let beyond = OnDeviceMemory::new(&other.device, 4097, 0).unwrap_err();
    assert!(
        matches!(beyond, VerbsError::Limit { limit: 4096, .. }),
        "{beyond}"
    );
    let memory = OnDeviceMemory::new(&other.device, 256, 3).unwrap();
    let full = OnDeviceMemory::new(&other.device, 4096, 0).unwrap_err();
    assert!(full.to_string().contains("ibv_alloc_dm failed"), "{full}");
    memory.write(64, &5_u64.to_ne_bytes()).unwrap();
    let region = memory.register(&other.domain, 64..128, EVERYTHING).unwrap();

    let results = AtomicResults::new(&one.domain, 1).unwrap();
    let mut result = results.place().unwrap();
    let id = WorkId::new(Operation::Atomic, 0, 0);
    let mut batch = one.pair.send_batch();
    let add = AtomicRequest::fetch_and_add(id, region.remote(0), 10);
    batch.push_atomic(&add, &mut result).unwrap();
    batch.post().unwrap();
    one.pair.retire_sends(1);
    assert_eq!(result.take(&one.poll()[0]), Ok(Some(5)));
    let mut bytes = [0; 8];
    memory.read(64, &mut bytes).unwrap();
    assert_eq!(u64::from_ne_bytes(bytes), 15);

    let elsewhere = memory.register(&one.domain, 0..8, EVERYTHING).unwrap_err();
    assert!(
        matches!(elsewhere, VerbsError::OtherDevice { .. }),
        "{elsewhere}"
    );
    let outside = std::panic::AssertUnwindSafe(|| memory.write(249, &bytes));
    assert!(std::panic::catch_unwind(outside).is_err());
    // The region keeps the memory.
    drop((one, other, memory));
    drop((without, result, results));
    assert_eq!(fake.alive().get("device memory"), Some(&1));
    drop(region);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn advise_mr_is_for_memory_on_demand() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let on_demand = |end: &End, access: RegionAccess| {
        MemoryRegion::register(&end.domain, memory(), access.and(RegionAccess::ON_DEMAND))
    };
    let refused = on_demand(&end, RegionAccess::SEND).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "RDMA device rxe0 has no on-demand paging: ibv_reg_mr failed: Operation not supported (os \
         error 95); register the memory without `RegionAccess::ON_DEMAND`, which pins it"
    );
    fake.change(DEVICE, |device| {
        device.attributes.extended.on_demand.general = 1;
    });
    let end = End::new(&fake.provider(), USUAL);
    let (read, all) = (
        on_demand(&end, RegionAccess::SEND).unwrap(),
        on_demand(&end, RegionAccess::RECEIVE).unwrap(),
    );
    read.prefetch(8..16, Prefetch::Read, false).unwrap();
    all.prefetch(0..4096, Prefetch::Write, true).unwrap();
    all.prefetch(0..1, Prefetch::Present, false).unwrap();
    let pinned = end
        .receives
        .prefetch(0..8, Prefetch::Read, false)
        .unwrap_err();
    assert!(matches!(pinned, VerbsError::Setting { .. }), "{pinned}");
    assert!(read.prefetch(0..8, Prefetch::Write, false).is_err());
    let given: Vec<_> = fake
        .advised()
        .iter()
        .map(|(advice, flags, piece)| (*advice, *flags, piece.length))
        .collect();
    assert_eq!(given, [(0, 0, 8), (1, 1, 4096), (2, 0, 1)]);
}
