//! Conformance: the promises of every fabric under every driver, between real processes.
//!
//! Each scenario is played once per cell of the matrix, as `scenario/fabric/driver`, by two
//! processes that are two to the kernel. The driver `two-engines` is that of threads with two
//! engines in each node, for scenarios that span engines. Nodes that authenticate each other play
//! the scenarios listed in `secured.rs` again, as `scenario/fabric/driver/certificates` or
//! `…/secret`, in turn. Another fabric needs one line in `common/scenario.rs`. A filter selects as with any
//! test: `cargo test --release --test conformance -- tcp/caller`. Without one, each scenario is
//! played in one cell, in some of each fabric and driver by `cargo xtask test`, and in all of them by
//! `cargo xtask torture` (`extent/mod.rs`). The cells of verbs need the feature of that name and an RDMA device (`common/device.rs`).
//!
//! The device is used as `IBEX_RDMA_COMPLETIONS` and `IBEX_TEST_MASK` (`common/mask.rs`) say.
//! `IBEX_TEST_SHORT=1` selects a short list, which is played once for each of these, and
//! `IBEX_TEST_PART` a drawn part (`common/part.rs`). Without them everything is played:
//! `IBEX_RDMA_COMPLETIONS=extended IBEX_TEST_DEVICE=rxe0 cargo xtask vm --
//! target/release/deps/conformance-… /verbs/`.

#[path = "../common/mod.rs"]
mod common;
#[path = "../extent/mod.rs"]
mod extent;

mod acknowledging;
mod batching;
mod bootstrapping;
mod carrying;
#[path = "../common/dialed.rs"]
mod dialed;
mod driving;
mod ending;
mod flowing;
mod forging;
mod gathering;
mod grouping;
mod guarding;
mod handling;
mod limiting;
#[cfg(feature = "fake-device")]
mod masked;
mod meeting;
mod observing;
mod opening;
mod parting;
mod refusing;
mod regions;
mod reserving;
mod resting;
mod secured;
mod selecting;
mod sharing;
mod spanning;
mod stalling;
mod streaming;
mod tasks;
mod versioning;

use std::{process::ExitCode, sync::Arc};

use common::{
    device::Device,
    part::Part,
    scenario::{Cell, Scenario, is_short_list},
    seats::Seats,
    secured::Keys,
    supervisor,
};
use libtest_mimic::{Arguments, Trial};

/// Scenarios that cover most of a fabric in little time, including every size and those beyond the
/// ring.
const SHORT_LIST: [&str; 5] = [
    "order",
    "exactly_once",
    "every_size",
    "many_channels",
    "back_pressure",
];

fn main() -> ExitCode {
    let scenarios: Vec<Scenario> = [
        flowing::SCENARIOS,
        carrying::SCENARIOS,
        forging::SCENARIOS,
        gathering::SCENARIOS,
        grouping::SCENARIOS,
        guarding::SCENARIOS,
        handling::SCENARIOS,
        acknowledging::SCENARIOS,
        batching::SCENARIOS,
        refusing::SCENARIOS,
        regions::SCENARIOS,
        reserving::SCENARIOS,
        resting::SCENARIOS,
        selecting::SCENARIOS,
        sharing::SCENARIOS,
        spanning::SCENARIOS,
        tasks::SCENARIOS,
        opening::SCENARIOS,
        versioning::SCENARIOS,
        limiting::SCENARIOS,
        observing::SCENARIOS,
        ending::SCENARIOS,
        parting::SCENARIOS,
        stalling::SCENARIOS,
        streaming::SCENARIOS,
        meeting::SCENARIOS,
        driving::SCENARIOS,
        bootstrapping::SCENARIOS,
    ]
    .concat();
    let cells = scenarios.iter().flat_map(|scenario| scenario.cells());
    let cells = cells.chain(secured::cells(&scenarios));
    #[cfg(feature = "fake-device")]
    let with_secured = [&scenarios[..], secured::SCENARIOS].concat();
    #[cfg(feature = "fake-device")]
    let cells = cells
        .chain(secured::cells_over_fake_device(masked::cells(
            &with_secured,
        )))
        .chain(masked::cells(&scenarios))
        .chain(masked::cells_of_two_engines(&scenarios));
    let cells: Vec<Cell> = cells.collect();
    if let Some(exit) = supervisor::play_part(&cells) {
        return exit;
    }
    secured::check_names(&scenarios);
    let has_device = is_device_there();
    #[cfg(feature = "fake-device")]
    masked::tell_left_out(&scenarios);
    let part = Part::of_this_run();
    if let Some(part) = &part {
        eprintln!("played are the scenarios of {part}; IBEX_TEST_PART asks for no more");
    }
    #[cfg(feature = "fake-device")]
    let needs_processes = |scenario: &Scenario| masked::why_not_in_one_process(scenario).is_some();
    #[cfg(not(feature = "fake-device"))]
    let needs_processes = |_: &Scenario| false;
    let is_in_part = |scenario: &Scenario| {
        let has = |part: &Part| part.has(scenario.name, needs_processes(scenario));
        part.as_ref().is_none_or(has)
    };
    let is_played = |scenario: &Scenario| match is_short_list() {
        true => SHORT_LIST.contains(&scenario.name),
        false => is_in_part(scenario),
    };
    let cells = cells.into_iter().filter(|cell| {
        let has_device = has_device || !cell.takes_device();
        // Other uses of a device behave alike with and without security, so they are played
        // without.
        let is_asked_for = cell.secured.is_none() || !is_short_list();
        has_device && is_asked_for && is_played(&cell.scenario)
    });
    let mut arguments = Arguments::from_args();
    let kind = |cell: &Cell| match cell.secured {
        Some(_) => format!("{} secured", cell.scenario.name),
        None => cell.scenario.name.to_owned(),
    };
    let cells = extent::drawn(cells.collect(), &arguments, kind, Cell::to_string);
    // Waiting cells come first, and the others beside them.
    let waits = |cell: &Cell| cell.scenario.waits && !cell.is_of_one_process();
    let (waiting, others): (Vec<_>, Vec<_>) = cells.into_iter().partition(waits);
    let seats = Arc::new(Seats::new(&mut arguments, waiting.len()));
    let _keys = Keys::make().expect("a folder for the certificates");
    let trial = |cell: Cell| {
        let seats = seats.clone();
        Trial::test(cell.to_string(), move || {
            let [of_two, of_one] = &*seats;
            let _seat = match cell.is_of_one_process() {
                true => Some(of_one.take()),
                false => (!waits(&cell)).then(|| of_two.take()),
            };
            Ok(supervisor::supervise(cell)?)
        })
    };
    let trials = waiting.into_iter().chain(others).map(trial).collect();
    let conclusion = libtest_mimic::run(&arguments, trials);
    if let Ok(device) = Device::of_this_run()
        && device.sends() > 0
    {
        let name = device.port().device();
        eprintln!("verbs: rdma_sends of {name} rose by {}", device.sends());
    }
    conclusion.exit_code()
}

/// Returns whether the cells of verbs can be played. If not, prints the reason in one line on
/// standard error.
fn is_device_there() -> bool {
    if !cfg!(feature = "verbs") {
        return false;
    }
    let device = Device::of_this_run();
    match &device {
        Ok(device) => eprintln!("verbs: {}", device.port()),
        Err(why) => {
            // A device that was named must be used.
            assert!(!Device::is_wanted(), "{why}");
            eprintln!("verbs: its cells are left out: {why}");
        }
    }
    device.is_ok()
}
