//! The effect on a session of each event and status that a device can report, as a table:
//! `reactions.txt`.
//!
//! Each row is driven through the fake provider. It has the state of a session, a fact that
//! happens, and the reaction of the first node. The outcome is that of the session and its messages
//! once the peer is reachable again. Facts of one kind with one outcome share a line.
//! `IBEX_REWRITE_TABLES=1` rewrites the table. Statuses are those of
//! [ibv_poll_cq(3)](https://man7.org/linux/man-pages/man3/ibv_poll_cq.3.html), events those of
//! [ibv_get_async_event(3)](https://man7.org/linux/man-pages/man3/ibv_get_async_event.3.html).

mod row;
mod words;

use std::fmt::{self, Write};
use std::path::Path;

use self::row::Row;
use super::*;

/// The situation of a session when a fact happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Situation {
    /// The peer has a version whose sessions end with their wires.
    is_older: bool,
    state: State,
}

/// The state of a session when a fact happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Up, with nothing in flight.
    Idle,
    /// Up, with sends in flight.
    Sending,
    /// Closing, with sends in flight and this end's goodbye after them.
    Closing,
    /// The peer has sent its goodbye; this end's goodbye is in flight.
    PeerClosed,
    /// The queue pair is dead and not drained.
    Leaving,
    /// The queue pair is destroyed, and the peer is unreachable.
    Suspended,
    /// The session has another queue pair, over which the peer has not yet reported what it has
    /// received.
    Resuming,
    /// The session continued over its connection.
    OverTcp,
    /// Over, and its queue pair destroyed.
    Gone,
}

/// A fact that happens to a session.
#[derive(Clone, Copy, Debug)]
enum Fact {
    SendFails(u32),
    ReceiveFails(u32),
    Event(u32),
    /// The port changes, and the event reports it.
    Change(Changed, u32),
    /// The port changes, the event reports it, and then a send fails.
    ChangeThenSendFails(Changed, u32, u32),
    /// The device is not listed any more, which a check finds.
    Removed,
}

/// A change of a port.
#[derive(Clone, Copy, Debug)]
enum Changed {
    Nothing,
    /// The port goes down.
    State,
    Lid,
    Partition,
    /// The GID is removed.
    Gid,
    /// The GID comes back at another index.
    GidIndex,
    Mtu,
    /// The whole device goes: its port cannot be queried any more.
    Device,
}

const UNKNOWN: u32 = 99;
const LAST_STATUS: u32 = 23;
const LAST_EVENT: u32 = 20;

const STATES: [State; 9] = [
    State::Idle,
    State::Sending,
    State::Closing,
    State::PeerClosed,
    State::Leaving,
    State::Suspended,
    State::Resuming,
    State::OverTcp,
    State::Gone,
];

fn facts() -> Vec<(Situation, Fact)> {
    let mut facts = Vec::new();
    for state in STATES {
        let is_older = false;
        let situation = Situation { is_older, state };
        facts.extend(facts_in(state).map(|fact| (situation, fact)));
    }
    // An older peer's session cannot continue.
    for state in [State::Idle, State::Sending, State::Closing, State::Leaving] {
        let is_older = true;
        let situation = Situation { is_older, state };
        facts.extend(facts_in(state).map(|fact| (situation, fact)));
    }
    facts
}

/// Returns the facts that can happen to a session in a state.
fn facts_in(state: State) -> impl Iterator<Item = Fact> {
    let statuses = || (1..=LAST_STATUS).chain([UNKNOWN]);
    let events = (0..=LAST_EVENT).chain([UNKNOWN]).map(Fact::Event);
    let changes = [
        (Changed::State, 10),
        (Changed::Nothing, 9),
        (Changed::Lid, 11),
        (Changed::Lid, 17),
        (Changed::Partition, 12),
        (Changed::Gid, 18),
        (Changed::GidIndex, 18),
        (Changed::Mtu, 18),
        (Changed::Device, 18),
    ];
    let changes = changes.map(|(changed, event)| Fact::Change(changed, event));
    let doubts = [
        Fact::ChangeThenSendFails(Changed::State, 10, 12),
        Fact::ChangeThenSendFails(Changed::State, 10, 5),
        Fact::ChangeThenSendFails(Changed::Gid, 18, 12),
        Fact::ChangeThenSendFails(Changed::GidIndex, 18, 12),
    ];
    // An idle session has no send that could fail.
    let sends = (state != State::Idle).then(|| statuses().map(Fact::SendFails));
    let doubts = (state == State::Sending).then_some(doubts);
    let sends = sends.into_iter().flatten();
    sends
        .chain(statuses().map(Fact::ReceiveFails))
        .chain(events)
        .chain(changes)
        .chain(doubts.into_iter().flatten())
        .chain([Fact::Removed])
}

