//! The answer to whoever inspects a node: its statistics as JSON. The form is documented in
//! `inspect`.
#![forbid(unsafe_code)]

use std::{
    env, process,
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ibex_base::Address;
use ibex_base::tls::TlsCredentials;
use ibex_transport::{
    node::SlowMessageFacts,
    runtime::{Driver, Runtime, has_membarrier},
    session::SessionStats,
};

use super::json::{self, Object};
use crate::{
    PeerId, Role,
    meeting::listener::FailureCounts,
    stats::{
        ChannelState, ChannelStats, EngineStats, NodeSession, NodeStats, NodeTotals, SecurityStats,
        SessionState,
    },
};

/// What there is to see of a node.
pub(crate) struct Observed {
    pub(crate) name: Option<Arc<str>>,
    pub(crate) id: PeerId,
    pub(crate) address: Option<Address>,
    pub(crate) failures: Arc<FailureCounts>,
    pub(crate) driver: Driver,
    pub(crate) credentials: Option<Arc<dyn TlsCredentials>>,
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) environment: Vec<(&'static str, String)>,
    /// The time at which the node was made.
    pub(crate) began: Instant,
}

impl Observed {
    pub(crate) fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Returns the line that a client is sent.
    pub(crate) fn answer(&self) -> String {
        let stats = NodeStats::new(
            self.name().map(str::to_owned),
            self.id,
            (self.address, &self.failures),
            self.driver,
            has_membarrier(),
            self.credentials.as_ref().map(|keys| keys.stats()),
            (self.runtime.stats(), Vec::new()),
        );
        let mut line = json::object(|answer| {
            answer.number("version", VERSION);
            answer.number("pid", process::id().into());
            let program = env::current_exe().ok();
            let program = program.as_ref().and_then(|path| path.file_name());
            answer.text_of("program", program.map(|name| name.to_string_lossy()));
            answer.text_of("name", self.name());
            answer.text("id", stats.id);
            answer.text_of("address", stats.address);
            answer.text("driver", driver_name(stats.driver));
            answer.number("age_ns", nanoseconds(self.began.elapsed()));
            answer.object("environment", |variables| {
                for (name, value) in &self.environment {
                    variables.text(name, value);
                }
            });
            if let Some(security) = &stats.security {
                answer.object("security", |object| write_security(object, security));
            }
            answer.object("memory", |memory| self.write_memory(memory));
            answer.object("totals", |object| write_totals(object, &stats.totals));
            answer.list("engines", &stats.engines, write_engine);
            answer.list("sessions", &stats.sessions, write_session);
            let slow = self.runtime.state().slow_messages();
            answer.list("slow", slow, |object, message| write_slow(object, &message));
        });
        line.push('\n');
        line
    }

    fn write_memory(&self, memory: &mut Object<'_>) {
        let (held, limit) = self.runtime.state().long_message_bytes();
        memory.number("held_bytes", held);
        memory.number("limit_bytes", limit);
        #[cfg(feature = "verbs")]
        {
            let locked = ibex_verbs::LockedMemory::now();
            memory.number("pinned_bytes", locked.pinned);
            memory.number_of("pinned_limit_bytes", locked.limit);
        }
    }
}

fn write_security(object: &mut Object<'_>, security: &SecurityStats) {
    let SecurityStats {
        handshakes,
        other_mode,
        wrong_secret,
        unknown_issuer,
        expired,
        revoked,
        not_authorized,
        other_failures,
        certificate_expires,
        ..
    } = security;
    object.number("handshakes", *handshakes);
    object.object("failures", |failures| {
        failures.number("other_mode", *other_mode);
        failures.number("wrong_secret", *wrong_secret);
        failures.number("unknown_issuer", *unknown_issuer);
        failures.number("expired", *expired);
        failures.number("revoked", *revoked);
        failures.number("not_authorized", *not_authorized);
        failures.number("other_failures", *other_failures);
    });
    let expires = certificate_expires.map(|time| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs()
    });
    object.number_of("certificate_expires_unix_s", expires);
}

fn write_totals(object: &mut Object<'_>, totals: &NodeTotals) {
    let NodeTotals {
        sessions,
        refused_connections,
        silent_connections,
        sent,
        received,
        stalls,
        stalled,
        counters,
    } = totals;
    object.number("sessions", *sessions);
    object.number("refused_connections", *refused_connections);
    object.number("silent_connections", *silent_connections);
    object.number("sent", *sent);
    object.number("received", *received);
    object.number("stalls", *stalls);
    object.number("stalled_ns", nanoseconds(*stalled));
    object.object("counters", |object| write_counters(object, counters));
}

