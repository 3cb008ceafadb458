//! Memory without an address here, and memory that is not pinned.

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::io::{pread, pwrite};

use super::*;
use crate::{
    AtomicRequest, AtomicResults, CompletionStatus, ForeignRegion, OnDeviceMemory, ReadRequest,
    SendRequest, VerbsError,
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
        device.attributes.device_memory_bytes = 4096;
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
fn reg_mr_on_demand_is_for_devices_that_page() {
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let on_demand = |end: &End| {
        let access = RegionAccess::RECEIVE.and(RegionAccess::ON_DEMAND);
        MemoryRegion::register(&end.domain, memory(), access)
    };
    assert_eq!(
        on_demand(&end).unwrap_err().to_string(),
        "RDMA device rxe0 has no on-demand paging: ibv_reg_mr failed: Operation not supported (os \
         error 95); register the memory without `RegionAccess::ON_DEMAND`, which pins it"
    );
    fake.change(DEVICE, |device| {
        device.attributes.on_demand_paging = true;
    });
    assert!(on_demand(&End::new(&fake.provider(), USUAL)).is_ok());
}
