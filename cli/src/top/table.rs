//! The table of a node: rates, sessions, channels, what deserves attention, slow messages.

use std::time::{Duration, SystemTime};

use ibex_harness::row;

use super::answer::{Answer, Channel, Interval, Session};
use super::findings::{findings, percent};
use super::{slow, title};
use crate::date;
use crate::page::{Page, Tone};

/// Writes the table. Its rates are those between the two answers.
pub(crate) fn write(before: &Answer, now: &Answer, page: &mut Page) {
    let interval = Interval::between(before, now);
    write_head(before, now, interval, page);
    for session in &now.sessions {
        write_session(session, session.before(before), interval, page);
    }
    if now.sessions.is_empty() {
        page.gap();
        page.text(0, "There is no session.");
    }
    let findings = findings(before, now, SystemTime::now());
    for finding in &findings {
        page.gap();
        page.row(0, "warning", 8, Tone::Warning, &finding.seen);
        page.text(8, &finding.meaning);
        page.row(8, "to do:", 7, Tone::Plain, &finding.step);
    }
    slow::write(now, page);
}

fn write_head(before: &Answer, now: &Answer, interval: Interval, page: &mut Page) {
    page.title(&title(now));
    let rate = |of: fn(&Answer) -> u64| interval.rate(Some(of(before)), of(now));
    let bytes = |of: fn(&Session) -> u64| {
        let rate = |session: &Session| interval.rate(session.before(before).map(of), of(session));
        row::bytes(
            now.sessions
                .iter()
                .map(rate)
                .fold(0.0, |sum, rate| sum + rate)
                .round(),
        )
    };
    let sent = row::count(rate(|answer| answer.totals.sent).round());
    let received = row::count(rate(|answer| answer.totals.received).round());
    let (out, r#in) = (bytes(Session::bytes_out), bytes(Session::bytes_in));
    page.text(
        2,
        &format!(
            "sent {sent}/s ({out}/s), received {received}/s ({in}/s), {}",
            counted(now.sessions.len() as u64, "session"),
        ),
    );
    let age = row::duration(Duration::from_nanos(now.age_ns).as_nanos() as u64);
    let mut facts = format!("driver {}, made {age} ago", now.driver);
    let memory = &now.memory;
    facts += &format!(
        "; unreleased long messages take {} (limit {})",
        row::bytes(memory.held_bytes as f64),
        row::bytes(memory.limit_bytes as f64)
    );
    if let Some(pinned) = memory.pinned_bytes {
        facts += &format!("; registered {}", row::bytes(pinned as f64));
        if let Some(limit) = memory.pinned_limit_bytes {
            facts += &format!(" (limit {})", row::bytes(limit as f64));
        }
    }
    page.text(2, &facts);
    let replays = now.totals.counters.get("replayed").copied().unwrap_or(0);
    let breaks = now.totals.counters.get("suspensions").copied().unwrap_or(0);
    let mut facts = format!(
        "since it was made: {} lost by sessions, {} sent again, {} refused, {} closed before their first byte",
        counted(breaks, "connection"),
        counted(replays, "message"),
        counted(now.totals.refused_connections, "connection"),
        now.totals.silent_connections
    );
    if let Some(security) = &now.security {
        let failed: u64 = security.failures.values().sum();
        facts += &format!("; {} handshakes, {failed} failed", security.handshakes);
        if let Some(seconds) = security.certificate_expires_unix_s {
            let expires = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            facts += &format!("; certificate until {}", date::text(expires));
        }
    }
    page.text(2, &facts);
    for (name, value) in &now.environment {
        page.text(2, &format!("{name}={value} in its environment"));
    }
}

fn write_session(session: &Session, before: Option<&Session>, interval: Interval, page: &mut Page) {
    page.gap();
    let tone = match session.state.as_str() {
        "up" => Tone::Good,
        "suspended" => Tone::Warning,
        _ => Tone::Bad,
    };
    let rate = |of: fn(&Session) -> u64| {
        let rate = interval.rate(before.map(of), of(session));
        row::bytes(rate.round())
    };
    let waits = |name| interval.part(before.map(|before| before.count(name)), session.count(name));
    let name = session.peer_name();
    let at = match name == session.address {
        true => String::new(),
        false => format!(" at {}", session.address),
    };
    let mut text = format!(
        "{name}{at} over {}: out {}/s, in {}/s, waits for credit {}",
        session.carrier(),
        rate(Session::bytes_out),
        rate(Session::bytes_in),
        percent(waits("credit_stalled_ns"))
    );
    let (breaks, replayed) = (session.count("suspensions"), session.count("replayed"));
    if breaks > 0 {
        text += &format!(
            ", {}, {} sent again",
            counted(breaks, "break"),
            counted(replayed, "message")
        );
    }
    page.row(0, &session.state, 10, tone, &text);
    let reason = &session.fabric_reason;
    // It begins with the fabric, or with `vsock`.
    let (first, reason) = reason
        .split_once(": ")
        .unwrap_or((&session.first_fabric, reason));
    let reason = match session.fabric == session.first_fabric {
        true => format!("{first} because: {reason}"),
        false => format!("began over {first} because: {reason}"),
    };
    page.text(10, &reason);
    if let Some(polling) = &session.completion_polling {
        page.text(10, &format!("completions {polling}"));
    }
    if session.channels.is_empty() {
        return;
    }
    page.row(
        2,
        &columns([
            "channel",
            "end",
            "state",
            "per s",
            "held",
            "held max",
            "bytes max",
            "waits",
        ]),
        0,
        Tone::Title,
        "",
    );
    for channel in &session.channels {
        page.row(
            2,
            &channel_row(channel, channel.before(before), interval),
            0,
            Tone::Plain,
            "",
        );
    }
}

fn channel_row(channel: &Channel, before: Option<&Channel>, interval: Interval) -> String {
    let rate = interval.rate(before.map(Channel::messages), channel.messages());
    let waits = match channel.is_sender() {
        true => percent(interval.part(before.map(|before| before.stalled_ns), channel.stalled_ns)),
        false => "-".to_owned(),
    };
    columns([
        &channel.name,
        &channel.end,
        &channel.state,
        &row::count(rate.round()),
        &channel.held.to_string(),
        &channel.window_messages.to_string(),
        &row::bytes(channel.window_bytes as f64),
        &waits,
    ])
}

/// Names a number of things.
fn counted(number: u64, one: &str) -> String {
    match number {
        1 => format!("1 {one}"),
        _ => format!("{number} {one}s"),
    }
}

/// Lays cells out: the first three to the left, numbers to the right. A name that is too long is
/// cut.
fn columns([name, end, state, cells @ ..]: [&str; 8]) -> String {
    let name: String = match name.chars().count() > NAME {
        true => name.chars().take(NAME - 1).chain(['…']).collect(),
        false => name.to_owned(),
    };
    let mut line = format!("{name:NAME$}  {end:8}  {state:7}");
    for cell in cells {
        line += &format!("  {cell:>9}");
    }
    line
}

/// Columns of a channel's name.
const NAME: usize = 20;
