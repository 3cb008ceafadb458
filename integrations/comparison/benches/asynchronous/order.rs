//! The order for one measurement: its work, transport and runtime, alike in both processes.

use std::io;

use ibex_harness::row::{bytes, count, duration};
use serde::{Deserialize, Serialize};
use tokio::runtime::{Builder, Runtime};

/// A measurement between two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) work: Work,
    pub(crate) over: Over,
    pub(crate) runtime: RuntimeName,
    /// Timed exchanges; for idle work, the milliseconds of observation.
    pub(crate) count: u64,
}

impl Order {
    /// Returns the work, the transport and the runtime, in words.
    pub(crate) fn name(&self) -> String {
        let (work, runtime) = (self.work.name(), self.runtime.name());
        match self.over {
            Over::Socket => format!("{work}, {}, {runtime}", self.baseline_name()),
            Over::Ibex { fabric, driver } => {
                let (fabric, driver) = (fabric.name(), driver.name());
                format!("{work}, {fabric}, {driver}, {runtime}")
            }
        }
    }

    /// Returns a short description of the transport, for the column that names a row's baseline.
    pub(crate) fn baseline_name(&self) -> &'static str {
        match (self.work, self.over) {
            (Work::Call | Work::Tonic, Over::Socket) => "tonic over TCP",
            (_, Over::Socket) => "tokio TCP",
            (Work::Channels, _) => "2 channels",
            (Work::RawChannel, _) => "raw channel",
            (_, Over::Ibex { .. }) => "ibex",
        }
    }
}

/// The kinds of work, a file each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Work {
    /// 64 B there and back: a socket, or two channels with the raw codec.
    PingPong,
    /// An HTTP/1.1 GET with a short answer, by hyper.
    Get,
    /// HTTP/1.1 GETs with answers of 64 MiB, by hyper.
    Bodies,
    /// A unary call: tonic's, or ibex's.
    Call,
    /// A unary call of tonic's, over any transport.
    Tonic,
    /// The messages of an ibex call over two channels, without the call.
    Channels,
    /// Writes of 64 KiB to a byte stream, which are read into a buffer.
    Stream,
    /// Writes of 64 KiB to a byte stream, which are read where they arrived.
    StreamInPlace,
    /// Messages of 64 KiB over a channel with the raw codec.
    RawChannel,
    /// Writes to three nodes of openraft, each behind the last one.
    RaftOne,
    /// Writes to three nodes of openraft, 64 at a time.
    RaftMany,
    /// A receiving future that waits.
    IdlePolls,
    /// A thousand receiving futures that wait.
    IdleCost,
}

impl Work {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Work::PingPong => "ping-pong 64 B",
            Work::Get => "hyper GET 64 B",
            Work::Bodies => "hyper GET 64 MiB",
            Work::Call => "call 64 B",
            Work::Tonic => "tonic 64 B",
            Work::Channels => "2 channels 64 B",
            Work::Stream => "stream 64 KiB",
            Work::StreamInPlace => "stream 64 KiB in place",
            Work::RawChannel => "raw channel 64 KiB",
            Work::RaftOne => "openraft, 1 write",
            Work::RaftMany => "openraft, 64 writes",
            Work::IdlePolls => "idle, 1 recv_async",
            Work::IdleCost => "idle, 1000 recv_async",
        }
    }

    pub(crate) fn unit(self) -> Unit {
        match self {
            Work::PingPong | Work::Get | Work::Call | Work::Tonic | Work::Channels => {
                Unit::Nanoseconds
            }
            Work::Bodies | Work::Stream | Work::StreamInPlace | Work::RawChannel => {
                Unit::BytesPerSecond
            }
            Work::RaftOne | Work::RaftMany => Unit::WritesPerSecond,
            Work::IdlePolls => Unit::PollsPerSecond,
            Work::IdleCost => Unit::PercentOfCore,
        }
    }

    /// Returns the exchanges of about half a second, or the fewest that show that the work runs.
    pub(crate) fn count(self, is_quick: bool) -> u64 {
        let (usual, quick) = match self {
            Work::PingPong | Work::Channels => (20_000, 100),
            Work::Get | Work::Call | Work::Tonic => (10_000, 100),
            Work::Bodies => (8, 1),
            Work::Stream | Work::StreamInPlace | Work::RawChannel => (16_384, 64),
            Work::RaftOne => (3_000, 64),
            Work::RaftMany => (30_000, 64),
            Work::IdlePolls | Work::IdleCost => (5_000, 200),
        };
        if is_quick { quick } else { usual }
    }

    /// Returns the number of processes beside the measuring one.
    pub(crate) fn peers(self) -> u64 {
        match self {
            Work::RaftOne | Work::RaftMany => 2,
            _ => 1,
        }
    }

    /// Returns the payload bytes of one exchange.
    pub(crate) fn exchange_bytes(self) -> usize {
        match self {
            Work::Bodies => 64 << 20,
            Work::Stream | Work::StreamInPlace | Work::RawChannel => 64 << 10,
            _ => 64,
        }
    }
}

