//! What both releases have alike: who listens, who connects, and over what.

use std::{env, error::Error};

use ibex::{Fabric, Node, Peer, Policy};

pub(crate) type Result<T = ()> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) const ENTRIES: u64 = 1000;

type Play = fn(&Peer) -> Result;

/// Plays what the command line says.
pub(crate) fn run(primary: Play, replica: Play) -> Result {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let (fabric, address) = match arguments[..] {
        ["replica", fabric] => (fabric, None),
        ["primary", fabric, address] => (fabric, Some(address)),
        _ => return Err("say `replica FABRIC` or `primary FABRIC ADDRESS`".into()),
    };
    let fabric = match fabric {
        "shm" => Fabric::Shm,
        "tcp" => Fabric::Tcp,
        _ => return Err("the fabric is shm or tcp".into()),
    };
    let builder = Node::builder().fabric(fabric, Policy::Require);
    match address {
        None => {
            let node = builder.listen("127.0.0.1:0").build()?;
            println!("{}", node.local_addr().ok_or("it listens")?);
            replica(&node.accept()?)
        }
        Some(address) => primary(&builder.build()?.connect(address)?),
    }
}
