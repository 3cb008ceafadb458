//! Two nodes of this process, joined over a fabric, each turned by the cell's driver.

use std::{fmt, io, time::Duration};

use ibex::{Address, Driver, Fabric, Node, NodeBuilder, Peer, Policy};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::{Builder, Runtime},
    task::JoinHandle,
};

/// The fabric, or the device, that joins the two nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Over {
    /// Shared memory.
    Shm,
    /// Tcp.
    Tcp,
    /// A device made of memory.
    #[cfg(feature = "fake-device")]
    Fake,
    /// A real device.
    #[cfg(feature = "verbs")]
    Verbs,
}

/// The driver of the nodes, and the runtime of the tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverName {
    /// `Driver::Threads`, and a runtime of two threads.
    Threads,
    /// `Driver::Tasks`, in a runtime of two threads.
    Tasks,
    /// `Driver::Caller`, turned by a task of a runtime of one thread.
    Caller,
}

/// All drivers.
pub const DRIVERS: [DriverName; 3] = [DriverName::Threads, DriverName::Tasks, DriverName::Caller];

/// A cell of the matrix.
#[derive(Clone, Copy, Debug)]
pub struct Cell {
    /// The connection between the nodes.
    pub over: Over,
    /// The driver of the nodes.
    pub driver: DriverName,
}

impl fmt::Display for Over {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Over::Shm => "shm",
            Over::Tcp => "tcp",
            #[cfg(feature = "fake-device")]
            Over::Fake => "fake",
            #[cfg(feature = "verbs")]
            Over::Verbs => "verbs",
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let over = self.over;
        let driver = match self.driver {
            DriverName::Threads => "threads",
            DriverName::Tasks => "tasks",
            DriverName::Caller => "caller",
        };
        write!(f, "{over}/{driver}")
    }
}

/// A device made of memory, which joins the nodes that it carries.
#[cfg(feature = "fake-device")]
#[derive(Clone, Debug)]
pub struct MemoryDevice(ibex_verbs::provider::fake::FakeProvider);

#[cfg(feature = "fake-device")]
impl MemoryDevice {
    /// Creates a device without sessions.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "each is a device of its own")]
    pub fn new() -> Self {
        use ibex_verbs::provider::fake::{FakeDevice, FakeProvider};
        // The address belongs to a network for documentation (RFC 5737).
        let device = FakeDevice::soft_roce("fake0", 0, [192, 0, 2, 1]);
        Self(FakeProvider::new(vec![device]))
    }

    /// Makes a node use the device.
    pub fn carries(&self, builder: NodeBuilder) -> NodeBuilder {
        let settings = ibex::rdma::RdmaSettings::new().device("fake0");
        builder.rdma(settings.on_devices(self.0.provider(), |_| ()))
    }
}

/// Returns the fabrics of this build that this machine has.
#[must_use]
pub fn fabrics() -> Vec<Over> {
    let fabrics = [
        Over::Shm,
        Over::Tcp,
        #[cfg(feature = "fake-device")]
        Over::Fake,
        #[cfg(feature = "verbs")]
        Over::Verbs,
    ];
    let is_here = |over: &Over| !over.is_slow() || has_device();
    fabrics.into_iter().filter(is_here).collect()
}

/// Returns whether there is an RDMA device, and prints a line if not.
fn has_device() -> bool {
    let port = ibex_harness::verbs_port::VerbsPort::choose();
    port.map_err(|error| eprintln!("verbs: left out: {error}"))
        .is_ok()
}

impl Over {
    /// Returns whether software does a device's work.
    #[must_use]
    pub fn is_slow(self) -> bool {
        #[cfg(feature = "verbs")]
        return self == Over::Verbs;
        #[cfg(not(feature = "verbs"))]
        return false;
    }

    fn fabric(self) -> Fabric {
        match self {
            Over::Shm => Fabric::Shm,
            Over::Tcp => Fabric::Tcp,
            #[cfg(feature = "verbs")]
            _ => Fabric::Verbs,
        }
    }

