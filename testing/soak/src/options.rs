//! What the program is asked for, by people and by itself.
#![forbid(unsafe_code)]

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use ibex::Fabric;
use ibex_harness::network::Medium;

/// Real processes talk over ibex while real faults befall them, and a checker that is told
/// beside it holds what came to what was sent.
#[derive(Debug, Parser)]
#[command(name = "soak", args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// A run.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// For how long faults are injected; longer if each kind was not yet.
    #[arg(long, default_value_t = 30)]
    pub(crate) seconds: u64,
    /// What carries the messages.
    #[arg(long, value_enum, default_value = "tcp")]
    pub(crate) fabric: Carrier,
    /// What the faults follow from; drawn and printed if not given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Processes that send; 16, or 4 over verbs, where a guest has two emulated cores.
    #[arg(long)]
    pub(crate) senders: Option<usize>,
    /// Only these faults, by name.
    #[arg(long, value_delimiter = ',')]
    pub(crate) faults: Vec<String>,
    /// Fewer messages fail the run.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) at_least: u64,
    /// One object in place of the table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// A fabric by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Carrier {
    Shm,
    Tcp,
    Verbs,
}

impl Carrier {
    pub(crate) fn fabric(self) -> Fabric {
        match self {
            Carrier::Shm => Fabric::Shm,
            Carrier::Tcp => Fabric::Tcp,
            Carrier::Verbs => Fabric::Verbs,
        }
    }

    pub(crate) fn medium(self) -> Medium {
        match self {
            Carrier::Shm => Medium::Memory,
            Carrier::Tcp => Medium::Packets,
            Carrier::Verbs => Medium::Device,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Carrier::Shm => "shm",
            Carrier::Tcp => "tcp",
            Carrier::Verbs => "verbs",
        }
    }
}

/// What another process of a run does.
#[derive(Clone, Debug, Subcommand)]
#[command(hide = true)]
pub(crate) enum Role {
    /// Compares what it is told.
    Checker,
    /// Listens, takes what comes, and sends back.
    Hub(NodeOptions),
    /// Connects, sends, and takes what comes back.
    Sender(NodeOptions),
}

/// A process with a node.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeOptions {
    /// Its number in the run.
    #[arg(long)]
    pub(crate) process: u64,
    /// Where it listens, or connects to.
    #[arg(long)]
    pub(crate) address: SocketAddr,
    #[arg(long, value_enum)]
    pub(crate) fabric: Carrier,
    /// What it does follows from this.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The network namespace that it lives in.
    #[arg(long)]
    pub(crate) namespace: Option<PathBuf>,
    /// The RDMA device that it uses.
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// The node runs when it is called.
    #[arg(long)]
    pub(crate) caller: bool,
    /// So many sessions at once, and then none; 0: one after the other.
    #[arg(long, default_value_t = 0)]
    pub(crate) crowd: u64,
    /// Messages of a session, at most; then it makes another.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) messages: u64,
    /// Messages that are not short are so many times rarer than where bytes are cheap.
    #[arg(long, default_value_t = 1)]
    pub(crate) rarity: u64,
    /// How long an attempt to connect goes on.
    #[arg(long, default_value_t = 2000)]
    pub(crate) patience_ms: u64,
    /// Locked memory is limited to this.
    #[arg(long)]
    pub(crate) locked_bytes: Option<u64>,
}

impl NodeOptions {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}
