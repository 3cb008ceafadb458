//! Lists this machine's RDMA devices as a program with the feature `verbs` sees them, and names the
//! one that ibex would choose for a connection.
//!
//! ```text
//! cargo run --features verbs --example devices                 everything
//! cargo run --features verbs --example devices -- eth0         which one belongs to eth0
//! cargo run --features verbs --example devices -- --peer HOST  which one leads to HOST
//! ```
//!
//! With soft-RoCE on an interface `v0`, the first and the second say:
//!
//! ```text
//! rxe0: software, InfiniBand/RoCE, GUID 263c:26ff:fed3:8651, firmware 0.0.0, vendor 0xffffff part 0
//!   up to 1048560 queue pairs of 1048576 requests, 32 scatter entries; 32767 completions per queue, 2 completion vectors
//!   up to 917503 shared receive queues of 1048576 requests
//!   up to 1048560 memory windows, 128 reads or atomics at once from a queue pair, atomics among the device's own
//!   port 1: ACTIVE, Ethernet, MTU 1024 of 4096, 2.5 Gbps, on v0, P_Keys 0xffff
//!     GID [0] fe80::243c:26ff:fed3:8651 (RoCE v2) on v0
//!     GID [1] ::ffff:192.0.2.1 (RoCE v2) on v0
//! fork: safe, by the kernel (IBV_FORK_UNNEEDED); RDMAV_FORK_SAFE is not set, RDMAV_HUGEPAGES_SAFE is not set
//! pages: huge ones for large memory, as far as there are
//! rxe0 port 1 with GID [1] ::ffff:192.0.2.1 (RoCE v2) and MTU 1024: v0 was asked for
//! ```

use std::error::Error;
use std::process::ExitCode;

use clap::Parser;
use ibex::rdma::{Wish, discover, memory_report};

/// Lists RDMA devices, or names the one that would be chosen.
#[derive(Debug, Parser)]
struct Options {
    /// Network interface whose device to choose; VLANs and bonds are resolved to the interfaces
    /// below them.
    #[arg(conflicts_with = "peer")]
    netdev: Option<String>,

    /// Host to reach; chooses the device on the route to it.
    #[arg(long)]
    peer: Option<String>,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<(), Box<dyn Error + Send + Sync>> {
    let inventory = discover()?;
    let wish = match (&options.netdev, &options.peer) {
        (Some(netdev), _) => Wish::Netdev(netdev.clone()),
        (None, Some(host)) => {
            Wish::towards(host).map_err(|error| format!("no way to {host}: {error}"))?
        }
        (None, None) => {
            print!("{inventory}");
            println!("{}", memory_report()?);
            return Ok(());
        }
    };
    println!("{}", inventory.choose(&wish)?);
    Ok(())
}