impl Fact {
    /// Returns whether the fact leaves the first node without a working device.
    fn takes_device(self) -> bool {
        match self {
            Fact::Event(event) => matches!(event, 0 | 8 | 14),
            Fact::Change(Changed::Device, _) | Fact::Removed => true,
            // A port that is down or has lost its address does not work either.
            Fact::Change(Changed::State | Changed::Gid, _)
            | Fact::ChangeThenSendFails(Changed::State | Changed::Gid, ..) => true,
            Fact::SendFails(_)
            | Fact::ReceiveFails(_)
            | Fact::Change(..)
            | Fact::ChangeThenSendFails(..) => false,
        }
    }

    /// Returns the fact's kind, and its number within the kind.
    fn parts(self) -> (String, Option<u32>) {
        match self {
            Fact::SendFails(status) => ("send fails with".to_owned(), Some(status)),
            Fact::ReceiveFails(status) => ("receive fails with".to_owned(), Some(status)),
            Fact::Event(event) => ("event".to_owned(), Some(event)),
            Fact::Change(changed, event) => (format!("event {event} ({changed:?} changed)"), None),
            Fact::ChangeThenSendFails(changed, event, status) => (
                format!("event {event} ({changed:?} changed), then send fails with {status}"),
                None,
            ),
            Fact::Removed => ("device removed".to_owned(), None),
        }
    }
}

impl fmt::Display for Situation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let older = if self.is_older { ", older peer" } else { "" };
        write!(f, "{:?}{older}", self.state)
    }
}

/// A line of the table: facts of one kind, in one situation, with one outcome.
struct Line {
    begins: String,
    numbers: Vec<u32>,
    outcome: String,
}

/// Adds a fact to the line where it belongs.
fn add(lines: &mut Vec<Line>, situation: Situation, fact: Fact, outcome: String) {
    let (kind, number) = fact.parts();
    let begins = format!("{situation} | {kind}");
    let belongs = |line: &&mut Line| line.begins == begins && line.outcome == outcome;
    match lines.iter_mut().find(belongs) {
        Some(line) => line.numbers.extend(number),
        None => lines.push(Line {
            begins,
            numbers: number.into_iter().collect(),
            outcome,
        }),
    }
}

fn table(lines: &[Line]) -> String {
    let mut table = String::new();
    for line in lines {
        table.push_str(&line.begins);
        for (at, number) in line.numbers.iter().enumerate() {
            let separator = if at == 0 { " " } else { ", " };
            write!(table, "{separator}{number}").unwrap();
        }
        writeln!(table, " | {}", line.outcome).unwrap();
    }
    table
}

#[test]
fn each_report_of_a_device_has_the_outcome_in_the_table() {
    let mut lines = Vec::new();
    for (situation, fact) in facts() {
        println!("{situation}: {fact:?}");
        let outcome = Row::new(situation, fact).outcome(fact);
        add(&mut lines, situation, fact, outcome);
    }
    let table = table(&lines);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/rdma/tests/sessions/reactions.txt");
    if std::env::var_os("IBEX_REWRITE_TABLES").is_some() {
        std::fs::write(&path, &table).unwrap();
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    for (is, was) in table.lines().zip(committed.lines()) {
        assert_eq!(
            is,
            was,
            "IBEX_REWRITE_TABLES=1 writes {} anew",
            path.display()
        );
    }
    assert_eq!(table, committed);
}
