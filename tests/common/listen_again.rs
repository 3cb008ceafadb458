//! Listening at an address at which this process has listened before.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ibex::{ListenErrorKind, Node, NodeBuilder};

/// Makes a node that listens at this address. While another thread starts a process, the new process
/// has a copy of the socket that was closed here, until its program begins.
pub(crate) fn listen_again(builder: NodeBuilder, address: SocketAddr) -> Node {
    let builder = builder.listen(address);
    let began = Instant::now();
    loop {
        match builder.clone().build() {
            Err(error) if error.kind() == ListenErrorKind::Address => {
                assert!(began.elapsed() < WATCHDOG, "{error}");
                thread::sleep(Duration::from_millis(1));
            }
            node => return node.expect("a node"),
        }
    }
}

/// A watchdog's time: no process takes so long to begin.
const WATCHDOG: Duration = Duration::from_secs(120);
