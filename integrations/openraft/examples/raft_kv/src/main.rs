//! A replicated store of keys and values; see the README beside it.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use clap::{Parser, Subcommand};
use raft_kv::{
    chaos::{self, Chaos},
    compare::{self, Comparison},
    node::{self, NodeOptions, Wire},
    types::Failure,
};
use tokio::runtime::Builder;

/// A replicated store of keys and values over openraft and ibex.
#[derive(Debug, Parser)]
#[command(arg_required_else_help = true)]
struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Harm a cluster for so many seconds, half of them over tcp and half over shared memory, and
    /// check what its clients saw.
    #[arg(long, value_name = "SECONDS")]
    chaos: Option<u64>,
    /// Compare ibex with tokio's TCP.
    #[arg(long)]
    compare: bool,
    /// The seed of the faults.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How often `--compare` gives each wire its turn.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Number of writes that `--compare` measures at a time.
    #[arg(long, default_value_t = 8_000)]
    writes: u64,
    /// The folder of the nodes' databases. Default: the directory for temporary files, and memory
    /// (/dev/shm) for `--compare`.
    #[arg(long)]
    directory: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run one node of a cluster.
    Node(NodeOptions),
}

fn main() -> ExitCode {
    match run(Options::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("raft_kv: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: Options) -> Result<ExitCode, Failure> {
    if let Some(Command::Node(node)) = options.command {
        let runtime = Builder::new_multi_thread().enable_all().build()?;
        return runtime
            .block_on(node::run(node))
            .map(|()| ExitCode::SUCCESS);
    }
    // This is the only thread: the nodes end with the thread that started them.
    let runtime = Builder::new_current_thread().enable_all().build()?;
    if let Some(seconds) = options.chaos {
        let is_good = runtime.block_on(harm(&options, seconds))?;
        if !is_good {
            return Ok(ExitCode::FAILURE);
        }
    }
    if options.compare {
        let comparison = Comparison {
            program: std::env::current_exe()?,
            directory: options.directory.unwrap_or_else(|| "/dev/shm".into()),
            rounds: options.rounds,
            writes: options.writes,
        };
        println!("{}", runtime.block_on(compare::run(comparison))?);
    }
    Ok(ExitCode::SUCCESS)
}

async fn harm(options: &Options, seconds: u64) -> Result<bool, Failure> {
    let (mut lost, mut is_good) = (0, true);
    for wire in [Wire::Tcp, Wire::Shm] {
        let directory = options.directory.clone();
        let outcome = chaos::run(Chaos {
            program: std::env::current_exe()?,
            directory: directory.unwrap_or_else(std::env::temp_dir),
            wire,
            time: Duration::from_secs(seconds) / 2,
            seed: options.seed,
        });
        let outcome = outcome.await?;
        println!("{outcome}");
        lost += outcome.lost;
        is_good &= outcome.is_good();
    }
    let verdict = match is_good {
        true => "linearizable",
        false => "see above",
    };
    println!("{lost} acknowledged writes lost, {verdict}");
    Ok(is_good)
}
