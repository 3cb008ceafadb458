//! A scenario, and the matrix that it is played in.

use std::{env, fmt};

use ibex::{Driver, Fabric};

use super::{secured::Secured, stage::Stage};

/// One story between two processes. Both call `play`, which asks its stage for the side.
#[derive(Clone, Copy)]
pub(crate) struct Scenario {
    pub(crate) name: &'static str,
    pub(crate) play: fn(&mut Stage),
    pub(crate) span: Span,
    /// The side that the story ends with a SIGKILL.
    pub(crate) killed: Option<Side>,
    /// Whether it is waiting most of the time, so that others may be played meanwhile.
    pub(crate) waits: bool,
}

/// Which cells of the matrix a scenario is played in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Span {
    /// Every fabric with every driver.
    Everywhere,
    /// Every fabric, with the default driver: for what takes long.
    EachFabric,
    /// The same but over verbs: for what takes a device minutes that the kernel emulates.
    EachFabricButVerbs,
    /// Every driver, over the first fabric: for what ends before a fabric is chosen.
    EachDriver,
    /// Every fabric, driven by the callers: for what only they do.
    EachFabricByCallers,
}

/// Who a process is in a scenario. By convention the dialer sends and the listener
/// receives.
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
    /// How the two sides authenticate each other, if they do.
    pub(crate) secured: Option<Secured>,
    /// Where both sides are played in one process: what is between them.
    #[cfg(feature = "fake-device")]
    pub(crate) between: Option<super::fake::Between>,
}

/// Whether `IBEX_TEST_SHORT` asks for a short list of scenarios, with fewer messages: for
/// what is played once more on a device that is used in another way.
pub(crate) fn is_short_list() -> bool {
    env::var_os("IBEX_TEST_SHORT").is_some()
}

/// The fabrics of this build. That there is a device for verbs is not asked here.
fn fabrics() -> impl Iterator<Item = Fabric> {
    let fabrics = [
        (Fabric::Shm, cfg!(feature = "shm")),
        (Fabric::Tcp, cfg!(feature = "tcp")),
        (Fabric::Verbs, cfg!(feature = "verbs")),
    ];
    fabrics
        .into_iter()
        .filter_map(|(fabric, is_built)| is_built.then_some(fabric))
}

const DRIVERS: [Driver; 3] = [Driver::Threads, Driver::Caller, Driver::Tasks];

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

    /// The cells of the matrix that this scenario is played in.
    pub(crate) fn cells(self) -> impl Iterator<Item = Cell> {
        let everywhere = fabrics().enumerate().flat_map(move |(number, fabric)| {
            DRIVERS.map(move |driver| {
                (
                    number,
                    Cell {
                        scenario: self,
                        fabric,
                        driver,
                        secured: None,
                        #[cfg(feature = "fake-device")]
                        between: None,
                    },
                )
            })
        });
        everywhere.filter_map(move |(number, cell)| {
            // Tasks wait by the same descriptors as callers: not on a device again.
            if cell.driver == Driver::Tasks && cell.fabric == Fabric::Verbs {
                return None;
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
        let driver = match self.driver {
            Driver::Threads => "threads",
            Driver::Caller => "caller",
            Driver::Tasks => "tasks",
        };
        write!(f, "{}/{}/{driver}", self.scenario.name, self.carrier())?;
        match self.secured {
            Some(secured) => write!(f, "/{}", secured.name()),
            None => Ok(()),
        }
    }
}

impl Cell {
    /// What carries the messages, as cells are called.
    fn carrier(&self) -> String {
        #[cfg(feature = "fake-device")]
        if let Some(between) = self.between {
            return format!("fake/{}", between.name());
        }
        self.fabric.to_string()
    }

    /// Whether it is played on an RDMA device of this machine.
    pub(crate) fn takes_device(&self) -> bool {
        self.fabric == Fabric::Verbs && !self.is_of_one_process()
    }

    /// Whether both sides are played in one process.
    pub(crate) fn is_of_one_process(&self) -> bool {
        #[cfg(feature = "fake-device")]
        return self.between.is_some();
        #[cfg(not(feature = "fake-device"))]
        return false;
    }
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Side::Dialer, Side::Listener];

    pub(crate) fn other(self) -> Self {
        match self {
            Side::Dialer => Side::Listener,
            Side::Listener => Side::Dialer,
        }
    }
}
