//! A snapshot of what a node, its sessions and their channels have counted, and a table of it.
#![forbid(unsafe_code)]

use std::{fmt, time::Duration};

use ibex_base::{Address, Counted, Rounded};
use ibex_transport::{
    connection::{ConnectionStats, SessionTotals},
    node::{Measured, NodeHistogram},
    runtime::{Driver, EngineCounts},
    session::SessionStats,
};

use super::{ChannelStats, SecurityStats};
use crate::{Fabric, PeerId, PeerNames, meeting::listener::FailureCounts, peer_id::carrier};

/// A snapshot of a node, returned by [`Node::stats`](crate::Node::stats).
///
/// Its `Display` is a table. With the feature `serde` it can be serialized. Numbers are read one by
/// one while the node goes on, so they may differ in age.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeStats {
    /// The node's name, if [`NodeBuilder::name`](crate::NodeBuilder::name) gave it one.
    pub name: Option<String>,
    /// The node's identity.
    pub id: PeerId,
    /// The address that the node listens on.
    pub address: Option<Address>,
    /// The driver that turns the node's engines.
    pub driver: Driver,
    /// True if sleeping readers pay for doorbells by `membarrier`. Otherwise every publisher pays
    /// by a fence, because the kernel refuses that call.
    pub has_membarrier: bool,
    /// Handshakes that authenticate peers; none without
    /// [`security`](crate::NodeBuilder#method.security).
    pub security: Option<SecurityStats>,
    /// Turns that all engines have run.
    pub turns: u64,
    /// What the node has counted since it was made. These counts never fall.
    pub totals: NodeTotals,
    /// Counts of each engine.
    pub engines: Vec<EngineStats>,
    /// The node's sessions by engine, the oldest first, without those that are over and forgotten.
    pub sessions: Vec<NodeSession>,
    /// How long calls and waits for acknowledgements took; empty without
    /// [`histograms`](crate::NodeBuilder::histograms). These counts never fall either.
    pub histograms: Vec<NodeHistogram>,
}

/// What a node has counted since it was made, in a [`NodeStats`].
///
/// The counts never fall: those of a session or a channel that is over stay in them, when the
/// session or channel itself is forgotten. Messages that a program takes from a channel after its
/// session was forgotten are not counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct NodeTotals {
    /// Sessions that began, whichever node connected.
    pub sessions: u64,
    /// Connections of the listener that did not become a session, for a reason that may need
    /// attention: strangers, other versions, peers that were not authenticated, limits.
    pub refused_connections: u64,
    /// Connections of the listener that closed before their first byte, as health probes and port
    /// scans do.
    pub silent_connections: u64,
    /// Messages that channels have sent.
    pub sent: u64,
    /// Messages that channels have received.
    pub received: u64,
    /// Times that a sender found no room.
    pub stalls: u64,
    /// Total time for which senders have waited for room.
    pub stalled: Duration,
    /// The counts of all sessions together. Those of a device port, which sessions share, are 0:
    /// `polls`, `empty_polls`, `device_events`, `ignored_events` and `stray_completions`.
    pub counters: SessionStats,
}

/// An engine in a [`NodeStats`]; see [`NodeBuilder::io_threads`](crate::NodeBuilder::io_threads).
///
/// The counts of messages, bytes and turns never fall.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct EngineStats {
    /// Turns that the engine has run.
    pub turns: u64,
    /// Sessions on the engine.
    pub sessions: usize,
    /// Messages that its channels have sent.
    pub sent: u64,
    /// Messages that its channels have received.
    pub received: u64,
    /// Bytes that its wires have sent.
    pub bytes_sent: u64,
    /// Bytes that its wires have received.
    pub bytes_received: u64,
}

/// A session in a [`NodeStats`].
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeSession {
    /// The number of the session, which no other session of the node has had.
    pub number: u64,
    /// The peer's identity.
    pub peer: PeerId,
    /// The engine that turns the session, as an index of [`NodeStats::engines`].
    pub engine: usize,
    /// The peer's address.
    pub address: Address,
    /// The peer's names.
    pub names: PeerNames,
    /// The fabric of the session's data.
    pub fabric: Fabric,
    /// The RDMA device of this node and the port of it, counted from 1, that carry the session's data
    /// now; `None` over another fabric.
    pub rdma_port: Option<(String, u8)>,
    /// The fabric that the session began with. It differs from `fabric` if the session has failed
    /// over.
    pub first_fabric: Fabric,
    /// The reason for the choice of `first_fabric`; see
    /// [`Peer::fabric_reason`](crate::Peer::fabric_reason).
    pub fabric_reason: String,
    /// The way in which the session's completions are polled, and the reason (verbs).
    pub completion_polling: Option<String>,
    /// The state of the session: connected, waiting for a connection, or ended.
    pub state: SessionState,
    /// Why the session has no connection, since when, and what this node does about it, while it is
    /// suspended.
    pub suspension: Option<String>,
    /// Counts of the session.
    pub counters: SessionStats,
    /// The session's channels, as far as this node has opened them.
    pub channels: Vec<ChannelStats>,
}

