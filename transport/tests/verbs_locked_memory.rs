//! What a user is told whose limit on locked memory is too small, on a real device.
//!
//! A program of its own, because the limit is the whole process's.
#![cfg(feature = "verbs")]

use std::sync::Arc;

use ibex_transport::fabric::verbs::provider::{Libibverbs, Provider};
use ibex_transport::fabric::verbs::{
    Device, MemoryRegion, ProtectionDomain, RegionAccess, VerbsError,
};
use ibex_transport::memory::{Mapping, MemoryUse};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

const LIMIT: u64 = 64 << 10;

#[test]
#[ignore = "needs a device, named by IBEX_TEST_DEVICE"]
fn a_limit_that_is_too_small_is_told_with_what_is_needed() {
    let name = std::env::var("IBEX_TEST_DEVICE").expect("the name of a device");
    let provider: Arc<dyn Provider> = Arc::new(Libibverbs::load().unwrap());
    let device = Device::open(&provider, &name).unwrap();
    let domain = ProtectionDomain::new(&device).unwrap();

    setrlimit(
        Resource::Memlock,
        Rlimit {
            current: Some(LIMIT),
            maximum: getrlimit(Resource::Memlock).maximum,
        },
    )
    .unwrap();
    // The superuser is not limited; this thread stops being one in that respect.
    let mut sets = capabilities(None).unwrap();
    sets.effective.remove(CapabilitySet::IPC_LOCK);
    set_capabilities(None, sets).unwrap();

    let register = |bytes| {
        let memory = Mapping::anonymous(MemoryUse::ArrivalBlock, bytes).unwrap();
        MemoryRegion::register(&domain, memory, RegionAccess::RECEIVE)
    };
    let small = register(16 << 10).unwrap();
    let error = register(1 << 20).unwrap_err();
    assert!(
        matches!(
            error,
            VerbsError::MemoryLock {
                bytes: 0x10_0000,
                limit: LIMIT,
                already: 0x4000..,
                ..
            }
        ),
        "{error}"
    );
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    drop(small);
}
