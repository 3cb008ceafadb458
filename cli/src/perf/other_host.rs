//! `ibex perf --listen`: serves measurements for other hosts, one after the other.

use std::net::ToSocketAddrs;

use ibex::Address;
use ibex_harness::{Error, cores};
use ibex_measurement::session::{self, DriverName, Setup};

/// Serves orders from other hosts, one after the other, forever. A single session is answered on
/// `core`, several on all of `allowed`.
pub(crate) fn serve(
    address: &str,
    core: usize,
    allowed: &[usize],
    setup: Setup,
) -> Result<u8, Error> {
    crate::warnings::show();
    // Visitors open their sessions over each fabric, and some open several at once.
    let setup = Setup {
        driver: DriverName::Threads,
        sessions: 2,
        ..setup
    };
    let mut builder = setup.builder()?.listen(address);
    let resolved = match crate::address::vsock(address) {
        Some(vsock) => vec![vsock.map_err(Error::subject)?],
        None => {
            let resolved = address.to_socket_addrs().map_err(|error| {
                Error::subject(format!(
                    "--listen {address}: {error}; name an address of this host, or 0.0.0.0 for all"
                ))
            })?;
            resolved.map(Address::from).collect()
        }
    };
    let is_open = resolved
        .iter()
        .any(|address| address.is_open_to_strangers());
    if is_open && setup.protection.is_none() {
        eprintln!("note: whoever can reach {address} can use this listener; nothing is encrypted");
        builder = builder.insecure_network();
    }
    let refused = |error| Error::subject(format!("--listen: {error}"));
    let node = builder.build().map_err(refused)?;
    if let Some(address) = node.local_addr() {
        crate::print(&format!("measures at {address}\n"))
            .map_err(Error::io("writing the address"))?;
    }
    loop {
        let peer = node.accept().map_err(Error::subject)?;
        let (address, fabric) = (peer.address(), peer.fabric());
        match session::answer_visitor(&node, peer, core, allowed) {
            Ok(tally) => eprintln!("{address} over {fabric}: {} bytes checked", tally.bytes),
            Err(error) => eprintln!("{address} over {fabric}: {error}"),
        }
        cores::keep_to(allowed)?;
    }
}
