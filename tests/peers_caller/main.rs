//! Callers of a service wherever it is: choice among kept peers, retries and their budget, hedges.
#![forbid(unsafe_code)]

mod choice;
mod errors;
mod hedging;
mod retries;
#[path = "../turning/mod.rs"]
mod turning;

use std::{
    collections::BTreeMap,
    net::{SocketAddr, TcpListener},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use futures_util::future::join_all;
use ibex::prelude::*;
use ibex::{
    Driver, Fabric, Node, Policy, Raw, SendErrorKind, ToAddress,
    calls::{CallErrorKind, CallOptions, Execution, Metadata, MetadataValue, PeersCaller, Request},
    discovery::{Peers, PeersEvent},
};

use turning::{run, run_with, until, waker};

/// The conditions of a test: a fabric, and the driver of the calling node.
type Cell = (Fabric, Driver);

const CELLS: [Cell; 4] = [
    (Fabric::Shm, Driver::Threads),
    (Fabric::Shm, Driver::Caller),
    (Fabric::Tcp, Driver::Threads),
    (Fabric::Tcp, Driver::Caller),
];

/// A time-out that is longer than any test, for calls that must not time out.
const FOR_EVER: Duration = Duration::from_secs(600);
/// A time-out that is meant to pass.
const MOMENT: Duration = Duration::from_millis(30);

fn builder((fabric, driver): Cell) -> ibex::NodeBuilder {
    let none: [(&str, &str); 0] = [];
    Node::builder()
        .environment(none)
        .fabric(fabric, Policy::Require)
        .driver(driver)
        .open_timeout(FOR_EVER)
        .session_timeout(FOR_EVER)
}

fn listen((fabric, _): Cell, address: impl ToAddress) -> (Node, SocketAddr) {
    let builder = builder((fabric, Driver::Threads));
    let node = builder.listen(address).build().unwrap();
    let address = node.local_addr().unwrap();
    (node, address.inet().expect("of TCP"))
}

/// A node that serves calls of `put`, and the requests that its handler got.
struct Replica {
    node: Node,
    address: SocketAddr,
    serving: JoinHandle<()>,
    got: Arc<Mutex<Vec<u64>>>,
}

impl Replica {
    /// Starts one that handles each request by `handle`.
    fn start(
        cell: Cell,
        address: impl ToAddress,
        handle: impl Fn(&Node, Request<u64, u64>) + Send + 'static,
    ) -> Self {
        let (node, address) = listen(cell, address);
        let got = Arc::<Mutex<Vec<u64>>>::default();
        let (serves, notes) = (node.clone(), got.clone());
        let mut service = node.service::<u64, u64>("put").unwrap();
        let serving = thread::spawn(move || {
            while let Ok(Some(request)) = service.next() {
                notes.lock().unwrap().push(request.to_native());
                handle(&serves, request);
            }
        });
        Self {
            node,
            address,
            serving,
            got,
        }
    }

    /// Starts one that answers each number by that number.
    fn answering(cell: Cell, address: impl ToAddress) -> Self {
        Self::start(cell, address, |_, request| answer(request))
    }

    fn got(&self) -> Vec<u64> {
        self.got.lock().unwrap().clone()
    }

    /// Closes the node, while the calling node is turned, and returns what the handler got.
    fn close(self, beside: &Node) -> Vec<u64> {
        let node = self.node;
        let closes = thread::spawn(move || node.close(FOR_EVER));
        until(beside, || closes.is_finished());
        let _ = closes.join().unwrap();
        self.serving.join().unwrap();
        let got = self.got.lock().unwrap();
        got.clone()
    }
}

const ANY: &str = "127.0.0.1:0";

fn answer(request: Request<u64, u64>) {
    let number = request.to_native();
    // The caller may be gone.
    let _ = request.reply(&number);
}

/// Returns a caller of the replicas, once all of them are connected.
fn keep(node: &Node, replicas: &[&Replica]) -> (Peers, PeersCaller<u64, u64>) {
    let addresses: Vec<_> = replicas.iter().map(|replica| replica.address).collect();
    let peers = node.keep_connected(addresses.clone()).unwrap();
    let put = peers.caller::<u64, u64>("put").unwrap();
    for address in addresses {
        peers.wait_for_timeout(address, FOR_EVER).unwrap();
    }
    (peers, put.with(CallOptions::new().timeout(FOR_EVER)))
}

/// Returns an address at which nobody listens.
fn vacant() -> SocketAddr {
    let socket = TcpListener::bind(ANY).unwrap();
    socket.local_addr().unwrap()
}
