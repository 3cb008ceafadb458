//! The networks that a node may have: ibex's, and one over tokio's TCP to compare it with.

mod sockets;

use std::collections::HashMap;

use openraft::{BasicNode, RaftNetworkFactory};

pub use self::sockets::{Sockets, answer_sockets};
use crate::types::Types;

/// A network that reaches some nodes by other addresses than the cluster's, as through a proxy.
#[derive(Debug)]
pub struct Via<N> {
    network: N,
    addresses: HashMap<u64, String>,
}

impl<N> Via<N> {
    /// Creates a network in which these nodes have these addresses.
    pub fn new(network: N, addresses: impl IntoIterator<Item = (u64, String)>) -> Via<N> {
        let addresses = addresses.into_iter().collect();
        Via { network, addresses }
    }

    fn at(&self, target: u64, node: &BasicNode) -> BasicNode {
        match self.addresses.get(&target) {
            Some(address) => BasicNode::new(address),
            None => node.clone(),
        }
    }
}

impl<N: RaftNetworkFactory<Types>> RaftNetworkFactory<Types> for Via<N> {
    type Network = N::Network;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> N::Network {
        let at = self.at(target, node);
        self.network.new_client(target, &at).await
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &BasicNode) -> N::Network {
        let at = self.at(target, node);
        self.network.new_heartbeat_client(target, &at).await
    }

    async fn new_snapshot_client(&mut self, target: u64, node: &BasicNode) -> N::Network {
        let at = self.at(target, node);
        self.network.new_snapshot_client(target, &at).await
    }
}
