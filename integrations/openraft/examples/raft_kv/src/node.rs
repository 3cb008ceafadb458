//! A process of the cluster.

use std::{path::PathBuf, sync::Arc, time::Duration};

use clap::{Args, ValueEnum};
use ibex::{Driver, Fabric, Policy};
use ibex_harness::process::stay_with_parent;
use ibex_openraft::{NetworkFactory, Server};
use openraft::{Config, Raft, SnapshotPolicy, async_runtime::WatchReceiver};
use tokio::net::TcpListener;

use crate::{
    lines::Answerer,
    network::{Sockets, Via, answer_sockets},
    store::{self, Space},
    types::{Failure, Node},
};

/// How a node runs.
#[derive(Args, Clone, Debug)]
pub struct NodeOptions {
    /// The node's number in the cluster.
    #[arg(long)]
    pub id: u64,
    /// Directory of its databases.
    #[arg(long)]
    pub directory: PathBuf,
    /// Address for the other nodes.
    #[arg(long)]
    pub listen: String,
    /// Address for clients.
    #[arg(long)]
    pub lines: String,
    /// How the nodes talk.
    #[arg(long, value_enum, default_value_t = Wire::Ibex)]
    pub wire: Wire,
    /// Nodes that are reached by another address than the cluster's: ID=ADDRESS.
    #[arg(long, value_delimiter = ',')]
    pub via: Vec<String>,
    /// End when the process does that started this one.
    #[arg(long)]
    pub with_parent: bool,
}

/// How the nodes of a cluster talk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Wire {
    /// ibex, over the fabric that it chooses.
    Ibex,
    /// ibex over shared memory.
    Shm,
    /// ibex over tcp.
    Tcp,
    /// tokio's TCP, without ibex.
    Sockets,
}

/// Runs a node until it is ended, or until its disk fails.
///
/// # Errors
///
/// The store cannot be opened, an address not be listened on, or the disk has failed.
pub async fn run(options: NodeOptions) -> Result<(), Failure> {
    if options.with_parent {
        stay_with_parent()?;
    }
    let space = Space::default();
    let (log, machine) = store::open(&options.directory, &space)?;
    let config = Arc::new(config().validate()?);
    let via = via(&options.via)?;
    let lines = TcpListener::bind(&options.lines).await?;
    let id = options.id;
    let raft = match options.wire {
        Wire::Sockets => {
            let network = Via::new(Sockets, via);
            let raft = Raft::new(id, config, network, log, machine.clone()).await?;
            let answering = raft.clone();
            tokio::spawn(async move { answer_sockets(answering, &options.listen).await });
            raft
        }
        wire => {
            let node = ibex_node(wire, &options.listen)?;
            let network = Via::new(NetworkFactory::over(node.clone()), via);
            let raft = Raft::new(id, config, network, log, machine.clone()).await?;
            tokio::spawn(Server::new(raft.clone()).run(node));
            raft
        }
    };
    let answerer = Answerer {
        raft: raft.clone(),
        machine,
        space,
    };
    tokio::select! {
        ended = answerer.serve(lines) => ended.map_err(Failure::from),
        why = until_stopped(&raft) => Err(why.into()),
    }
}

fn ibex_node(wire: Wire, listen: &str) -> Result<ibex::Node, ibex::ListenError> {
    let builder = ibex::Node::builder()
        .driver(Driver::Tasks)
        .listen(listen)
        .connect_timeout(Duration::from_secs(1));
    let builder = match wire {
        Wire::Shm => builder.fabric(Fabric::Shm, Policy::Require),
        Wire::Tcp => builder.fabric(Fabric::Tcp, Policy::Require),
        Wire::Ibex | Wire::Sockets => builder,
    };
    builder.build()
}

/// Waits until raft stops, as it does when the disk fails, and says why.
async fn until_stopped(raft: &Node) -> String {
    let mut metrics = raft.metrics();
    loop {
        if let Err(fatal) = &metrics.borrow_and_update().running_state {
            return fatal.to_string();
        }
        if metrics.changed().await.is_err() {
            return "raft has ended".to_owned();
        }
    }
}

fn via(pairs: &[String]) -> Result<Vec<(u64, String)>, Failure> {
    let mut via = Vec::new();
    for pair in pairs {
        let (id, address) = pair.split_once('=').ok_or("expected ID=ADDRESS")?;
        via.push((id.parse()?, address.to_owned()));
    }
    Ok(via)
}

fn config() -> Config {
    Config {
        heartbeat_interval: 100,
        election_timeout_min: 300,
        election_timeout_max: 600,
        install_snapshot_timeout: 5_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(2_000),
        max_in_snapshot_log_to_keep: 500,
        ..Config::default()
    }
}
