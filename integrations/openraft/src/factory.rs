//! Clients for the nodes of a cluster.

use std::{
    collections::HashMap,
    fmt,
    io::Cursor,
    marker::PhantomData,
    sync::{Arc, Weak},
    time::Duration,
};

use ibex::{Driver, ListenError, Node};
use openraft::{BasicNode, RaftNetworkFactory, RaftTypeConfig, alias::NodeIdOf};

use crate::{
    client::Client,
    link::{Lane, Link},
    snapshot::SnapshotData,
};

/// The network of a raft node: makes a [`Client`] for each node that openraft sends to.
///
/// `D` is the state machine's snapshot, which the compiler finds where the factory is given to
/// `Raft::new`. All clients for an address share one session.
pub struct NetworkFactory<D = Cursor<Vec<u8>>> {
    node: Node,
    links: HashMap<String, Weak<Link>>,
    _snapshot: PhantomData<fn() -> D>,
}

impl<D: SnapshotData> NetworkFactory<D> {
    /// Creates a factory with a node that listens on `address`, which the runtime of the calling
    /// task drives. [`node`](Self::node) returns that node, for the raft node's
    /// [`Server`](crate::Server).
    ///
    /// # Errors
    ///
    /// [`ListenError`]: the address cannot be listened on, the calling thread is in no tokio
    /// runtime, or the process lacks descriptors or memory. An address that other hosts reach is
    /// refused, since peers are not authenticated: it needs a node with
    /// [`insecure_network`](ibex::NodeBuilder::insecure_network), and [`over`](Self::over).
    pub fn listen(address: impl Into<String>) -> Result<Self, ListenError> {
        let builder = Node::builder()
            .driver(Driver::Tasks)
            .listen(address.into())
            // An unreachable node holds one of the places for connecting for this time.
            .connect_timeout(Duration::from_secs(1));
        Ok(Self::over(builder.build()?))
    }

    /// Creates a factory whose clients connect from `node`, which is also the node for the raft
    /// node's [`Server`](crate::Server). The node's settings apply: its fabrics, its
    /// `connect_timeout` (1 s is plenty), its `session_timeout`.
    pub fn over(node: Node) -> Self {
        Self {
            node,
            links: HashMap::new(),
            _snapshot: PhantomData,
        }
    }

    /// Returns the node from which the clients connect.
    #[must_use]
    pub fn node(&self) -> Node {
        self.node.clone()
    }

    fn link(&mut self, address: &str) -> Arc<Link> {
        if let Some(link) = self.links.get(address).and_then(Weak::upgrade) {
            return link;
        }
        self.links.retain(|_, link| link.strong_count() > 0);
        let link = Arc::new(Link::new(self.node.clone(), address.to_owned()));
        self.links.insert(address.to_owned(), Arc::downgrade(&link));
        link
    }
}

impl<C, D> RaftNetworkFactory<C> for NetworkFactory<D>
where
    C: RaftTypeConfig<Node = BasicNode>,
    D: SnapshotData,
{
    type Network = Client<C, D>;

    async fn new_client(&mut self, target: NodeIdOf<C>, node: &BasicNode) -> Client<C, D> {
        Client::new(self.link(&node.addr), target, Lane::Log)
    }

    async fn new_heartbeat_client(
        &mut self,
        target: NodeIdOf<C>,
        node: &BasicNode,
    ) -> Client<C, D> {
        Client::new(self.link(&node.addr), target, Lane::Control)
    }
}

impl<D> fmt::Debug for NetworkFactory<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NetworkFactory").finish_non_exhaustive()
    }
}
