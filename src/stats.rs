//! A snapshot of what a node, its sessions and their channels have counted, and a table of it.
#![forbid(unsafe_code)]

use std::{fmt, net::SocketAddr, time::Duration};

use ibex_transport::{
    connection::LinkStats,
    runtime::{Driver, EngineStats as EngineCounts},
    session::SessionStats,
};

use crate::{ChannelState, ChannelStats, Fabric, PeerId, Role, SecurityStats, peer::fabric_of};

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
    pub address: Option<SocketAddr>,
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
    /// Counts of each engine.
    pub engines: Vec<EngineStats>,
    /// The node's sessions by engine, the oldest first, without those that are over and forgotten.
    pub sessions: Vec<NodeSession>,
}

/// An engine in a [`NodeStats`]; see [`NodeBuilder::io_threads`](crate::NodeBuilder::io_threads).
///
/// The counts of messages and bytes are those of the sessions and channels that [`NodeStats`] lists,
/// so they fall when one is forgotten. `turns` only rises.
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
    /// The peer's identity.
    pub peer: PeerId,
    /// The engine that turns the session, as an index of [`NodeStats::engines`].
    pub engine: usize,
    /// The peer's address.
    pub address: SocketAddr,
    /// The fabric of the session's data.
    #[cfg_attr(feature = "serde", serde(serialize_with = "as_text"))]
    pub fabric: Fabric,
    /// The way in which the session's completions are polled, and the reason (verbs).
    pub completion_polling: Option<String>,
    /// The state of the session: connected, waiting for a connection, or ended.
    pub state: SessionState,
    /// Counts of the session.
    pub counters: SessionStats,
    /// The session's channels, as far as this node has opened them.
    pub channels: Vec<ChannelStats>,
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

impl NodeStats {
    pub(crate) fn new(
        name: Option<String>,
        id: PeerId,
        address: Option<SocketAddr>,
        driver: Driver,
        has_membarrier: bool,
        security: Option<SecurityStats>,
        counts: Vec<EngineCounts>,
    ) -> Self {
        let (mut engines, mut sessions) = (Vec::new(), Vec::new());
        for EngineCounts { turns, links, .. } in counts {
            let of_engine: Vec<_> = links.into_iter().map(NodeSession::new).collect();
            engines.push(EngineStats::of(turns, &of_engine));
            sessions.extend(of_engine);
        }
        Self {
            name,
            id,
            address,
            driver,
            has_membarrier,
            security,
            turns: engines.iter().map(|engine| engine.turns).sum(),
            engines,
            sessions,
        }
    }
}

impl EngineStats {
    fn of(turns: u64, sessions: &[NodeSession]) -> Self {
        let channels = || sessions.iter().flat_map(|session| &session.channels);
        let counters = || sessions.iter().map(|session| &session.counters);
        Self {
            turns,
            sessions: sessions.len(),
            sent: channels().map(|channel| channel.sent).sum(),
            received: channels().map(|channel| channel.received).sum(),
            bytes_sent: counters().map(|counted| counted.bytes_sent).sum(),
            bytes_received: counters().map(|counted| counted.bytes_received).sum(),
        }
    }
}

impl NodeSession {
    fn new(link: LinkStats) -> Self {
        let peer = link.session.peer();
        Self {
            peer: PeerId::of(peer),
            engine: link.session.engine().index(),
            address: peer.address,
            fabric: fabric_of(link.session.fabric()),
            completion_polling: link.session.completion_polling(),
            state: match link.is_up {
                false => SessionState::Gone,
                true if link.session.is_suspended() => SessionState::Suspended,
                true => SessionState::Up,
            },
            counters: link.session.stats(),
            channels: link.channels,
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
        let driver = match self.driver {
            Driver::Threads => "threads",
            Driver::Caller => "caller",
            Driver::Tasks => "tasks",
        };
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
        self.sessions
            .iter()
            .try_for_each(|session| write!(f, "{session}"))
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
            "{sessions} sessions, {turns} turns, sent {sent}, received {received}, bytes_sent \
             {bytes_sent}, bytes_received {bytes_received}"
        )
    }
}

