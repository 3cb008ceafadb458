//! Registered memory is kept from children of a fork, also when libibverbs lets them have it.

use std::fs;
use std::sync::Arc;

use rustix::io::Errno;

use super::*;
use crate::{DeviceMemory, ForkStatus, provider::fake::Call};

/// A domain of a device whose library behaves as after `ibv_fork_init`.
fn domain() -> (FakeProvider, ProtectionDomain) {
    let fake = one_device();
    fake.set_fork_status(ForkStatus::Enabled);
    let device = Device::open(&fake.provider(), DEVICE).unwrap();
    (fake, ProtectionDomain::new(&device).unwrap())
}

/// Returns whether a child would have none of it: the flag `dc` in
/// [proc_pid_smaps(5)](https://man7.org/linux/man-pages/man5/proc_pid_smaps.5.html).
fn is_kept_from_children(memory: &AnonymousMemory) -> bool {
    let range = memory.base().as_ptr().addr()..memory.base().as_ptr().addr() + memory.bytes();
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut covered, mut is_kept) = (0, true);
    let mut of_range = 0..0;
    for line in smaps.lines() {
        let word = line.split(' ').next().unwrap_or_default();
        if let Some((start, end)) = word.split_once('-') {
            let parsed = |text| usize::from_str_radix(text, 16);
            if let (Ok(start), Ok(end)) = (parsed(start), parsed(end)) {
                let start = start.max(range.start);
                of_range = start..end.min(range.end).max(start);
            }
        }
        if let Some(flags) = line.strip_prefix("VmFlags:")
            && !of_range.is_empty()
        {
            covered += of_range.len();
            is_kept &= flags.split_whitespace().any(|flag| flag == "dc");
        }
    }
    assert_eq!(covered, range.len(), "it is mapped");
    is_kept
}

#[test]
fn memory_that_is_registered_no_more_is_kept_from_children_as_before() {
    let (_fake, domain) = domain();
    let memory = Arc::new(memory());
    assert!(is_kept_from_children(&memory));
    for access in [RegionAccess::SEND, RegionAccess::REMOTE_WRITE] {
        let region = MemoryRegion::register(&domain, memory.clone(), access).unwrap();
        assert!(is_kept_from_children(&memory));
        drop(region);
        assert!(is_kept_from_children(&memory));
    }
}

#[test]
fn so_is_memory_whose_device_is_closed_under_it() {
    let (_fake, domain) = domain();
    let memory = Arc::new(memory());
    let region = MemoryRegion::register(&domain, memory.clone(), RegionAccess::SEND).unwrap();
    domain.end_registrations();
    assert!(!region.is_registered());
    assert!(is_kept_from_children(&memory));
}

#[test]
fn so_is_memory_that_the_device_refuses() {
    let (fake, domain) = domain();
    let memory = Arc::new(memory());
    fake.refuse(Call::Register, Errno::NOMEM);
    MemoryRegion::register(&domain, memory.clone(), RegionAccess::SEND).unwrap_err();
    assert!(is_kept_from_children(&memory));
}

/// A part of a page is a page to the library.
#[test]
fn so_is_memory_that_begins_and_ends_within_a_page() {
    struct Middle(Arc<AnonymousMemory>);

    // SAFETY: a part of a mapping, which stays where it is behind its `Arc`.
    unsafe impl DeviceMemory for Middle {
        fn base(&self) -> std::ptr::NonNull<u8> {
            // SAFETY: the mapping is longer.
            unsafe { self.0.base().add(100) }
        }

        fn bytes(&self) -> usize {
            5000
        }
    }

    let (_fake, domain) = domain();
    let memory = Arc::new(memory());
    let middle = Middle(memory.clone());
    drop(MemoryRegion::register(&domain, middle, RegionAccess::SEND).unwrap());
    assert!(is_kept_from_children(&memory));
}
