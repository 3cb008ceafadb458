//! What deserves attention in a node: what was seen, what it means, and what to do.

use std::time::{Duration, SystemTime};

use ibex_harness::row;

use super::answer::{Answer, Channel, Interval, Session};
use crate::{date, doctor};

/// Something that deserves attention.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) seen: String,
    pub(crate) meaning: String,
    pub(crate) step: String,
}

/// Returns what deserves attention, given an earlier answer for rates.
pub(crate) fn findings(before: &Answer, now: &Answer, time: SystemTime) -> Vec<Finding> {
    let interval = Interval::between(before, now);
    let mut found = Findings::default();
    found.of_certificate(now, time);
    found.of_memory(now);
    for session in &now.sessions {
        let earlier = session.before(before);
        found.of_session(session, earlier, interval);
        for channel in &session.channels {
            found.of_channel(channel, channel.before(earlier), session, interval);
        }
    }
    let refused = now.totals.refused_connections;
    if before.totals.refused_connections < refused {
        found.add(
            "A connection was refused just now.",
            "A stranger, another version, a certificate or a limit; the node's log says which.",
            "look at the warnings of `ibex_bootstrap` and `ibex` in the program's log",
        );
    }
    found.0
}

#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn add(&mut self, seen: impl Into<String>, meaning: &str, step: &str) {
        self.0.push(Finding {
            seen: seen.into(),
            meaning: meaning.to_owned(),
            step: step.to_owned(),
        });
    }

    fn of_certificate(&mut self, now: &Answer, time: SystemTime) {
        let security = now.security.as_ref();
        let Some(seconds) = security.and_then(|of| of.certificate_expires_unix_s) else {
            return;
        };
        let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let left = expires.duration_since(time).unwrap_or_default();
        if left < doctor::EXPIRES_SOON {
            self.add(
                format!("This node's certificate is valid until {}.", date::text(expires)),
                "From then on peers refuse new connections of this node, also of sessions that break.",
                "renew the file, then call `Node::reload_certificates` or restart the node",
            );
        }
    }

    fn of_memory(&mut self, now: &Answer) {
        let memory = &now.memory;
        if is_nearly(memory.held_bytes, memory.limit_bytes) {
            self.add(
                format!(
                    "Long messages hold {} of {}.",
                    row::bytes(memory.held_bytes as f64),
                    row::bytes(memory.limit_bytes as f64)
                ),
                "Further long messages wait at their senders until this program releases some.",
                "release messages sooner, or raise `NodeBuilder::memory_limit`",
            );
        }
        if let (Some(pinned), Some(limit)) = (memory.pinned_bytes, memory.pinned_limit_bytes)
            && is_nearly(pinned, limit)
        {
            self.add(
                format!(
                    "Devices have pinned {} of the {} that this process may lock.",
                    row::bytes(pinned as f64),
                    row::bytes(limit as f64)
                ),
                "The next session or ring over RDMA may get no memory, and use another fabric or fail.",
                "raise the limit (`ulimit -l`, LimitMEMLOCK= of a systemd unit), or lower \
                 `receive_buffers` and `max_sessions` of `RdmaSettings`",
            );
        }
    }

    fn of_session(&mut self, now: &Session, before: Option<&Session>, interval: Interval) {
        let peer = now.peer_name();
        if let Some(why) = &now.suspension {
            self.add(
                format!("{peer} has no connection: {why}."),
                "Senders wait once their windows are full; messages that arrived are handed out.",
                "see whether the peer runs and its host can be reached (`ibex doctor --to`)",
            );
        }
        if now.fabric != now.first_fabric {
            self.add(
                format!(
                    "{peer} began over {} and goes on over {}.",
                    now.first_fabric, now.fabric
                ),
                "The queue pair, the device or the connection broke, and no other queue pair was \
                 had in time.",
                "`ibex doctor` at both ends; the session stays there, and a new one gets verbs",
            );
        }
        let rose = |name| {
            before.map_or(0, |before| {
                now.count(name) - before.count(name).min(now.count(name))
            })
        };
        let waits = |name| interval.part(before.map(|before| before.count(name)), now.count(name));
        let credit = waits("credit_stalled_ns");
        if credit >= WORTH_TELLING {
            self.add(
                format!(
                    "Sending to {peer} waits for credit {} of the time.",
                    percent(credit)
                ),
                "The peer's arrival memory is full, or shared by too many sessions, for this rate \
                 and round trip.",
                "raise `session_credit_bytes` or `node_credit_bytes` at the peer (over RDMA \
                 `receive_buffers`), or release messages there sooner",
            );
        }
        if rose("suspensions") > 0 || now.count("suspensions") >= MANY_BREAKS {
            self.add(
                format!(
                    "{peer} has lost its connection {} times; {} messages were sent again.",
                    now.count("suspensions"),
                    now.count("replayed")
                ),
                "Nothing was lost, but calls wait meanwhile.",
                "look at the network, and at what ends idle connections on the way",
            );
        }
        let damaged = now.count("checksum_errors") + now.count("checksum_errors_at_peer");
        if damaged > 0 {
            self.add(
                format!("Bytes from or to {peer} were damaged on the way {damaged} times."),
                "Nothing wrong was delivered, and hardware between the hosts is failing.",
                "look at the error counters of both network cards, cables and switches",
            );
        }
    }

    fn of_channel(
        &mut self,
        now: &Channel,
        before: Option<&Channel>,
        session: &Session,
        interval: Interval,
    ) {
        let peer = session.peer_name();
        let name = &now.name;
        let waits = interval.part(before.map(|before| before.stalled_ns), now.stalled_ns);
        if now.is_sender() && waits >= WORTH_TELLING && session.suspension.is_none() {
            self.add(
                format!(
                    "Sends on channel {name} to {peer} wait for room {} of the time.",
                    percent(waits)
                ),
                "The window is full of messages that the receiving program has not released, so \
                 the receiver is the slower end.",
                "make the receiver faster or let it release messages sooner; for bursts, raise \
                 `window_messages` and `window_bytes`",
            );
        }
        if !now.is_sender() && 2 * now.held >= now.window_messages {
            let oldest = now.held_oldest.unwrap_or(0);
            self.add(
                format!(
                    "This program holds {} messages of channel {name} from {peer}, number {oldest} \
                     the longest.",
                    now.held
                ),
                "Their sender waits once the window is full, however many of the later ones are \
                 released.",
                "drop or acknowledge that message, or keep it by `into_owned`",
            );
        }
    }
}

/// Returns whether four fifths of a limit are used.
fn is_nearly(used: u64, limit: u64) -> bool {
    used / 4 >= limit / 5 && limit > 0
}

/// Formats a part of the time.
pub(crate) fn percent(part: f64) -> String {
    format!("{:.0} %", 100.0 * part)
}

/// The part of the time from which on a wait is reported.
const WORTH_TELLING: f64 = 0.1;
/// The breaks of a session from which on they are reported even if the last is long ago.
const MANY_BREAKS: u64 = 3;
