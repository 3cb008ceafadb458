//! Nodes that have one fabric alone.

use std::{net::SocketAddr, time::Duration};

use ibex::{Driver, Fabric, Node, NodeBuilder, Policy};

/// Makes builders of nodes that have one fabric alone.
#[derive(Clone)]
pub(crate) struct Over {
    pub(crate) fabric: Fabric,
    #[cfg(feature = "fake-device")]
    devices: ibex_verbs::provider::fake::FakeProvider,
}

impl Over {
    /// Returns a maker for each fabric; verbs runs over a device made of memory.
    pub(crate) fn each() -> Vec<Over> {
        let fabrics = [
            Fabric::Shm,
            Fabric::Tcp,
            #[cfg(feature = "fake-device")]
            Fabric::Verbs,
        ];
        fabrics.map(Over::new).into()
    }

    #[cfg(not(feature = "fake-device"))]
    pub(crate) fn new(fabric: Fabric) -> Over {
        Over { fabric }
    }

    #[cfg(feature = "fake-device")]
    pub(crate) fn new(fabric: Fabric) -> Over {
        use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};

        // The address belongs to a network for documentation (RFC 5737).
        let device = FakeDevice::soft_roce("fake0", 0, [192, 0, 2, 1]);
        let devices = FakeProvider::new(vec![device]);
        Over { fabric, devices }
    }

    /// Returns a builder that ignores the environment. Calls wait for the other end for as long as
    /// a busy machine needs.
    pub(crate) fn builder(&self, driver: Driver) -> NodeBuilder {
        let none: [(&str, &str); 0] = [];
        let builder = Node::builder().environment(none).driver(driver);
        let builder = builder
            .fabric(self.fabric, Policy::Require)
            .connect_timeout(Duration::MAX)
            .open_timeout(Duration::MAX);
        #[cfg(feature = "fake-device")]
        let builder = {
            let settings = ibex::rdma::RdmaSettings::new().device("fake0");
            builder.rdma(settings.on_devices(self.devices.provider(), |_| ()))
        };
        builder
    }

    /// Returns a listening node and its address.
    #[allow(dead_code, reason = "not every test that has this module listens so")]
    pub(crate) fn listener(&self, driver: Driver) -> (Node, SocketAddr) {
        let node = self.builder(driver).listen("127.0.0.1:0").build();
        let node = node.expect("a node");
        let address = node.local_addr().expect("it listens");
        (node, address.inet().expect("of TCP"))
    }
}
