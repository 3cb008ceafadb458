//! Scenarios that are also played between nodes that authenticate each other, by certificates or
//! by a shared secret.
//!
//! Security changes how nodes meet and what carries their frames, and nothing above. The list
//! therefore has every way to meet and to part, every size and way to send, and one scenario of
//! each kind that builds on these. Certificates and secrets differ in the handshake alone, so the
//! cells of a scenario take them in turn.

use std::time::Duration;

use ibex::Fabric;

use crate::common::{
    payload,
    scenario::{Cell, Scenario, Side},
    secured::Secured,
    stage::{Stage, receiver, sender},
};

/// Scenarios that only such nodes play.
pub(crate) const SCENARIOS: &[Scenario] =
    &[Scenario::new("authenticated_again", authenticated_again)];

/// Sessions reach their age limit, and continue when both ends have authenticated each other again.
fn authenticated_again(stage: &mut Stage) {
    let security = stage.security().expect("a cell with security");
    let aged = security.max_session_age(AGE);
    stage.change_connections();
    let (_node, peer) = stage.meet_as(|builder| builder.security(aged));
    let numbered = |sequence| payload::numbered(sequence, 1000);
    match stage.side {
        Side::Dialer => {
            let mut sender = sender(&peer, "again");
            let mut sequence = 0;
            while peer.stats().resumes < 2 {
                sequence += 1;
                sender.send(&numbered(sequence)).expect("sent");
            }
            sender.close().expect("delivered");
        }
        Side::Listener => {
            let mut receiver = receiver(&peer, "again");
            let mut received = 0;
            while let Ok(message) = receiver.recv() {
                received += 1;
                assert_eq!(message[..], numbered(received));
            }
            assert!(received > 0 && peer.stats().resumes >= 1, "{received}");
            assert_eq!(peer.stats().checksum_errors, 0);
        }
    }
}

/// Returns every cell of the listed scenarios, by turns in both ways to authenticate.
pub(crate) fn cells(scenarios: &[Scenario]) -> impl Iterator<Item = Cell> {
    let listed = |scenario: &&Scenario| {
        let name = scenario.name;
        OVER_STREAMS.contains(&name) || OVER_EVERYTHING.contains(&name)
    };
    let scenarios = scenarios.iter().chain(SCENARIOS).filter(listed);
    let is_played =
        |cell: &Cell| cell.fabric != Fabric::Verbs || OVER_EVERYTHING.contains(&cell.scenario.name);
    // The next scenario begins with the other way, so that no driver always has the same.
    scenarios.enumerate().flat_map(move |(number, one)| {
        let cells = one.cells().filter(is_played);
        in_turn(number, cells)
    })
}

/// Returns the cells of the short list over a fake device with all features.
#[cfg(feature = "fake-device")]
pub(crate) fn cells_over_fake_device(cells: impl Iterator<Item = Cell>) -> Vec<Cell> {
    let mut first = None;
    let is_of_first_use = |cell: &Cell| {
        let name = cell.between.map(crate::common::fake::FakeUse::name);
        *first.get_or_insert_with(|| name.clone()) == name
            && OVER_EVERYTHING.contains(&cell.scenario.name)
    };
    in_turn(0, cells.filter(is_of_first_use)).collect()
}

/// Panics if a listed scenario does not exist.
pub(crate) fn check_names(scenarios: &[Scenario]) {
    for name in OVER_STREAMS.iter().chain(OVER_EVERYTHING) {
        let mut scenarios = scenarios.iter().chain(SCENARIOS);
        let is_there = scenarios.any(|scenario| scenario.name == *name);
        assert!(is_there, "there is no scenario {name}");
    }
}

/// Gives the cells both ways by turns; an odd number begins with the second.
fn in_turn(number: usize, cells: impl Iterator<Item = Cell>) -> impl Iterator<Item = Cell> {
    let ways = Secured::BOTH.into_iter().cycle().skip(number % 2);
    cells.zip(ways).map(|(cell, in_turn)| {
        // With certificates all nodes of a side are one peer; a secret tells no two of them apart.
        let secured = match cell.scenario.name {
            "too_many_sessions_of_a_peer" => Secured::SharedSecret,
            _ => in_turn,
        };
        Cell {
            secured: Some(secured),
            ..cell
        }
    })
}

/// Scenarios that are also played on a device, where each takes long.
const OVER_EVERYTHING: &[&str] = &[
    "authenticated_again",
    "order",
    "exactly_once",
    "every_size",
    "many_channels",
    "back_pressure",
    "close_reports",
];

/// Scenarios that are played over fabrics without a device.
const OVER_STREAMS: &[&str] = &[
    "abort_behind_a_full_socket",
    "both_ways_at_once",
    "cloned_senders",
    "close_interrupts",
    "close_with_a_stopped_peer",
    "codecs",
    "each_message_acknowledged",
    "every_size_in_a_stream",
    "fan_in",
    "group",
    "huge",
    "held_pages",
    "large_guards_held",
    "large_stream",
    "listener_starts_later",
    "own_event_loop",
    "ping_pong",
    "receiver_ends_first",
    "receiver_killed",
    "rests_by_itself",
    "return_from_main_at_once",
    "select_types",
    "sender_ends_first",
    "sender_killed_in_a_large_message",
    "sending_node_ends_first",
    "session_ended_by_the_listener",
    "sixteen_sessions",
    "stopped_under_load",
    "stream_by_tasks",
    "stream_by_threads",
    "strangers_at_the_door",
    "tasks_ping_pong",
    "too_many_sessions_of_a_peer",
    "waiting_is_sleeping",
];

/// Short, so that a session is authenticated a few times in a scenario.
const AGE: Duration = Duration::from_millis(300);
