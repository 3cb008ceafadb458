//! The part that both releases share: the listening and the connecting process, and the fabric.

use std::{env, error::Error, process::ExitCode};

use ibex::{Fabric, Node, Peer, Policy};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) const ENTRIES: u64 = 1000;

type Play = fn(&Peer) -> Result;

/// Runs the role that the command line names.
pub(crate) fn run(primary: Play, replica: Play) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (fabric, address) = match arguments[..] {
        ["replica", fabric] => (fabric, None),
        ["primary", fabric, address] => (fabric, Some(address)),
        _ => return explain(),
    };
    let fabric = match fabric {
        "shm" => Fabric::Shm,
        "tcp" => Fabric::Tcp,
        _ => return explain(),
    };
    let played = match address {
        None => listen(fabric, replica),
        Some(address) => connect(fabric, address, primary),
    };
    match played {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn listen(fabric: Fabric, replica: Play) -> Result {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    let node = builder.listen("127.0.0.1:0").build()?;
    println!("{}", node.local_addr().ok_or("it listens")?);
    replica(&node.accept()?)
}

fn connect(fabric: Fabric, address: &str, primary: Play) -> Result {
    let builder = Node::builder().fabric(fabric, Policy::Require);
    primary(&builder.build()?.connect(address)?)
}

/// Prints how to start the program.
fn explain() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

const USAGE: &str = "\
This is one of two releases of a program, and takes two processes, of either release each.

Start a replica first; it prints its address:

    cargo run --release --example rolling_upgrade_old -- replica shm

Then, in another terminal, a primary with that address in place of ADDRESS:

    cargo run --release --example rolling_upgrade_new -- primary shm ADDRESS

Both say shm, or both say tcp.";
