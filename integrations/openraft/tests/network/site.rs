//! Nodes of this process, and the requests of a test to them.

#[cfg(feature = "fake-device")]
use std::sync::LazyLock;
use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ibex::{Driver, Fabric, Node, Policy};
#[cfg(feature = "fake-device")]
use ibex_integrations_testing::MemoryDevice;
use ibex_openraft::{Client, NetworkFactory, Server};
use openraft::{
    BasicNode, Config, EntryPayload, Raft, RaftNetworkFactory, SnapshotPolicy, Vote,
    alias::{EntryOf, LogIdOf, VoteOf},
    network::RPCOption,
    raft::AppendEntriesRequest,
    vote::RaftLeaderId,
};
use tokio::{task::JoinHandle, time::timeout};

use crate::store::{Log, Machine, Types, Writes};

/// A raft node that answers.
pub(crate) struct Site {
    pub(crate) node: Node,
    pub(crate) raft: Raft<Types, Machine>,
    pub(crate) machine: Machine,
    pub(crate) address: String,
    serving: JoinHandle<std::io::Result<()>>,
}

impl Site {
    pub(crate) async fn start(number: u64, fabric: Fabric, log: Log) -> Site {
        let node = node(fabric, true);
        let address = node.local_addr().expect("it listens").to_string();
        let config = Config {
            heartbeat_interval: 500,
            // A busy machine may stall for seconds; the first election does not wait.
            election_timeout_min: 20_000,
            election_timeout_max: 40_000,
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: 0,
            install_snapshot_timeout: 60_000,
            ..Config::default()
        };
        let config = Arc::new(config.validate().expect("a valid configuration"));
        let (network, machine) = (NetworkFactory::over(node.clone()), Machine::default());
        let raft = Raft::new(number, config, network, log, machine.clone());
        let raft = raft.await.expect("a raft node");
        let serving = tokio::spawn(Server::new(raft.clone()).run(node.clone()));
        Site {
            node,
            raft,
            machine,
            address,
            serving,
        }
    }

    pub(crate) async fn stop(self) {
        self.raft.shutdown().await.expect("raft ends");
        self.serving.abort();
        let _ = self.serving.await;
        let _ = self.node.close_async(Duration::from_secs(10)).await;
    }

    /// Creates a client like a leader's, from a node of its own.
    pub(crate) async fn client(&self, fabric: Fabric, number: u64) -> Client<Types, Writes> {
        client(fabric, number, &self.address).await
    }
}

pub(crate) async fn client(fabric: Fabric, number: u64, address: &str) -> Client<Types, Writes> {
    let mut factory = NetworkFactory::<Writes>::over(node(fabric, false));
    let at = BasicNode::new(address);
    RaftNetworkFactory::<Types>::new_client(&mut factory, number, &at).await
}

pub(crate) fn node(fabric: Fabric, listens: bool) -> Node {
    let builder = Node::builder()
        .driver(Driver::Tasks)
        .fabric(fabric, Policy::Require)
        .connect_timeout(WATCHDOG);
    #[cfg(feature = "fake-device")]
    let builder = {
        static DEVICE: LazyLock<MemoryDevice> = LazyLock::new(MemoryDevice::new);
        DEVICE.carries(builder)
    };
    let builder = match listens {
        true => builder.listen("127.0.0.1:0"),
        false => builder,
    };
    builder.build().expect("a node")
}

/// Returns the vote of the leader that these tests' requests come from.
pub(crate) fn vote() -> VoteOf<Types> {
    Vote::new_committed(1, 9)
}

pub(crate) fn log_id(index: u64) -> LogIdOf<Types> {
    let leader = openraft::impls::leader_id_adv::LeaderId::new(1, 9);
    LogIdOf::<Types>::new(leader.to_committed(), index)
}

/// Returns a request with one entry, or with none like a heartbeat.
pub(crate) fn append(previous: Option<u64>, text: Option<&str>) -> AppendEntriesRequest<Types> {
    let index = previous.map_or(0, |index| index + 1);
    let entry = |text: &str| EntryOf::<Types> {
        log_id: log_id(index),
        payload: EntryPayload::Normal(text.to_owned()),
    };
    AppendEntriesRequest {
        vote: vote(),
        prev_log_id: previous.map(log_id),
        entries: text.map(entry).into_iter().collect(),
        leader_commit: None,
    }
}

pub(crate) fn members<'a>(sites: impl IntoIterator<Item = &'a Site>) -> BTreeMap<u64, BasicNode> {
    let members = sites.into_iter();
    members
        .map(|site| (*site.raft.node_id(), BasicNode::new(&site.address)))
        .collect()
}

/// Returns a time that is longer than any test needs.
pub(crate) fn long() -> RPCOption {
    RPCOption::new(WATCHDOG)
}

/// Runs a test over each fabric; a watchdog ends it when it hangs.
pub(crate) fn over_each(test: impl AsyncFn(Fabric)) {
    let fabrics = [
        Fabric::Shm,
        Fabric::Tcp,
        // Verbs runs over a device made of memory.
        #[cfg(feature = "fake-device")]
        Fabric::Verbs,
    ];
    for fabric in fabrics {
        eprintln!("over {fabric}");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .expect("a runtime");
        let outcome = runtime.block_on(async { timeout(WATCHDOG, test(fabric)).await });
        outcome.expect("the test hangs");
    }
}

pub(crate) const WATCHDOG: Duration = Duration::from_secs(240);
