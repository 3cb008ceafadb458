//! Scenarios with both sides in one process: over a device made of memory that lacks some feature.

use std::collections::BTreeMap;

use ibex::{Driver, Fabric};

use crate::common::{
    fake::FakeUse,
    scenario::{Cell, Scenario, Span},
};

/// Returns every playable scenario, for each mask and way of polling.
pub(crate) fn cells(scenarios: &[Scenario]) -> impl Iterator<Item = Cell> {
    FakeUse::all().flat_map(move |fake| {
        let is_played = move |scenario: &&Scenario| why_left_out(scenario, fake).is_none();
        scenarios
            .iter()
            .filter(is_played)
            .map(move |&scenario| Cell {
                scenario,
                fabric: Fabric::Verbs,
                driver: match scenario.span {
                    Span::EachFabric => Driver::default(),
                    _ => Driver::Caller,
                },
                secured: None,
                engines: 1,
                between: Some(fake),
            })
    })
}

/// Returns the scenarios that span engines, over a device with all features.
pub(crate) fn cells_of_two_engines(scenarios: &[Scenario]) -> impl Iterator<Item = Cell> {
    FakeUse::all().take(1).flat_map(move |fake| {
        let is_played = move |scenario: &&Scenario| {
            scenario.spans_engines() && why_left_out(scenario, fake).is_none()
        };
        let played = scenarios.iter().filter(is_played);
        played.map(move |&scenario| Cell {
            scenario,
            fabric: Fabric::Verbs,
            driver: Driver::Threads,
            secured: None,
            engines: 2,
            between: Some(fake),
        })
    })
}

/// Prints which scenarios are left out, and why.
pub(crate) fn tell_left_out(scenarios: &[Scenario]) {
    let mut left_out = BTreeMap::<_, Vec<_>>::new();
    for scenario in scenarios {
        let reason = FakeUse::all().find_map(|fake| why_left_out(scenario, fake));
        if let Some(reason) = reason {
            left_out.entry(reason).or_default().push(scenario.name);
        }
    }
    for (reason, names) in left_out {
        eprintln!("fake: left out where {reason}: {}", names.join(", "));
    }
}

/// Returns the reason why a scenario cannot be played in one process, if there is one.
pub(crate) fn why_not_in_one_process(scenario: &Scenario) -> Option<&'static str> {
    let is_in = |names: &[&str]| names.contains(&scenario.name);
    if scenario.killed.is_some() {
        Some("a side is killed")
    } else if is_in(STOPPED) {
        Some("a side is stopped")
    } else if is_in(LIMITED) {
        Some("a process has a limit")
    } else {
        None
    }
}

/// Returns the reason why a scenario cannot be played over a device, if there is one.
fn why_left_out(scenario: &Scenario, fake: FakeUse) -> Option<&'static str> {
    if let Some(reason) = why_not_in_one_process(scenario) {
        return Some(reason);
    }
    match scenario.span {
        Span::EachDriver => return Some("it ends before a fabric is chosen"),
        Span::EachFabricButVerbs => return Some("there are too few places over verbs"),
        Span::Everywhere | Span::EachFabric | Span::EachFabricByCallers => {}
    }
    let of_several = OF_SEVERAL_SESSIONS.contains(&scenario.name);
    (of_several && !fake.has_many_places()).then_some("a mask leaves two places for sessions")
}

const STOPPED: &[&str] = &[
    "abort_behind_a_full_socket",
    "close_reports_twice",
    "close_in_two_threads",
    "close_with_a_stopped_peer",
    "held_regions",
    "session_end_with_a_stopped_peer",
    "computes_for_a_minute",
    "stopped_under_load",
];

const LIMITED: &[&str] = &[
    "closed_before_it_accepts",
    "no_descriptor_for_a_session",
    "no_descriptor_for_an_end",
    "no_descriptor_for_a_ring",
    "no_descriptor_to_receive_with",
    "no_descriptor_for_what_is_aborted",
    "no_descriptor_for_what_is_forgotten",
    "no_memory_to_receive_with",
    "no_memory_to_gather_with",
    "little_memory",
    "too_long_for_the_node",
];

/// Scenarios with several sessions of one node at a time.
const OF_SEVERAL_SESSIONS: &[&str] = &[
    "acceptor_falls_silent",
    "connecting_to_each_other",
    "connecting_to_oneself",
    "dialer_falls_silent",
    "fan_in",
    "fan_in_among_others",
    "fan_in_answers",
    "fan_in_counts",
    "fan_in_of_the_silent",
    "fan_in_rests",
    "fan_in_tasks",
    "fan_in_tasks_dropped",
    "group",
    "group_catches_up",
    "group_drops_the_slow",
    "group_full",
    "group_quorum",
    "group_tasks",
    "sixteen_sessions",
    "too_many_sessions_of_a_peer",
];