/// What the driver and the hardware have counted at a port of an RDMA device;
/// [`NodeStats::port_counters`] reads it.
#[cfg(feature = "verbs")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct PortCounters {
    /// The device, as in `/sys/class/infiniband`.
    pub device: String,
    /// The port, counted from 1.
    pub port: u8,
    /// Each counter by the name of its file, such as `port_rcv_data` or `out_of_sequence`.
    pub counters: Vec<(String, u64)>,
}

/// The state of a session; see [`Node`](crate::Node#when-a-connection-breaks).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub enum SessionState {
    /// The session has a connection.
    Up,
    /// The session has lost its connection and waits for another.
    Suspended,
    /// The session has ended.
    Gone,
}

/// Returns the statistics of the engines and of their sessions, and the totals of the node.
pub(crate) fn of_engines(
    counts: Vec<EngineCounts>,
    failures: &FailureCounts,
) -> (Vec<EngineStats>, Vec<NodeSession>, NodeTotals) {
    let (mut engines, mut sessions) = (Vec::new(), Vec::new());
    let mut all = SessionTotals::default();
    for counts in counts {
        let (connections, mut of_engine) = (counts.connections, counts.ended);
        for connection in &connections {
            of_engine.add(connection);
        }
        engines.push(EngineStats {
            turns: counts.turns,
            sessions: connections.len(),
            sent: of_engine.channels.sent,
            received: of_engine.channels.received,
            bytes_sent: of_engine.counters.bytes_sent,
            bytes_received: of_engine.counters.bytes_received,
        });
        sessions.extend(connections.into_iter().map(NodeSession::new));
        all.add_all(&of_engine);
    }
    let (refused_connections, silent_connections) = failures.counts();
    let totals = NodeTotals {
        sessions: all.sessions,
        refused_connections,
        silent_connections,
        sent: all.channels.sent,
        received: all.channels.received,
        stalls: all.channels.stalls,
        stalled: all.channels.stalled,
        counters: all.counters,
    };
    (engines, sessions, totals)
}

#[cfg(feature = "verbs")]
impl NodeStats {
    /// Reads what the driver and the hardware have counted at each port that carries a session, in
    /// the order of device and port.
    ///
    /// The counts are those of the whole port, of all programs, and are read by this call: from
    /// `/sys/class/infiniband/DEVICE/ports/PORT/counters` and `hw_counters`, which take a device's
    /// firmware milliseconds. A driver without such files has none; the names are its own.
    #[must_use]
    pub fn port_counters(&self) -> Vec<PortCounters> {
        let ports = self.sessions.iter().filter_map(|one| one.rdma_port.clone());
        let ports: std::collections::BTreeSet<_> = ports.collect();
        let sysfs = ibex_verbs::discovery::Sysfs::default();
        let read = |(device, port): (String, u8)| PortCounters {
            counters: sysfs.port_counters(&device, port),
            device,
            port,
        };
        ports.into_iter().map(read).collect()
    }
}

impl NodeSession {
    fn new(connection: ConnectionStats) -> Self {
        let peer = connection.session.peer();
        Self {
            number: connection.session.number(),
            peer: PeerId::of(peer),
            engine: connection.session.engine().index(),
            address: peer.address,
            names: peer.names.clone(),
            fabric: connection.session.fabric(),
            rdma_port: connection.session.rdma_port(),
            first_fabric: peer.fabric,
            fabric_reason: peer.reason.clone(),
            completion_polling: connection.session.completion_polling(),
            state: match connection.is_up {
                false => SessionState::Gone,
                true if connection.session.is_suspended() => SessionState::Suspended,
                true => SessionState::Up,
            },
            suspension: connection.session.suspension().map(|why| why.to_string()),
            counters: connection.session.stats(),
            channels: connection.channels,
        }
    }
}

