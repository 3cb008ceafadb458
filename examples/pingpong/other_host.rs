//! Measurements between two hosts: a listener that serves them one after the other, and the side
//! that measures with it.

use std::net::ToSocketAddrs;

use ibex::Fabric;
use ibex_harness::{
    Error,
    cores::{self, Cores},
    job::Figures,
};

use crate::measurement::session::{self, Order, Setup};

/// Measures between this process and the listener at `address`. Returns the fabric in use with the
/// figures.
pub(crate) fn measure(
    address: &str,
    cores: Cores,
    setup: Setup,
    order: Order,
) -> Result<(Figures, Fabric), Error> {
    // Threads that the node starts may run on either core; the measurement pins this one later.
    cores::keep_to(&cores)?;
    let node = setup.builder()?.build().map_err(Error::subject)?;
    let refused = |error| Error::subject(format!("--connect: {error}"));
    let peer = node.connect(address).map_err(refused)?;
    let figures = session::measure(&peer, cores[0], order)?;
    Ok((figures, peer.fabric()))
}

/// Serves orders from other hosts, one after the other, forever.
pub(crate) fn serve(address: &str, core: usize, setup: Setup) -> Result<(), Error> {
    let mut builder = setup.builder()?.listen(address);
    let reachable = address.to_socket_addrs().map_err(|error| {
        Error::subject(format!(
            "--listen {address}: {error}; name an address of this host, or 0.0.0.0 for all"
        ))
    })?;
    if reachable
        .into_iter()
        .any(|address| !address.ip().is_loopback())
        && setup.protection.is_none()
    {
        eprintln!("note: whoever can reach {address} can use this listener; nothing is encrypted");
        builder = builder.insecure_network();
    }
    let refused = |error| Error::subject(format!("--listen: {error}"));
    let node = builder.build().map_err(refused)?;
    if let Some(address) = node.local_addr() {
        eprintln!("listening on {address}; stop with Ctrl-C");
    }
    loop {
        let peer = node.accept().map_err(Error::subject)?;
        match session::answer(&peer, core) {
            Ok(tally) => eprintln!("{}: {} bytes checked", peer.address(), tally.bytes),
            Err(error) => eprintln!("{}: {error}", peer.address()),
        }
    }
}
