//! The table of all metrics. The exporters, the tests of the guide's page and those of the dashboard
//! read it.

use std::time::{Duration, SystemTime};

use ibex::{
    Role,
    stats::{ChannelStats, Measured, NodeStats, NodeTotals, SessionStats},
};

/// A metric.
#[derive(Debug)]
#[non_exhaustive]
pub struct Metric {
    /// The name in Prometheus and in the facade: `ibex_NOUN_UNIT`, and `_total` behind it for a
    /// counter. OpenTelemetry has it without `_total`, which Prometheus appends when it receives
    /// the metric.
    pub name: &'static str,
    /// How the value moves.
    pub kind: Kind,
    /// The unit.
    pub unit: Unit,
    /// What it counts, in a sentence without its full stop.
    pub help: &'static str,
    pub(crate) read: Read,
}

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// It only rises.
    Counter,
    /// It rises and falls.
    Gauge,
    /// A histogram of durations.
    Histogram,
}

/// The unit of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A number of what the name says.
    Count,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Read {
    /// The node.
    Node(fn(&NodeStats) -> u64),
    /// The node, as a point in time; none without a certificate.
    Time(fn(&NodeStats) -> Option<SystemTime>),
    /// The outcomes of handshakes.
    Handshakes,
    /// The number of sessions in each state.
    Sessions,
    /// Each session, and all of them in the node's totals.
    Session(fn(&SessionStats) -> u64),
    /// Each device port of an engine, which has its counts in each of its sessions.
    Port(fn(&SessionStats) -> u64),
    /// Each end of a channel that the node has on this side, and all of them in the node's totals,
    /// if these have the number.
    Channel(
        Role,
        fn(&ChannelStats) -> u64,
        Option<fn(&NodeTotals) -> u64>,
    ),
    /// Each end of a channel, as a number that also falls.
    ChannelNow(Role, fn(&ChannelStats) -> u64),
    /// The histograms of a kind.
    Durations(Measured),
    /// Each file of counters of each device port.
    #[cfg_attr(
        not(feature = "verbs"),
        allow(dead_code, reason = "there are no ports")
    )]
    PortCounters,
}

impl Unit {
    /// Returns a number of a sample in this unit.
    #[must_use]
    pub fn scaled(self, number: u64) -> f64 {
        match self {
            Unit::Count | Unit::Bytes => number as f64,
            Unit::Seconds => number as f64 / 1e9,
        }
    }
}

impl Metric {
    /// Returns the labels that a sample may have, in their order.
    #[must_use]
    pub fn labels(&self) -> &'static [&'static str] {
        match self.read {
            Read::Node(_) | Read::Time(_) => &["node"],
            Read::Handshakes => &["node", "outcome"],
            Read::Sessions => &["node", "fabric", "peer", "state"],
            Read::Session(_) => &["node", "fabric", "peer"],
            Read::Port(_) => &["node", "device", "port"],
            Read::Channel(..) | Read::ChannelNow(..) => &["node", "fabric", "channel", "peer"],
            Read::Durations(Measured::AckWaits) => &["node", "channel"],
            Read::Durations(_) => &["node", "rpc_system_name", "rpc_method", "error_type"],
            Read::PortCounters => &["device", "port", "counter"],
        }
    }
}

const fn counter(name: &'static str, help: &'static str, read: Read) -> Metric {
    metric(name, Kind::Counter, Unit::Count, help, read)
}

const fn bytes(name: &'static str, help: &'static str, read: Read) -> Metric {
    metric(name, Kind::Counter, Unit::Bytes, help, read)
}

const fn seconds(name: &'static str, help: &'static str, read: Read) -> Metric {
    metric(name, Kind::Counter, Unit::Seconds, help, read)
}

const fn gauge(name: &'static str, help: &'static str, read: Read) -> Metric {
    metric(name, Kind::Gauge, Unit::Count, help, read)
}

const fn durations(name: &'static str, help: &'static str, measured: Measured) -> Metric {
    let read = Read::Durations(measured);
    metric(name, Kind::Histogram, Unit::Seconds, help, read)
}

const fn metric(
    name: &'static str,
    kind: Kind,
    unit: Unit,
    help: &'static str,
    read: Read,
) -> Metric {
    Metric {
        name,
        kind,
        unit,
        help,
        read,
    }
}

