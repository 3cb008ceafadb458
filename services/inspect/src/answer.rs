//! The answer to whoever inspects a node: its statistics as JSON. The form is documented at the crate.

use std::{env, process, time::SystemTime};

use ibex_core::{
    extend::{Escaped, NodeView},
    stats::{SecurityStats, SlowMessage},
};
use serde_json::{Map, Value, json};

/// Returns the line that a client is sent.
pub(crate) fn answer(view: &NodeView) -> String {
    let stats = view.stats_without_histograms();
    let program = env::current_exe().ok();
    let program = program.as_ref().and_then(|path| path.file_name());
    let environment = view.environment().iter();
    let environment = environment.map(|(name, value)| ((*name).to_owned(), json!(value)));
    let slow = view.slow_messages();
    let answer = json!({
        "version": VERSION,
        "pid": process::id(),
        "program": program.map(|name| name.to_string_lossy()),
        "name": stats.name,
        "id": stats.id,
        "address": stats.address,
        "driver": stats.driver,
        "age": view.age(),
        "environment": environment.collect::<Map<_, _>>(),
        "security": stats.security.as_ref().map(security),
        "memory": memory(view),
        "totals": stats.totals,
        "engines": stats.engines,
        "sessions": stats.sessions,
        "slow": slow.iter().map(slow_message).collect::<Vec<_>>(),
    });
    format!("{}\n", in_form(answer))
}

fn memory(view: &NodeView) -> Value {
    let (held, limit) = view.runtime().state().long_message_bytes();
    #[cfg(feature = "verbs")]
    let (pinned, pinned_limit) = {
        let locked = ibex_core::extend::LockedMemory::now();
        (Some(locked.pinned), locked.limit)
    };
    #[cfg(not(feature = "verbs"))]
    let (pinned, pinned_limit) = (None::<u64>, None::<u64>);
    json!({
        "held_bytes": held,
        "limit_bytes": limit,
        "pinned_bytes": pinned,
        "pinned_limit_bytes": pinned_limit,
    })
}

fn security(stats: &SecurityStats) -> Value {
    let mut failures = json!(stats);
    if let Value::Object(counts) = &mut failures {
        counts.retain(|name, _| name != "handshakes" && name != "certificate_expires");
    }
    let expires = stats.certificate_expires.map(|time| {
        let since = time.duration_since(SystemTime::UNIX_EPOCH);
        since.unwrap_or_default().as_secs()
    });
    json!({
        "handshakes": stats.handshakes,
        "failures": failures,
        "certificate_expires_unix_s": expires,
    })
}

fn slow_message(message: &SlowMessage) -> Value {
    json!({
        "peer": message.peer,
        "address": message.address,
        "name": message.names.name.as_deref(),
        "channel": message.channel,
        "end": message.end,
        "sequence": message.sequence,
        "ago": message.at.elapsed(),
        "total": message.stages.total(),
        "stages": message.stages,
    })
}

/// Gives what serde makes of statistics the form of the answer: durations in nanoseconds, states as
/// words, escaped texts, and no member that does not apply.
fn in_form(value: Value) -> Value {
    match value {
        Value::String(text) => Escaped(&text).to_string().into(),
        Value::Array(items) => items.into_iter().map(in_form).collect(),
        Value::Object(members) => {
            let mut formed = Map::new();
            for (name, value) in members {
                add(&mut formed, name, value);
            }
            formed.into()
        }
        other => other,
    }
}

/// Adds a member of an object in the form of the answer.
fn add(object: &mut Map<String, Value>, name: String, value: Value) {
    match (name.as_str(), value) {
        (_, Value::Null) => {}
        ("names", Value::Object(names)) => {
            for (name, value) in names {
                add(object, name, value);
            }
        }
        ("rdma_port", Value::Array(place)) => {
            if let [Value::String(device), port] = &place[..] {
                object.insert(name, in_form(format!("{device}/{port}").into()));
            }
        }
        ("driver" | "end" | "state", Value::String(word)) => {
            object.insert(name, word.to_ascii_lowercase().into());
        }
        (_, value) => {
            match nanoseconds(&value) {
                Some(time) => object.insert(format!("{name}_ns"), time.into()),
                None => object.insert(name, in_form(value)),
            };
        }
    }
}

/// Returns the nanoseconds of a duration, if serde has made the value of one.
fn nanoseconds(value: &Value) -> Option<u64> {
    let part = |name| value.get(name)?.as_u64();
    Some(
        part("secs")?
            .saturating_mul(1_000_000_000)
            .saturating_add(part("nanos")?),
    )
}

/// The version of the form.
const VERSION: u64 = 1;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statistics_have_the_form_that_is_documented() {
        let made = json!({
            "name": "a \"b\" \\ \u{1b}[2J\nß",
            "none": null,
            "most": u64::MAX,
            "stalled": Duration::new(2, 3),
            "longest": Duration::MAX,
            "state": "Suspended",
            "names": { "name_of_peer": "near", "authenticated_as": null },
            "rdma_port": ["mlx5_0", 1],
            "empty": {},
            "list": [{ "stages": { "room": null, "answer": Duration::from_nanos(5) } }],
        });
        let formed = json!({
            "name": "a \"b\" \\ \\u{1b}[2J\\nß",
            "most": u64::MAX,
            "stalled_ns": 2_000_000_003_u64,
            "longest_ns": u64::MAX,
            "state": "suspended",
            "name_of_peer": "near",
            "rdma_port": "mlx5_0/1",
            "empty": {},
            "list": [{ "stages": { "answer_ns": 5 } }],
        });
        assert_eq!(in_form(made), formed);
    }
}