/// The transport between the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Over {
    /// A `TcpStream` of tokio, with `TCP_NODELAY`.
    Socket,
    /// A session of two nodes.
    Ibex {
        fabric: FabricName,
        driver: DriverName,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum FabricName {
    Shm,
    Tcp,
}

impl FabricName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            FabricName::Shm => "shm",
            FabricName::Tcp => "tcp",
        }
    }
}

impl From<FabricName> for ibex::Fabric {
    fn from(name: FabricName) -> ibex::Fabric {
        match name {
            FabricName::Shm => ibex::Fabric::Shm,
            FabricName::Tcp => ibex::Fabric::Tcp,
        }
    }
}

/// The driver of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum DriverName {
    /// The node's own I/O thread.
    Threads,
    /// Tasks of the runtime that the node is used in.
    Tasks,
}

impl DriverName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            DriverName::Threads => "threads",
            DriverName::Tasks => "tasks",
        }
    }
}

impl From<DriverName> for ibex::Driver {
    fn from(name: DriverName) -> ibex::Driver {
        match name {
            DriverName::Threads => ibex::Driver::Threads,
            DriverName::Tasks => ibex::Driver::Tasks,
        }
    }
}

/// The flavour of a process's tokio runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RuntimeName {
    /// A single thread, which runs all tasks.
    Current,
    /// Two worker threads, which take tasks from each other.
    Multi,
}

impl RuntimeName {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RuntimeName::Current => "current-thread",
            RuntimeName::Multi => "multi-thread",
        }
    }

    pub(crate) fn build(self) -> io::Result<Runtime> {
        let mut builder = match self {
            RuntimeName::Current => Builder::new_current_thread(),
            RuntimeName::Multi => Builder::new_multi_thread(),
        };
        builder.worker_threads(2).enable_all().build()
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// The median time of an exchange.
    Nanoseconds,
    BytesPerSecond,
    WritesPerSecond,
    PollsPerSecond,
    PercentOfCore,
}

impl Unit {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Unit::Nanoseconds => "ns",
            Unit::BytesPerSecond => "bytes/s",
            Unit::WritesPerSecond => "writes/s",
            Unit::PollsPerSecond => "polls/s",
            Unit::PercentOfCore => "% of a core",
        }
    }

    pub(crate) fn show(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => duration(value.round() as u64),
            Unit::BytesPerSecond => format!("{}/s", bytes(value)),
            Unit::WritesPerSecond => format!("{}/s", count(value)),
            Unit::PollsPerSecond => format!("{} polls/s", count(value)),
            Unit::PercentOfCore => format!("{value:.2} % core"),
        }
    }

    /// Returns whether a higher figure is a better one.
    pub(crate) fn is_rate(self) -> bool {
        match self {
            Unit::BytesPerSecond | Unit::WritesPerSecond => true,
            Unit::Nanoseconds | Unit::PollsPerSecond | Unit::PercentOfCore => false,
        }
    }
}
