//! The answer of a node, as `ibex::inspect` documents it.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Counts by their names.
pub(crate) type Counters = BTreeMap<String, u64>;

/// What a node tells of itself.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Answer {
    pub(crate) pid: u32,
    pub(crate) program: Option<String>,
    pub(crate) name: Option<String>,
    pub(crate) address: Option<String>,
    pub(crate) driver: String,
    pub(crate) age_ns: u64,
    #[serde(default)]
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) security: Option<Security>,
    pub(crate) memory: Memory,
    pub(crate) totals: Totals,
    pub(crate) sessions: Vec<Session>,
    #[serde(default)]
    pub(crate) slow: Vec<Slow>,
}

/// A message that took long.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Slow {
    pub(crate) address: String,
    pub(crate) name: Option<String>,
    pub(crate) channel: String,
    pub(crate) end: String,
    pub(crate) sequence: u64,
    pub(crate) total_ns: u64,
    /// Times by the names of the stages.
    pub(crate) stages: Counters,
}

/// How peers are authenticated.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Security {
    pub(crate) handshakes: u64,
    pub(crate) failures: Counters,
    pub(crate) certificate_expires_unix_s: Option<u64>,
}

/// Memory of the node's process.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(crate) struct Memory {
    pub(crate) held_bytes: u64,
    pub(crate) limit_bytes: u64,
    pub(crate) pinned_bytes: Option<u64>,
    pub(crate) pinned_limit_bytes: Option<u64>,
}

/// What the node has counted since it was made.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Totals {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) refused_connections: u64,
    pub(crate) silent_connections: u64,
    pub(crate) counters: Counters,
}

/// A session.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Session {
    pub(crate) peer: String,
    pub(crate) engine: u64,
    pub(crate) address: String,
    pub(crate) name: Option<String>,
    pub(crate) authenticated_as: Option<String>,
    pub(crate) fabric: String,
    pub(crate) first_fabric: String,
    pub(crate) fabric_reason: String,
    pub(crate) completion_polling: Option<String>,
    pub(crate) state: String,
    pub(crate) suspension: Option<String>,
    pub(crate) counters: Counters,
    pub(crate) channels: Vec<Channel>,
}

/// One end of a channel.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Channel {
    pub(crate) name: String,
    pub(crate) end: String,
    pub(crate) state: String,
    pub(crate) window_messages: u64,
    pub(crate) window_bytes: u64,
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) released_bytes: u64,
    pub(crate) held: u64,
    pub(crate) held_oldest: Option<u64>,
    pub(crate) stalled_ns: u64,
    pub(crate) large_bytes: u64,
}

impl Session {
    /// Returns the peer's name, or else the identity that it has proven or its address.
    pub(crate) fn peer_name(&self) -> &str {
        let proven = self.authenticated_as.as_ref();
        self.name.as_ref().or(proven).unwrap_or(&self.address)
    }

    /// Returns a count; 0 if the node does not know it.
    pub(crate) fn count(&self, name: &str) -> u64 {
        self.counters.get(name).copied().unwrap_or(0)
    }

    /// Returns the name of what carries the data: the fabric, or vsock.
    pub(crate) fn carrier(&self) -> &str {
        match self.fabric == "tcp" && self.address.starts_with("vsock:") {
            true => "vsock",
            false => &self.fabric,
        }
    }

    /// Returns the bytes that left this node. Over shared memory the channels count them.
    pub(crate) fn bytes_out(&self) -> u64 {
        match self.fabric == "shm" {
            true => self.bytes_of("sender"),
            false => self.count("bytes_sent"),
        }
    }

    /// Returns the bytes that came to this node.
    pub(crate) fn bytes_in(&self) -> u64 {
        match self.fabric == "shm" {
            true => self.bytes_of("receiver"),
            false => self.count("bytes_received"),
        }
    }

    fn bytes_of(&self, end: &str) -> u64 {
        let ends = self.channels.iter().filter(|channel| channel.end == end);
        ends.map(|channel| channel.released_bytes + channel.large_bytes)
            .sum()
    }

    /// Returns this session in an earlier answer.
    pub(crate) fn before<'a>(&self, before: &'a Answer) -> Option<&'a Session> {
        let is_same = |other: &&Session| {
            (&other.peer, &other.address, other.engine) == (&self.peer, &self.address, self.engine)
        };
        before.sessions.iter().find(is_same)
    }
}

impl Channel {
    pub(crate) fn is_sender(&self) -> bool {
        self.end == "sender"
    }

    /// Returns the messages that went through this end.
    pub(crate) fn messages(&self) -> u64 {
        match self.is_sender() {
            true => self.sent,
            false => self.received,
        }
    }

    /// Returns this end in an earlier state of its session.
    pub(crate) fn before<'a>(&self, before: Option<&'a Session>) -> Option<&'a Channel> {
        let is_same = |other: &&Channel| (&other.name, &other.end) == (&self.name, &self.end);
        before?.channels.iter().find(is_same)
    }
}

/// The time between two answers of a node, for rates.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interval(pub(crate) f64);

impl Interval {
    /// Returns the time between two answers.
    pub(crate) fn between(before: &Answer, now: &Answer) -> Self {
        let ns = now.age_ns.saturating_sub(before.age_ns);
        Self((ns as f64 / 1e9).max(1e-6))
    }

    /// Returns how much a count rose in a second, from 0 for what was not there before.
    pub(crate) fn rate(self, before: Option<u64>, now: u64) -> f64 {
        now.saturating_sub(before.unwrap_or(0)) as f64 / self.0
    }

    /// Returns the part of the time that a count of nanoseconds rose by, up to 1.
    pub(crate) fn part(self, before: Option<u64>, now: u64) -> f64 {
        (self.rate(before, now) / 1e9).min(1.0)
    }
}