/// All metrics.
#[rustfmt::skip] // a row is a line
pub static TABLE: &[Metric] = &[
    // Sessions of the node.
    gauge("ibex_sessions", "Sessions, by their state", Read::Sessions),
    counter("ibex_begun_sessions_total", "Sessions that began", Read::Node(|stats| stats.totals.sessions)),
    counter("ibex_suspensions_total", "Times that a session lost its connection", Read::Session(|session| session.suspensions)),
    counter("ibex_resumes_total", "Times that a session continued over another connection", Read::Session(|session| session.resumes)),
    counter("ibex_replayed_messages_total", "Messages that were sent again after a break", Read::Session(|session| session.replayed)),
    counter("ibex_refused_connections_total", "Connections that the listener refused", Read::Node(|stats| stats.totals.refused_connections)),
    counter("ibex_silent_connections_total", "Connections that closed before their first byte", Read::Node(|stats| stats.totals.silent_connections)),
    counter("ibex_handshakes_total", "Authenticated handshakes, and those that failed, by outcome", Read::Handshakes),
    metric("ibex_certificate_expiry_timestamp_seconds", Kind::Gauge, Unit::Seconds, "Unix time at which the node's certificate expires", Read::Time(|stats| stats.security.as_ref()?.certificate_expires)),
    counter("ibex_turns_total", "Turns that the engines have run", Read::Node(|stats| stats.turns)),

    // Channels.
    counter("ibex_sent_messages_total", "Messages sent", Read::Channel(Role::Sender, |end| end.sent, Some(|totals| totals.sent))),
    counter("ibex_received_messages_total", "Messages received", Read::Channel(Role::Receiver, |end| end.received, Some(|totals| totals.received))),
    counter("ibex_acknowledged_messages_total", "Sent messages that the receiving program has acknowledged", Read::Channel(Role::Sender, |end| end.acknowledged, None)),
    bytes("ibex_released_bytes_total", "Bytes of sent messages, with their headers, that the receiving program has released from the ring", Read::Channel(Role::Sender, |end| end.released_bytes, None)),
    counter("ibex_large_messages_total", "Sent messages with memory of their own", Read::Channel(Role::Sender, |end| end.large_messages, None)),
    bytes("ibex_large_bytes_total", "Bytes of sent messages with memory of their own", Read::Channel(Role::Sender, |end| end.large_bytes, None)),
    bytes("ibex_copied_region_bytes_total", "Bytes of sent messages with memory of their own that were copied out of a region", Read::Channel(Role::Sender, |end| end.region_bytes_copied, None)),
    counter("ibex_stalls_total", "Times that a sender found no room in its channel", Read::Channel(Role::Sender, |end| end.stalls, Some(|totals| totals.stalls))),
    seconds("ibex_stalled_seconds_total", "Time for which senders have waited for room", Read::Channel(Role::Sender, |end| nanoseconds(end.stalled), Some(|totals| nanoseconds(totals.stalled)))),
    gauge("ibex_unreleased_messages", "Sent messages that the receiving program has not released", Read::ChannelNow(Role::Sender, |end| end.held)),
    gauge("ibex_window_messages", "Sent messages that may be unreleased", Read::ChannelNow(Role::Sender, |end| end.window_messages)),
    gauge("ibex_held_messages", "Received messages that this program has not released", Read::ChannelNow(Role::Receiver, |end| end.held)),

    // Calls, and waits for acknowledgements.
    durations("rpc_client_call_duration_seconds", "Duration of calls, at the caller", Measured::Calls),
    durations("rpc_server_call_duration_seconds", "Duration of calls, at the service", Measured::Handling),
    durations("ibex_ack_wait_seconds", "Duration of waits for an acknowledgement", Measured::AckWaits),

    // Traffic of sessions.
    counter("ibex_sent_frames_total", "Frames sent", Read::Session(|session| session.frames_sent)),
    counter("ibex_received_frames_total", "Frames received", Read::Session(|session| session.frames_received)),
    bytes("ibex_sent_bytes_total", "Bytes sent over tcp and verbs, control included", Read::Session(|session| session.bytes_sent)),
    bytes("ibex_received_bytes_total", "Bytes received over tcp and verbs, control included", Read::Session(|session| session.bytes_received)),
    bytes("ibex_sealed_bytes_total", "Bytes that were encrypted before they were sent", Read::Session(|session| session.bytes_sealed)),
    bytes("ibex_sent_control_bytes_total", "Bytes sent over the connection beside shared memory", Read::Session(|session| session.control_bytes_sent)),
    bytes("ibex_received_control_bytes_total", "Bytes received over the connection beside shared memory", Read::Session(|session| session.control_bytes_received)),
    bytes("ibex_copied_bytes_total", "Bytes of messages that were copied after they arrived", Read::Session(|session| session.bytes_copied)),
    counter("ibex_write_calls_total", "System calls that wrote bytes", Read::Session(|session| session.writes)),
    counter("ibex_read_calls_total", "System calls that read bytes", Read::Session(|session| session.reads)),
    counter("ibex_empty_read_calls_total", "System calls that found nothing to read", Read::Session(|session| session.empty_reads)),
    counter("ibex_credit_stalls_total", "Times that sending waited for the peer's arrival memory", Read::Session(|session| session.credit_stalls)),
    seconds("ibex_credit_stalled_seconds_total", "Time for which sending has waited for the peer's arrival memory", Read::Session(|session| nanoseconds(session.credit_stalled))),
    counter("ibex_wakeups_total", "Times that the peer process was woken (shm)", Read::Session(|session| session.bells)),
    counter("ibex_checksum_errors_total", "Times that this end found damaged bytes", Read::Session(|session| session.checksum_errors)),
    counter("ibex_peer_checksum_errors_total", "Times that the peer found damaged bytes", Read::Session(|session| session.checksum_errors_at_peer)),

    // RDMA.
    counter("ibex_queue_stalls_total", "Times that sending waited for a place in the send queue (verbs)", Read::Session(|session| session.queue_stalls)),
    counter("ibex_inline_frames_total", "Frames sent inline", Read::Session(|session| session.inline_sends)),
    counter("ibex_eager_frames_total", "Frames that the device read from registered memory (verbs)", Read::Session(|session| session.eager_sends)),
    counter("ibex_rdma_writes_total", "Writes into the peer's memory (verbs)", Read::Session(|session| session.rdma_writes)),
    bytes("ibex_rdma_bytes_total", "Bytes written into the peer's memory (verbs)", Read::Session(|session| session.rdma_bytes)),
    counter("ibex_sent_eager_blocks_total", "Messages written into blocks that the peer had granted ahead (verbs)", Read::Session(|session| session.eager_blocks_sent)),
    counter("ibex_received_eager_blocks_total", "Messages that the peer wrote into blocks of this node (verbs)", Read::Session(|session| session.landed)),
    counter("ibex_sent_rendezvous_total", "Large messages that went without a copy: written into memory that the peer granted, or read by the peer (verbs)", Read::Session(|session| session.rendezvous_sent)),
    counter("ibex_received_rendezvous_total", "Large messages that the peer wrote into memory of this node, or that were read from its memory (verbs)", Read::Session(|session| session.rendezvous_received)),
    counter("ibex_rail_reads_total", "Pieces of the peer's large messages that were read over other device ports than the session's own (verbs)", Read::Session(|session| session.rail_reads)),
    counter("ibex_work_requests_total", "Requests posted to the send queue (verbs)", Read::Session(|session| session.work_requests)),
    counter("ibex_signaled_requests_total", "Requests that asked for a completion (verbs)", Read::Session(|session| session.signaled)),
    counter("ibex_doorbells_total", "Calls that posted requests (verbs)", Read::Session(|session| session.doorbells)),
    counter("ibex_completions_total", "Completions of sends and receives (verbs)", Read::Session(|session| session.completions)),
    counter("ibex_completion_polls_total", "Polls for completions of a device port (verbs)", Read::Port(|session| session.polls)),
    counter("ibex_empty_completion_polls_total", "Polls that found no completion (verbs)", Read::Port(|session| session.empty_polls)),
    counter("ibex_device_events_total", "Asynchronous events of a device port (verbs)", Read::Port(|session| session.device_events)),
    counter("ibex_ignored_device_events_total", "Asynchronous events that needed no action (verbs)", Read::Port(|session| session.ignored_events)),
    counter("ibex_stray_completions_total", "Completions that belong to no outstanding request (verbs)", Read::Port(|session| session.stray_completions)),
    counter("ibex_port_counter_total", "What driver and hardware count at a device port in use, by the names of the kernel's files (verbs)", Read::PortCounters),
];

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Gives each number of a session a value of its own, and finds it in the table.
    #[test]
    fn every_number_of_a_session_has_one_metric() {
        let stats = serde_json::to_value(SessionStats::default()).expect("it serializes");
        let serde_json::Value::Object(mut fields) = stats else {
            panic!("a session's counts are fields");
        };
        let numbers = fields.values_mut().filter(|value| value.is_u64());
        for (number, value) in (1..).zip(numbers) {
            *value = serde_json::Value::from(number);
        }
        let stats = serde_json::from_value(fields.into());
        let stats: SessionStats = stats.expect("it deserializes");
        for (name, value) in stats.numbers() {
            let exported = TABLE.iter().filter(|metric| match metric.read {
                Read::Session(read) | Read::Port(read) => read(&stats) == value,
                _ => false,
            });
            assert_eq!(exported.count(), 1, "{name}");
        }
    }
}
