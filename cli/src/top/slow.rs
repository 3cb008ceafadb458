//! The slowest messages of a node's last minute, and where their time went, in words.

use ibex_harness::row;

use super::answer::{Answer, Slow};
use crate::page::{Page, Tone};

/// Writes the slowest messages, if the node has any.
pub(crate) fn write(now: &Answer, page: &mut Page) {
    if now.slow.is_empty() {
        return;
    }
    page.title("slowest messages of the last minute");
    for message in now.slow.iter().take(SHOWN) {
        let total = row::duration(message.total_ns);
        page.row(2, &total, 10, Tone::Plain, &text(message));
    }
}

fn text(message: &Slow) -> String {
    let way = match message.end.as_str() {
        "sender" => "to",
        _ => "from",
    };
    let peer = message.name.as_ref().unwrap_or(&message.address);
    let channel = &message.channel;
    let mut text = match message.sequence {
        0 => format!("call of {channel} {way} {peer}"),
        sequence => format!("message {sequence} of {channel} {way} {peer}"),
    };
    let mut before = ": ";
    for (stage, words) in STAGES {
        if let Some(time) = message.stages.get(*stage).filter(|time| **time > 0) {
            text += &format!("{before}{} {words}", row::duration(*time));
            before = ", ";
        }
    }
    text
}

/// The stages in the order in which a message goes through them.
const STAGES: &[(&str, &str)] = &[
    ("room_ns", "waiting for room in the window"),
    ("credit_ns", "waiting for credit"),
    ("frame_ns", "until it was in a frame"),
    ("answer_ns", "until the peer had answered for it"),
    ("queue_ns", "in the queue of the receiver"),
    ("program_ns", "in the receiving program"),
];
/// Messages that are shown; `--json` has all.
const SHOWN: usize = 8;
