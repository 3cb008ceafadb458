//! Peers that are the addresses of one name.

use std::{net::ToSocketAddrs, time::Duration};

use super::{Discovery, DiscoveryError, Found};

/// A discovery of all addresses that a name has in the system's resolver, such as those of a
/// headless service of Kubernetes, or of a record with several entries. They are looked up every 30
/// s, unless [`every`](Self::every) says otherwise.
///
/// Each peer is kept as `address:port`, such as `192.0.2.7:7000`, and is waited for by that text.
/// The name stands for all of them.
///
/// ```
/// use ibex::prelude::*;
/// # fn start(node: &ibex::Node) -> Result<ibex::discovery::Peers, ibex::ConnectError> {
/// node.keep_connected(ibex::discovery::Dns::new("replicas.storage.svc", 7000))
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dns {
    name: String,
    port: u16,
    period: Duration,
}

impl Dns {
    /// Nodes that listen on `port` of every address of `name`.
    #[must_use]
    pub fn new(name: impl Into<String>, port: u16) -> Self {
        Self {
            name: name.into(),
            port,
            period: PERIOD,
        }
    }

    /// Sets how long an answer holds, at least 1 s. A short time asks the resolver often; with a
    /// long time a new peer is found late.
    #[must_use]
    pub fn every(mut self, period: Duration) -> Self {
        self.period = period.max(SHORTEST_PERIOD);
        self
    }
}

impl Discovery for Dns {
    fn find(&mut self) -> Result<Found, DiscoveryError> {
        let addresses = (self.name.as_str(), self.port).to_socket_addrs();
        let addresses = addresses.map_err(|error| format!("resolving {}: {error}", self.name))?;
        Ok(Found::new(addresses).again_in(self.period))
    }
}

const PERIOD: Duration = Duration::from_secs(30);
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
