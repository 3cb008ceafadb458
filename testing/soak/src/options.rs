//! The command line, for people and for the program's own processes.
#![forbid(unsafe_code)]

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use clap::{Args, Parser, Subcommand, ValueEnum};
use ibex::Fabric;
use ibex_harness::network::Medium;

/// Exchanges messages between real processes over ibex while real faults are injected, and checks
/// that none is lost, doubled or changed.
#[derive(Debug, Parser)]
#[command(name = "soak", args_conflicts_with_subcommands = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) role: Option<Role>,
    #[command(flatten)]
    pub(crate) run: RunOptions,
}

/// Options of a run.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// Seconds for which faults are injected; longer if a kind has not occurred yet, or if there
    /// were fewer messages than `--at-least`.
    #[arg(long, default_value_t = 30)]
    pub(crate) seconds: u64,
    /// Fabric of the messages.
    #[arg(long, value_enum, default_value = "tcp")]
    pub(crate) fabric: Carrier,
    /// Seed of the faults; drawn and printed if not given.
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Sending processes; by default 16, or 4 over verbs, where a guest has two emulated cores.
    #[arg(long)]
    pub(crate) senders: Option<usize>,
    /// Injects only these faults, by name.
    #[arg(long, value_delimiter = ',')]
    pub(crate) faults: Vec<String>,
    /// The least number of messages; fewer fail the run.
    #[arg(long, default_value_t = 100_000)]
    pub(crate) at_least: u64,
    /// Prints one JSON object instead of the table.
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

/// The role of a process of a run.
#[derive(Clone, Debug, Subcommand)]
#[command(hide = true)]
pub(crate) enum Role {
    /// Checks the facts that it is given.
    Checker,
    /// Listens, receives messages, and sends others back.
    Hub(NodeOptions),
    /// Connects, sends messages, and receives those that come back.
    Sender(NodeOptions),
}

/// Options of a process with a node.
#[derive(Clone, Debug, Args)]
pub(crate) struct NodeOptions {
    /// Number of the process in the run.
    #[arg(long)]
    pub(crate) process: u64,
    /// The address at which it listens, or to which it connects.
    #[arg(long)]
    pub(crate) address: SocketAddr,
    #[arg(long, value_enum)]
    pub(crate) fabric: Carrier,
    /// The seed of its actions.
    #[arg(long)]
    pub(crate) seed: u64,
    /// The network namespace to enter.
    #[arg(long)]
    pub(crate) namespace: Option<PathBuf>,
    /// The RDMA device to use.
    #[arg(long)]
    pub(crate) device: Option<String>,
    /// Runs the node by the calling thread.
    #[arg(long)]
    pub(crate) caller: bool,
    /// Sessions to open at once before ending; with 0, one session after the other.
    #[arg(long, default_value_t = 0)]
    pub(crate) crowd: u64,
    /// The most messages of a session, after which the process opens another.
    #[arg(long, default_value_t = 20_000)]
    pub(crate) messages: u64,
    /// The factor by which longer messages are rarer than where bytes are cheap.
    #[arg(long, default_value_t = 1)]
    pub(crate) rarity: u64,
    /// The longest attempt to connect, in milliseconds.
    #[arg(long, default_value_t = 2000)]
    pub(crate) patience_ms: u64,
    /// The limit on locked memory, in bytes.
    #[arg(long)]
    pub(crate) locked_bytes: Option<u64>,
}

impl NodeOptions {
    pub(crate) fn patience(&self) -> Duration {
        Duration::from_millis(self.patience_ms)
    }
}
