//! Objects are never destroyed too early, in any order of drops, and none is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::io::Errno;

use super::*;
use crate::{AsyncEvents, DeviceMemory, ForeignRegion, OnDeviceMemory, provider::fake::Call};

#[test]
fn handles_dropped_first_stay_alive_below_the_queue_pair() {
    let fake = one_device();
    let End {
        device,
        domain,
        completions,
        shared,
        sends,
        receives,
        pair,
    } = End::new(&fake.provider(), USUAL);
    // Drops from the root up, which is the reverse of the order that the verbs require.
    drop((device, domain));
    drop(completions);
    drop(shared);
    drop((sends, receives));
    let alive = fake.alive();
    assert_eq!(alive["queue pairs"], 1, "{alive:?}");
    assert_eq!(alive["completion queues"], 1, "{alive:?}");
    assert_eq!(alive["shared receive queues"], 1, "{alive:?}");
    assert!(!alive.contains_key("memory regions"), "{alive:?}");
    drop(pair);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_region_keeps_its_domain_and_its_device_alive() {
    let fake = one_device();
    let End { receives, .. } = End::new(&fake.provider(), USUAL);
    assert_eq!(
        fake.alive(),
        [
            ("contexts", 1),
            ("memory regions", 1),
            ("protection domains", 1)
        ]
        .into()
    );
    drop(receives);
    assert!(fake.alive().is_empty());
}

#[test]
fn a_receive_queue_taken_out_of_its_queue_pair_keeps_that_alive() {
    let fake = one_device();
    let provider = fake.provider();
    let own = Shape {
        shared: false,
        ..USUAL
    };
    let (mut one, mut other) = (End::new(&provider, own), End::new(&provider, own));
    std::mem::swap(one.receive_queue(), other.receive_queue());
    let number = other.pair.number();
    drop(other);
    assert_eq!(fake.alive()["queue pairs"], 2);
    one.post_receives(1);
    assert_eq!(fake.own_receives(number).len(), 1);
    drop(one);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_child_that_drops_everything_destroys_nothing() {
    ibex_base::fork::claim().unwrap();
    let fake = one_device();
    let end = End::new(&fake.provider(), USUAL);
    let alive = fake.alive();
    // SAFETY: the child drops and compares, and ends before it could meet a lock that
    // another test's thread has.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(end);
        let is_left = fake.alive() == alive;
        // SAFETY: the call ends the process.
        unsafe { libc::_exit(i32::from(!is_left)) }
    }
    let mut status = 0;
    // SAFETY: `status` is written to.
    let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
    assert_eq!((waited, status), (child, 0));
    drop(end);
    assert!(fake.alive().is_empty(), "{:?}", fake.alive());
}

#[test]
fn a_half_made_object_leaves_nothing() {
    let calls = [
        Call::QueryDevice,
        Call::CreateDomain,
        Call::CreateChannel,
        Call::CreateCompletionQueue,
        Call::CreateSharedReceive,
        Call::Register,
        Call::CreatePair,
        Call::ModifyPair,
    ];
    for call in calls {
        let fake = one_device();
        fake.refuse(call, Errno::NOMEM);
        let made = make_all(&fake.provider());
        let refused = made.expect_err("one call was refused");
        assert!(
            refused.contains("ENOMEM") || refused.contains("Cannot allocate memory"),
            "{call:?}: {refused}"
        );
        assert!(fake.alive().is_empty(), "{call:?}: {:?}", fake.alive());
    }
}

fn make_all(provider: &Arc<dyn Provider>) -> Result<QueuePair, String> {
    let text = |error: crate::VerbsError| error.to_string();
    let device = Device::open(provider, DEVICE).map_err(text)?;
    let domain = ProtectionDomain::new(&device).map_err(text)?;
    let completions = CompletionQueue::with_channel(&device, 16).map_err(text)?;
    let shared = ReceiveQueue::shared(&domain, 15, 1).map_err(text)?;
    MemoryRegion::register(&domain, memory(), RegionAccess::SEND).map_err(text)?;
    QueuePairBuilder::new(&domain, &completions)
        .shared_receive_queue(&shared)
        .build(1, ConnectionSettings::default())
        .map_err(text)
}

/// Memory that counts its drops.
struct Counted(AnonymousMemory, Arc<AtomicUsize>);

// SAFETY: the mapping inside fulfils the contract.
unsafe impl DeviceMemory for Counted {
    fn base(&self) -> std::ptr::NonNull<u8> {
        self.0.base()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn memory_goes_after_it_is_deregistered_and_not_at_all_if_that_fails() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let drops = Arc::new(AtomicUsize::new(0));
    let register = || {
        let memory = Counted(memory(), Arc::clone(&drops));
        MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE).unwrap()
    };
    drop(register());
    assert_eq!(drops.load(Ordering::Relaxed), 1);

    fake.refuse(Call::Deregister, Errno::BUSY);
    drop(register());
    assert_eq!(drops.load(Ordering::Relaxed), 1);
    assert_eq!(fake.alive()["memory regions"], 1);
}

#[test]
fn memory_of_a_device_stays_taken_if_its_region_cannot_be_deregistered() {
    let fake = one_device();
    fake.change(DEVICE, |device| device.attributes.device_memory_bytes = 64);
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();
    let memory = OnDeviceMemory::new(&device, 64, 0).unwrap();
    let region = memory.register(&domain, 0..64, RegionAccess::RECEIVE);
    fake.refuse(Call::Deregister, Errno::BUSY);
    drop((memory, region.unwrap()));
    assert_eq!(fake.alive()["memory regions"], 1);
    assert_eq!(fake.alive()["device memory"], 1);
    let no_room = OnDeviceMemory::new(&device, 1, 0);
    no_room.expect_err("the memory is still taken");
}

#[test]
fn one_reader_of_events_at_a_time() {
    let fake = one_device();
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    let first = AsyncEvents::of(&device).unwrap().unwrap();
    assert!(AsyncEvents::of(&device).unwrap().is_none());
    assert!(AsyncEvents::of(&device.clone()).unwrap().is_none());
    drop(first);
    assert!(AsyncEvents::of(&device).unwrap().is_some());
}

#[test]
fn handles_may_be_moved_to_other_threads() {
    fn moves<T: Send>() {}
    fn shared<T: Sync>() {}
    moves::<QueuePair>();
    moves::<CompletionQueue>();
    moves::<ReceiveQueue>();
    moves::<MemoryRegion<AnonymousMemory>>();
    moves::<ForeignRegion>();
    moves::<AsyncEvents>();
    shared::<Device>();
    shared::<ProtectionDomain>();
    shared::<MemoryRegion<AnonymousMemory>>();
    shared::<ForeignRegion>();
}
