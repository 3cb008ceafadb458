//! A scenario, and the matrix in which it is played.

use std::{env, fmt};

use ibex::{Driver, Fabric};
use rustix::process::{Uid, geteuid};

use super::{secured::Secured, stage::Stage};

/// A story between two processes. Both call `play`, which asks its stage for the side.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) play: fn(&mut Stage),
    pub(crate) span: Span,
    /// The side that dies by a SIGKILL in this story.
    pub(crate) killed: Option<Side>,
    /// Set if the scenario mostly waits, so that others may be played meanwhile.
    pub(crate) waits: bool,
}

/// The cells of the matrix in which a scenario is played.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// Every fabric with every driver.
    Everywhere,
    /// Every fabric with the default driver, for long scenarios.
    EachFabric,
    /// Every fabric except verbs, with the default driver, for scenarios that would take an
    /// emulated device minutes.
    EachFabricButVerbs,
    /// Every driver over the first fabric, for scenarios that end before a fabric is chosen.
    EachDriver,
    /// Every fabric, driven by the callers, for behavior that only they have.
    EachFabricByCallers,
}

/// The side of a process in a scenario. By convention the dialer sends and the listener receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Dialer,
    Listener,
}

/// A scenario on one fabric, under one driver.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) scenario: Scenario,
    pub(crate) fabric: Fabric,
    pub(crate) driver: Driver,
    /// The way in which the two sides authenticate each other, if they do.
    pub(crate) secured: Option<Secured>,
    /// Engines of each node; several under the default driver alone.
    pub(crate) engines: usize,
    /// The device between the sides, if both are played in one process.
    #[cfg(feature = "fake-device")]
    pub(crate) between: Option<super::fake::FakeUse>,
}

/// Returns whether `IBEX_TEST_SHORT` asks for a short list of scenarios with fewer messages, which
/// are played once more on a device that is used differently.
pub(crate) fn is_short_list() -> bool {
    env::var_os("IBEX_TEST_SHORT").is_some()
}

/// Returns the fabrics of this build, whether or not there is a device for verbs.
fn fabrics() -> impl Iterator<Item = Fabric> {
    let fabrics = [Fabric::Shm, Fabric::Tcp, Fabric::Verbs];
    fabrics
        .into_iter()
        .filter(|fabric| *fabric != Fabric::Verbs || cfg!(feature = "verbs"))
}

/// The columns of the matrix: drivers, and the engines that they turn.
const DRIVERS: [(Driver, usize); 4] = [
    (Driver::Threads, 1),
    (Driver::Caller, 1),
    (Driver::Tasks, 1),
    (Driver::Threads, 2),
];

/// Scenarios that are also played between nodes of two engines: those with several sessions, those
/// in which engines end each other's waits, and one of each other kind.
const BY_TWO_ENGINES: &[&str] = &[
    "fan_in",
    "fan_in_rests",
    "fan_in_among_others",
    "fan_in_of_the_silent",
    "fan_in_tasks",
    "fan_in_counts",
    "fan_in_answers",
    "fan_in_of_passers_by",
    "group",
    "group_quorum",
    "group_full",
    "group_drops_the_slow",
    "group_tasks",
    "group_catches_up",
    "group_member_killed",
    "select_types",
    "select_sleeps",
    "select_large",
    "sixteen_sessions",
    "two_hundred_sessions",
    "too_many_sessions_of_a_node",
    "stream_by_threads",
    "streams_one_after_the_other",
    "connecting_to_oneself",
    "connecting_to_each_other",
    "connecting_while_serving",
    "events_of_a_session",
    "stats_of_both_ends",
    "sending_node_ends_first",
    "receiving_node_ends_first",
    "close_reports",
    "close_interrupts",
    "close_reports_twice",
    "session_ended_by_the_dialer",
    "session_end_interrupts",
    "close_in_two_threads",
    "sender_killed",
    "stopped_under_load",
    "every_size",
    "exactly_once",
    "back_pressure",
    "flush",
    "waiting_is_sleeping",
];