impl fmt::Display for NodeSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            peer,
            engine: _,
            address,
            fabric,
            completion_polling,
            state,
            counters,
            channels,
        } = self;
        let state = match state {
            SessionState::Up => "",
            SessionState::Suspended => ", suspended",
            SessionState::Gone => ", gone",
        };
        writeln!(f, "  peer {peer} at {address} over {fabric}{state}")?;
        write!(f, "   ")?;
        for (name, value) in numbers(counters) {
            if value != 0 {
                write!(f, " {name} {value}")?;
            }
        }
        if !counters.credit_stalled.is_zero() {
            write!(f, " credit_stalled {:?}", counters.credit_stalled)?;
        }
        writeln!(f)?;
        if let Some(polling) = completion_polling {
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
            let end = match channel.end {
                Role::Sender => "sender",
                Role::Receiver => "receiver",
            };
            let state = match channel.state {
                ChannelState::Pending => "pending",
                ChannelState::Open => "open",
                _ => "over",
            };
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
                format!("{:?}", rounded(channel.stalled)),
            )
        })
    }
}

/// Returns the counts of a session by their names, those of the wire first.
fn numbers(counters: &SessionStats) -> [(&'static str, u64); 36] {
    let &SessionStats {
        frames_sent,
        frames_received,
        bytes_sent,
        bytes_sealed,
        bytes_received,
        control_bytes_sent,
        control_bytes_received,
        bytes_copied,
        writes,
        reads,
        empty_reads,
        credit_stalls,
        credit_stalled: _,
        queue_stalls,
        inline_sends,
        eager_sends,
        rdma_writes,
        rdma_bytes,
        landings_sent,
        landed,
        rendezvous_sent,
        rendezvous_received,
        work_requests,
        signaled,
        doorbells,
        completions,
        polls,
        empty_polls,
        device_events,
        ignored_events,
        stray_completions,
        bells,
        checksum_errors,
        checksum_errors_at_peer,
        suspensions,
        resumes,
        replayed,
    } = counters;
    [
        ("frames_sent", frames_sent),
        ("frames_received", frames_received),
        ("bytes_sent", bytes_sent),
        ("bytes_sealed", bytes_sealed),
        ("bytes_received", bytes_received),
        ("control_bytes_sent", control_bytes_sent),
        ("control_bytes_received", control_bytes_received),
        ("bytes_copied", bytes_copied),
        ("writes", writes),
        ("reads", reads),
        ("empty_reads", empty_reads),
        ("credit_stalls", credit_stalls),
        ("queue_stalls", queue_stalls),
        ("inline_sends", inline_sends),
        ("eager_sends", eager_sends),
        ("rdma_writes", rdma_writes),
        ("rdma_bytes", rdma_bytes),
        ("landings_sent", landings_sent),
        ("landed", landed),
        ("rendezvous_sent", rendezvous_sent),
        ("rendezvous_received", rendezvous_received),
        ("work_requests", work_requests),
        ("signaled", signaled),
        ("doorbells", doorbells),
        ("completions", completions),
        ("polls", polls),
        ("empty_polls", empty_polls),
        ("device_events", device_events),
        ("ignored_events", ignored_events),
        ("stray_completions", stray_completions),
        ("bells", bells),
        ("checksum_errors", checksum_errors),
        ("checksum_errors_at_peer", checksum_errors_at_peer),
        ("suspensions", suspensions),
        ("resumes", resumes),
        ("replayed", replayed),
    ]
}

#[cfg(feature = "serde")]
fn as_text<S: serde::Serializer>(fabric: &Fabric, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(fabric.name())
}

/// Rounds a time to a microsecond.
pub(crate) fn rounded(time: Duration) -> Duration {
    Duration::from_micros(time.as_micros() as u64)
}
