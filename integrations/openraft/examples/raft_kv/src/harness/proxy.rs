//! Proxies between nodes, which cut a node off as a network does: nothing arrives, and nothing is
//! closed.

use std::{io, sync::Arc};

use ibex_harness::proxy::Proxy;

/// A proxy for each direction between two nodes.
#[derive(Debug)]
pub struct Proxies(Arc<[Way]>);

#[derive(Debug)]
struct Way {
    ends: [u64; 2],
    proxy: Proxy,
}

/// A cut, which is healed when it is dropped.
#[derive(Debug)]
pub struct Cut(Arc<[Way]>);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.iter().for_each(|way| way.proxy.hold(false));
    }
}

impl Proxies {
    /// Starts proxies between nodes with these addresses.
    ///
    /// # Errors
    ///
    /// No port is free, or an address is not one of a socket.
    pub fn start(nodes: &[(u64, String)]) -> io::Result<Proxies> {
        let mut ways = Vec::new();
        for (from, _) in nodes {
            for (to, address) in nodes.iter().filter(|(to, _)| to != from) {
                let proxy = Proxy::start(address.parse().map_err(io::Error::other)?)?;
                let ends = [*from, *to];
                ways.push(Way { ends, proxy });
            }
        }
        Ok(Proxies(ways.into()))
    }

    /// Returns the addresses by which a node reaches the others.
    pub fn ways_of(&self, node: u64) -> impl Iterator<Item = (u64, String)> {
        let ways = self.0.iter().filter(move |way| way.ends[0] == node);
        ways.map(|way| (way.ends[1], way.proxy.address().to_string()))
    }

    /// Cuts a node off from all others.
    #[must_use]
    pub fn cut(&self, node: u64) -> Cut {
        let ways = self.0.iter().filter(|way| way.ends.contains(&node));
        ways.for_each(|way| way.proxy.hold(true));
        Cut(self.0.clone())
    }
}