    /// Returns builders of the dialing node and of the listening one. Their channels are narrow, so
    /// that bodies do not fit.
    ///
    /// # Panics
    ///
    /// Over verbs, if the device has gone.
    pub fn builders(self) -> [NodeBuilder; 2] {
        let builder = || {
            Node::builder()
                .fabric(self.fabric(), Policy::Require)
                .window_bytes(64 << 10)
        };
        match self {
            #[cfg(feature = "fake-device")]
            Over::Fake => {
                let device = MemoryDevice::new();
                [builder(), builder().listen(LOOPBACK)].map(|builder| device.carries(builder))
            }
            #[cfg(feature = "verbs")]
            Over::Verbs => {
                let port = ibex_harness::verbs_port::VerbsPort::choose().expect("it was there");
                let listener = match port.address().filter(std::net::IpAddr::is_ipv4) {
                    Some(address) => builder().listen((address, 0)).insecure_network(),
                    None => builder().listen(LOOPBACK),
                };
                [builder(), listener].map(|builder| {
                    let settings = ibex::rdma::RdmaSettings::new().device(port.device());
                    // Pinning the default number of buffers takes long in a guest.
                    builder.rdma(settings.receive_buffers(1024).held_buffers(1024))
                })
            }
            _ => [builder(), builder().listen(LOOPBACK)],
        }
    }
}

impl DriverName {
    /// Returns the runtime for this driver.
    ///
    /// # Panics
    ///
    /// If the runtime cannot be created.
    #[must_use]
    pub fn runtime(self) -> Runtime {
        let runtime = match self {
            DriverName::Threads | DriverName::Tasks => Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build(),
            DriverName::Caller => Builder::new_current_thread().enable_all().build(),
        };
        runtime.expect("a runtime")
    }
}

/// The two nodes, and the tasks that turn them.
#[derive(Debug)]
pub struct Meeting {
    nodes: [Node; 2],
    turning: Vec<JoinHandle<io::Result<()>>>,
    /// The listening node, as the dialing one sees it.
    pub peer: Peer,
}

impl Meeting {
    /// Joins two nodes.
    ///
    /// # Panics
    ///
    /// If they do not meet, or over another fabric.
    pub async fn over(cell: Cell) -> Self {
        let driver = match cell.driver {
            DriverName::Threads => Driver::Threads,
            DriverName::Tasks => Driver::Tasks,
            DriverName::Caller => Driver::Caller,
        };
        let nodes = cell
            .over
            .builders()
            .map(|builder| builder.driver(driver).build().expect("a node"));
        let turning = nodes.iter().filter(|_| driver == Driver::Caller);
        let turning = turning
            .map(|node| tokio::spawn(turn(node.clone())))
            .collect();
        let [dialer, listener] = &nodes;
        let address = listener.local_addr().expect("it listens");
        let (peer, other) = tokio::join!(dialer.connect_async(address), listener.accept_async());
        other.expect("a session");
        let peer = peer.expect("a session");
        assert_eq!(
            peer.fabric(),
            cell.over.fabric(),
            "{}",
            peer.fabric_reason()
        );
        Self {
            nodes,
            turning,
            peer,
        }
    }

    /// Returns the node that dialed, and the one that listened.
    #[must_use]
    pub fn nodes(&self) -> &[Node; 2] {
        &self.nodes
    }

    /// Returns the address at which the node listens.
    ///
    /// # Panics
    ///
    /// Never: one of the two listens.
    #[must_use]
    pub fn address(&self) -> Address {
        self.nodes[1].local_addr().expect("it listens")
    }

    /// Closes the nodes.
    ///
    /// # Panics
    ///
    /// If a node that its tasks turned had stopped.
    pub async fn part(self) {
        for turning in self.turning {
            turning.abort();
            if let Ok(ended) = turning.await {
                ended.expect("it turns until it is aborted");
            }
        }
        for node in self.nodes {
            let closing = tokio::task::spawn_blocking(move || node.close(Duration::ZERO));
            let _ = closing.await.expect("it ends");
        }
    }
}

#[expect(deprecated, reason = "safe, as the task owns the descriptor")]
/// Turns the engine when the node's descriptor is readable, which deadlines cause as well.
async fn turn(node: Node) -> io::Result<()> {
    let descriptor = std::os::fd::AsFd::as_fd(&node).try_clone_to_owned()?;
    let descriptor = AsyncFd::with_interest(descriptor, Interest::READABLE)?;
    loop {
        while node.poll() {}
        descriptor.readable().await?.clear_ready();
    }
}

const LOOPBACK: &str = "127.0.0.1:0";