fn write_counters(object: &mut Object<'_>, counters: &SessionStats) {
    for (name, value) in counters.numbers() {
        object.number(name, value);
    }
    object.number("credit_stalled_ns", nanoseconds(counters.credit_stalled));
}

fn write_engine(object: &mut Object<'_>, engine: &EngineStats) {
    let EngineStats {
        turns,
        sessions,
        sent,
        received,
        bytes_sent,
        bytes_received,
    } = engine;
    object.number("turns", *turns);
    object.number("sessions", *sessions as u64);
    object.number("sent", *sent);
    object.number("received", *received);
    object.number("bytes_sent", *bytes_sent);
    object.number("bytes_received", *bytes_received);
}

fn write_session(object: &mut Object<'_>, session: &NodeSession) {
    let NodeSession {
        number,
        peer,
        engine,
        address,
        names,
        fabric,
        rdma_port,
        first_fabric,
        fabric_reason,
        completion_polling,
        state,
        suspension,
        counters,
        channels,
    } = session;
    object.number("number", *number);
    object.text("peer", peer);
    object.number("engine", *engine as u64);
    object.text("address", address);
    object.text_of("name", names.name.as_ref());
    object.text_of("authenticated_as", names.authenticated_as.as_ref());
    object.text("fabric", fabric);
    let rdma_port = rdma_port.as_ref();
    object.text_of(
        "rdma_port",
        rdma_port.map(|(device, port)| format!("{device}/{port}")),
    );
    object.text("first_fabric", first_fabric);
    object.text("fabric_reason", fabric_reason);
    object.text_of("completion_polling", completion_polling.as_ref());
    let state = match state {
        SessionState::Up => "up",
        SessionState::Suspended => "suspended",
        SessionState::Gone => "gone",
    };
    object.text("state", state);
    object.text_of("suspension", suspension.as_ref());
    object.object("counters", |object| write_counters(object, counters));
    object.list("channels", channels, write_channel);
}

fn write_channel(object: &mut Object<'_>, channel: &ChannelStats) {
    object.text("name", &channel.name);
    object.text("end", end_name(channel.end));
    let state = match channel.state {
        ChannelState::Pending => "pending",
        ChannelState::Open => "open",
        _ => "over",
    };
    object.text("state", state);
    object.number("window_messages", channel.window_messages);
    object.number("window_bytes", channel.window_bytes);
    object.number("sent", channel.sent);
    object.number("received", channel.received);
    object.number("released", channel.released);
    object.number("acknowledged", channel.acknowledged);
    object.number("released_bytes", channel.released_bytes);
    object.number("held", channel.held);
    object.number_of("held_oldest", channel.held_oldest);
    object.number("stalls", channel.stalls);
    object.number("stalled_ns", nanoseconds(channel.stalled));
    object.number("large_messages", channel.large_messages);
    object.number("large_bytes", channel.large_bytes);
    object.number("region_bytes_copied", channel.region_bytes_copied);
}

fn write_slow(object: &mut Object<'_>, message: &SlowMessageFacts) {
    let SlowMessageFacts {
        peer,
        channel,
        end,
        sequence,
        at,
        stages,
        ..
    } = message;
    object.text("peer", PeerId::of(peer));
    object.text("address", peer.address);
    object.text_of("name", peer.names.name.as_ref());
    object.text("channel", channel);
    object.text("end", end_name(*end));
    object.number("sequence", *sequence);
    object.number("ago_ns", nanoseconds(at.elapsed()));
    object.number("total_ns", nanoseconds(stages.total()));
    object.object("stages", |object| {
        for (name, time) in stages.named() {
            object.number_of(&format!("{name}_ns"), time.map(nanoseconds));
        }
    });
}

fn end_name(end: Role) -> &'static str {
    match end {
        Role::Sender => "sender",
        Role::Receiver => "receiver",
    }
}

fn driver_name(driver: Driver) -> &'static str {
    match driver {
        Driver::Threads => "threads",
        Driver::Caller => "caller",
        Driver::Tasks => "tasks",
    }
}

/// A number of nanoseconds lasts for 584 years.
fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The version of the form.
const VERSION: u64 = 1;
