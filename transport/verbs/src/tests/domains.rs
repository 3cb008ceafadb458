//! Parent domains and thread domains.

use rustix::io::Errno;

use super::*;
use crate::{
    AddressHandle, BindRequest, DatagramDestination, MemoryWindow, QKey, SendRequest, VerbsError,
    WindowKind, provider::fake::Call,
};

/// An end whose queue pair is of another domain than its regions.
fn end_of(fake: &FakeProvider, of: impl FnOnce(&ProtectionDomain) -> ProtectionDomain) -> End {
    let mut end = End::new(&fake.provider(), USUAL);
    end.shared = None;
    let builder = QueuePairBuilder::new(&of(&end.domain), &end.completions);
    end.pair = builder
        .receives(14, 2)
        .remote_access(EVERYTHING)
        .build(1, ConnectionSettings::default())
        .unwrap();
    end
}

fn exchange(one: &mut End, other: &mut End) {
    other.post_receives(1);
    put(&one.sends, 0, b"both");
    let entries = [one.sends.entry(0..4)];
    let mut batch = one.pair.send_batch();
    batch
        .push(&SendRequest::send(send_id(0), &entries).signaled())
        .unwrap();
    batch.post().unwrap();
    one.pair.retire_sends(1);
    assert!(one.poll()[0].outcome().is_ok());
    assert!(other.poll()[0].outcome().is_ok());
    assert_eq!(get(&other.receives, 0, 4), b"both");
}

#[test]
fn alloc_parent_domain_is_used_with_what_belongs_to_its_domain() {
    let fake = one_device();
    let mut one = end_of(&fake, |domain| domain.parent().unwrap());
    // A parent of a parent stands for the same domain.
    let mut other = end_of(&fake, |domain| domain.parent().unwrap().parent().unwrap());
    connect(&mut one, &mut other);
    exchange(&mut one, &mut other);

    let access = RegionAccess::RECEIVE.and(RegionAccess::WINDOWS);
    let region = Arc::new(MemoryRegion::register(&one.domain, memory(), access).unwrap());
    let mut window = MemoryWindow::new(&one.domain, WindowKind::Two).unwrap();
    let id = WorkId::new(Operation::Window, 0, 1);
    let request = BindRequest::new(id, 0..8, RegionAccess::REMOTE_WRITE);
    one.pair
        .bind_window(&mut window, &region, &request)
        .unwrap();
    assert_eq!(window.take(&one.poll()[0]), Ok(true));

    let local = one.local();
    let parent = one.domain.parent().unwrap();
    let builder = QueuePairBuilder::new(&parent, &one.completions);
    let mut datagrams = builder.build_datagram(1, QKey(1)).unwrap();
    let first = FirstSequence::from_random(1);
    datagrams.start(first, local).unwrap();
    let remote = datagrams.endpoint(first, &local);
    let settings = ConnectionSettings::default();
    let address = AddressHandle::to(&one.domain, &local, &remote, settings).unwrap();
    let to = DatagramDestination {
        address: &address,
        queue_pair: datagrams.number(),
        key: QKey(1),
    };
    let mut batch = datagrams.send_batch();
    batch
        .push(&SendRequest::send(send_id(1), &[]), &to)
        .unwrap();
    batch.post().unwrap();
    drop((address, datagrams, parent, window, region, one, other));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn registrations_of_a_parent_domain_end_with_those_of_its_domain() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let parent = domain.parent().unwrap();
    let region = MemoryRegion::register(&parent, memory(), RegionAccess::SEND).unwrap();
    assert_eq!(fake.alive()["memory regions"], 1);
    domain.end_registrations();
    assert!(!fake.alive().contains_key("memory regions"));
    assert!(MemoryRegion::register(&parent, memory(), RegionAccess::SEND).is_err());
    drop(region);
}

#[test]
fn alloc_td_goes_with_its_parent_domain() {
    let fake = one_device();
    // SAFETY: this thread alone uses the objects, and drops them.
    let bound = |domain: &ProtectionDomain| unsafe { domain.parent_of_one_thread().unwrap() };
    let (mut one, mut other) = (end_of(&fake, bound), end_of(&fake, bound));
    assert_eq!(fake.alive()["thread domains"], 2);
    connect(&mut one, &mut other);
    exchange(&mut one, &mut other);
    drop((one, other));
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_device_without_parent_domains_says_so_and_nothing_is_left_behind() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    // SAFETY: no object is made with it.
    let bound = || unsafe { domain.parent_of_one_thread() };
    fake.refuse(Call::CreateParentDomain, Errno::NOMEM);
    let refused = bound().unwrap_err();
    assert!(matches!(refused, VerbsError::Call { .. }), "{refused}");
    assert!(!fake.alive().contains_key("thread domains"));

    fake.change(DEVICE, |device| device.has_parent_domains = false);
    let refused = domain.parent().unwrap_err();
    assert!(matches!(refused, VerbsError::Unsupported { .. }));
    assert_eq!(
        refused.to_string(),
        "RDMA device rxe0 has no parent domains: ibv_alloc_parent_domain failed: Operation not \
         supported (os error 95); use the protection domain itself, which does the same"
    );
    let refused = bound().unwrap_err();
    assert!(refused.to_string().contains("ibv_alloc_td"), "{refused}");
    assert_eq!(fake.alive()["protection domains"], 1);
}
