//! The published suites, instantiated for carriers over each fabric.

use std::{
    marker::PhantomData,
    thread,
    time::{Duration, Instant},
};

use ibex::NodeBuilder;
use ibex_iceoryx2::{IbexCarrier, Monitor, ServiceStats};
use ibex_integrations_testing::Over;
use iceoryx2::service::{ipc, service_hash::ServiceHash};
use iceoryx2_bb_testing::instantiate_conformance_tests;
use iceoryx2_link_conformance_tests::{
    fixture::{CarrierFixture, TunnelFixture, TunnelLinkFixture},
    parameters::{AnyName, Event, FixedSizePayload, PublishSubscribe, SlicePayload},
};

/// The number of tests that iceoryx2 0.10.0 has for a fabric: 11 of the carrier, 17 for each of two kinds of
/// publish-subscribe service, and 13 for events.
pub(crate) const PUBLISHED: usize = 58;

/// The fabric of a fixture.
pub(crate) trait Fabric {
    const OVER: Over;
}

/// Carriers of this process, each with a node of its own and connected to all others.
pub(crate) struct Carriers<F> {
    builder: NodeBuilder,
    addresses: Vec<String>,
    monitors: Vec<Monitor>,
    _fabric: PhantomData<F>,
}

impl<F: Fabric> CarrierFixture for Carriers<F> {
    type Carrier = IbexCarrier;

    fn new() -> Self {
        let [_, builder] = F::OVER.builders();
        Self {
            builder,
            addresses: Vec::new(),
            monitors: Vec::new(),
            _fabric: PhantomData,
        }
    }

    fn carrier(&mut self) -> IbexCarrier {
        let node = self.builder.clone().build().expect("a node");
        let address = node.local_addr().expect("it listens").to_string();
        let carrier = IbexCarrier::new(node, &self.addresses).expect("a carrier");
        self.addresses.push(address);
        self.monitors.push(carrier.monitor());
        let others = self.monitors.len() - 1;
        let knows_all = |monitor: &Monitor| monitor.stats().peers.len() == others;
        let meet = || self.monitors.iter().all(knows_all);
        assert!(wait_until(WATCHDOG, meet), "they do not meet");
        carrier
    }

    /// Waits until each carrier sends to exactly those that have the same channel open.
    fn sync(&self, hash: &ServiceHash, timeout: Duration) -> bool {
        wait_until(timeout, || self.agree_on(hash))
    }
}

impl<F> Carriers<F> {
    fn agree_on(&self, hash: &ServiceHash) -> bool {
        let open = |monitor: &Monitor| {
            let services = monitor.stats().services.into_iter();
            services.filter(|service| service.descriptor.hash == *hash)
        };
        let open: Vec<ServiceStats> = self.monitors.iter().flat_map(open).collect();
        open.iter().all(|service| {
            let same = open
                .iter()
                .filter(|other| other.descriptor == service.descriptor);
            service.peers.len() == same.count() - 1
        })
    }
}

impl<F: Fabric> TunnelFixture for Carriers<F> {}

pub(crate) fn wait_until(timeout: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + timeout;
    while !is_so() {
        if Instant::now() > deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
    true
}

pub(crate) const WATCHDOG: Duration = Duration::from_secs(120);

type Ipc = ipc::Service;
type Fixed = PublishSubscribe<AnyName, FixedSizePayload<u64>, u64>;
type Slice = PublishSubscribe<AnyName, SlicePayload<u8>, ()>;
type Events = Event<AnyName>;

/// A published suite with its parameters.
macro_rules! suite {
    ($name:ident: $($parameter:ty),+) => {
        instantiate_conformance_tests!(
            iceoryx2_link_conformance_tests::$name,
            $($parameter),+
        );
    };
}

/// The suites over a fabric.
macro_rules! over {
    ($fabric:ident, $over:expr) => {
        mod $fabric {
            use super::*;

            pub(super) struct This;

            impl Fabric for This {
                const OVER: Over = $over;
            }

            type Carried = Carriers<This>;
            type Linked = TunnelLinkFixture<Carried>;

            suite!(carrier_discovery: Carried);
            suite!(carrier_propagation: Carried);
            suite!(carrier_wake: Carried);

            mod publish_subscribe {
                use super::*;
                suite!(tunnel_discovery: Ipc, Fixed, Carried);
                suite!(tunnel_publish_subscribe: Ipc, Fixed, Carried);
                suite!(link_discovery: Ipc, Fixed, Linked);
                suite!(link_wake: Ipc, Fixed, Linked);
            }

            mod publish_subscribe_slice {
                use super::*;
                suite!(tunnel_discovery: Ipc, Slice, Carried);
                suite!(tunnel_publish_subscribe: Ipc, Slice, Carried);
                suite!(link_discovery: Ipc, Slice, Linked);
                suite!(link_wake: Ipc, Slice, Linked);
            }

            mod event {
                use super::*;
                suite!(tunnel_discovery: Ipc, Events, Carried);
                suite!(tunnel_event: Ipc, Events, Carried);
                suite!(link_discovery: Ipc, Events, Linked);
                suite!(link_wake: Ipc, Events, Linked);
            }
        }
    };
}

over!(tcp, Over::Tcp);
over!(shm, Over::Shm);
#[cfg(feature = "fake-device")]
over!(fake, Over::Fake);
#[cfg(feature = "verbs")]
over!(verbs, Over::Verbs);