impl fmt::Display for NodeStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "node {name} ({})", self.id)?,
            None => write!(f, "node {}", self.id)?,
        }
        if let Some(address) = self.address {
            write!(f, ", listening on {address}")?;
        }
        let driver = lower_case(self.driver);
        let doorbells = if self.has_membarrier {
            "membarrier"
        } else {
            "fences"
        };
        writeln!(
            f,
            ": {} sessions, driver {driver}, doorbells by {doorbells}, {} turns",
            self.sessions.len(),
            self.turns
        )?;
        if let Some(security) = &self.security {
            writeln!(f, "  security: {security}")?;
        }
        if self.engines.len() > 1 {
            for (number, engine) in self.engines.iter().enumerate() {
                writeln!(f, "  engine {number}: {engine}")?;
            }
        }
        self.totals.fmt(f)?;
        for histogram in &self.histograms {
            write_histogram(histogram, f)?;
        }
        self.sessions
            .iter()
            .try_for_each(|session| write!(f, "{session}"))
    }
}

impl fmt::Display for NodeTotals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sessions,
            refused_connections,
            silent_connections,
            sent,
            received,
            stalls,
            stalled,
            counters,
        } = self;
        writeln!(
            f,
            "  since the beginning: {}, {} refused and {silent_connections} silent, sent {sent}, \
             received {received}, stalls {stalls} for {}",
            Counted(*sessions, "session"),
            Counted(*refused_connections, "connection"),
            Rounded(*stalled)
        )?;
        write!(f, "   ")?;
        write_counters(counters, f)?;
        writeln!(f)
    }
}

impl fmt::Display for EngineStats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            turns,
            sessions,
            sent,
            received,
            bytes_sent,
            bytes_received,
        } = self;
        write!(
            f,
            "{}, {}, sent {sent}, received {received}, bytes_sent {bytes_sent}, bytes_received \
             {bytes_received}",
            Counted(*sessions as u64, "session"),
            Counted(*turns, "turn")
        )
    }
}

impl fmt::Display for NodeSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            peer,
            address,
            names,
            channels,
            ..
        } = self;
        let state = match self.state {
            SessionState::Up => "",
            SessionState::Suspended => ", suspended",
            SessionState::Gone => ", gone",
        };
        let carrier = carrier(self.fabric, *address);
        writeln!(f, "  peer {peer} at {address}{names} over {carrier}{state}")?;
        write!(f, "   ")?;
        write_counters(&self.counters, f)?;
        writeln!(f)?;
        if let Some(polling) = &self.completion_polling {
            writeln!(f, "    completions {polling}")?;
        }
        if channels.is_empty() {
            return Ok(());
        }
        let names = channels.iter().map(|channel| channel.name.chars().count());
        let width = names.max().unwrap_or(0).max("channel".len());
        writeln!(
            f,
            "    {:width$}  {:8}  {:7}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>6}  {:>6}  {:>9}",
            "channel",
            "end",
            "state",
            "sent",
            "received",
            "released",
            "acked",
            "held from",
            "large",
            "stalls",
            "stalled"
        )?;
        channels.iter().try_for_each(|channel| {
            let (end, state) = (lower_case(channel.end), lower_case(channel.state));
            let oldest = channel.held_oldest.map(|oldest| oldest.to_string());
            writeln!(
                f,
                "    {:width$}  {end:8}  {state:7}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}  {:>6}  \
                 {:>6}  {:>9}",
                channel.name,
                channel.sent,
                channel.received,
                channel.released,
                channel.acknowledged,
                oldest.as_deref().unwrap_or("-"),
                channel.large_messages,
                channel.stalls,
                Rounded(channel.stalled),
            )
        })
    }
}

/// Returns the name of a variant in lower case.
fn lower_case(variant: impl fmt::Debug) -> String {
    format!("{variant:?}").to_ascii_lowercase()
}

/// Writes a line about the durations, if there are any.
fn write_histogram(histogram: &NodeHistogram, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let NodeHistogram {
        measured,
        name,
        error,
        durations,
        ..
    } = histogram;
    let what = match measured {
        Measured::Calls => "calls to",
        Measured::Handling => "handling of",
        Measured::AckWaits => "waits for acknowledgement on",
        _ => "durations of",
    };
    let at = |share| durations.quantile(share).map(Rounded);
    let (Some(median), Some(p99), Some(longest)) = (at(0.5), at(0.99), at(1.0)) else {
        return Ok(());
    };
    let count = durations.count();
    let failed = match error {
        Some(kind) => format!(" that failed ({kind})"),
        None => String::new(),
    };
    writeln!(
        f,
        "  {what} {name}{failed}: {count}, median {median}, 99 % {p99}, longest {longest}"
    )
}

/// Writes the counts that are not 0.
fn write_counters(counters: &SessionStats, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (name, value) in counters.numbers() {
        if value != 0 {
            write!(f, " {name} {value}")?;
        }
    }
    match counters.credit_stalled.is_zero() {
        true => Ok(()),
        false => write!(f, " credit_stalled {}", Rounded(counters.credit_stalled)),
    }
}