impl Scenario {
    pub(crate) const fn new(name: &'static str, play: fn(&mut Stage)) -> Self {
        Self {
            name,
            play,
            span: Span::Everywhere,
            killed: None,
            waits: false,
        }
    }

    pub(crate) const fn on(self, span: Span) -> Self {
        Self { span, ..self }
    }

    pub(crate) const fn kills(self, side: Side) -> Self {
        Self {
            killed: Some(side),
            ..self
        }
    }

    pub(crate) const fn waits(self) -> Self {
        Self {
            waits: true,
            ..self
        }
    }

    /// Returns whether the scenario is also played between nodes of two engines.
    pub(crate) fn spans_engines(self) -> bool {
        BY_TWO_ENGINES.contains(&self.name)
    }

    /// Returns the cells of the matrix in which this scenario is played.
    pub(crate) fn cells(self) -> impl Iterator<Item = Cell> {
        let everywhere = fabrics().enumerate().flat_map(move |(number, fabric)| {
            DRIVERS.map(move |(driver, engines)| {
                (
                    number,
                    Cell {
                        scenario: self,
                        fabric,
                        driver,
                        secured: None,
                        engines,
                        #[cfg(feature = "fake-device")]
                        between: None,
                    },
                )
            })
        });
        everywhere.filter_map(move |(number, cell)| {
            // Tasks wait by the same descriptors as callers, so they are not played on a device
            // again.
            if cell.driver == Driver::Tasks && cell.fabric == Fabric::Verbs {
                return None;
            }
            if cell.engines > 1 {
                // Over verbs, the scenario is played on a device made of memory.
                let is_played = cell.fabric != Fabric::Verbs && self.spans_engines();
                return is_played.then_some(cell);
            }
            let is_played = match self.span {
                Span::Everywhere => true,
                Span::EachFabric => cell.driver == Driver::default(),
                Span::EachFabricButVerbs => {
                    cell.fabric != Fabric::Verbs && cell.driver == Driver::default()
                }
                Span::EachDriver => number == 0,
                Span::EachFabricByCallers => cell.driver == Driver::Caller,
            };
            is_played.then_some(cell)
        })
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let driver = match (self.driver, self.engines) {
            (Driver::Threads, 1) => "threads",
            (Driver::Threads, _) => "two-engines",
            (Driver::Caller, _) => "caller",
            (Driver::Tasks, _) => "tasks",
        };
        write!(f, "{}/{}/{driver}", self.scenario.name, self.carrier())?;
        match self.secured {
            Some(secured) => write!(f, "/{}", secured.name()),
            None => Ok(()),
        }
    }
}

impl Cell {
    /// Returns the carrier of the messages, as it appears in the names of cells.
    fn carrier(&self) -> String {
        #[cfg(feature = "fake-device")]
        if let Some(between) = self.between {
            return format!("fake/{}", between.name());
        }
        self.fabric.to_string()
    }

    /// Returns whether the cell needs an RDMA device of this machine.
    pub(crate) fn takes_device(&self) -> bool {
        self.fabric == Fabric::Verbs && !self.is_of_one_process()
    }

    /// Returns whether the two sides run as different users. Only root can become another one. It
    /// can read no keys then, so these are cells with a shared secret.
    pub(crate) fn is_of_two_users(&self) -> bool {
        self.fabric == Fabric::Shm
            && self.secured == Some(Secured::SharedSecret)
            && (geteuid().is_root() || geteuid() == Uid::from_raw(OTHER_USER))
    }

    /// Returns whether both sides are played in one process.
    pub(crate) fn is_of_one_process(&self) -> bool {
        #[cfg(feature = "fake-device")]
        return self.between.is_some();
        #[cfg(not(feature = "fake-device"))]
        return false;
    }
}

/// The user of the dialer in a cell of two users.
pub(crate) const OTHER_USER: u32 = 3001;

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Side::Dialer, Side::Listener];

    pub(crate) fn other(self) -> Self {
        match self {
            Side::Dialer => Side::Listener,
            Side::Listener => Side::Dialer,
        }
    }
}
