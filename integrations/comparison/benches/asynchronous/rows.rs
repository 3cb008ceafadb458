//! The rows of the table, each with its baseline and its aim.

use crate::order::{
    DriverName::{self, Tasks, Threads},
    FabricName::{self, Shm, Tcp},
    Order, Over,
    RuntimeName::{self, Current, Multi},
    Work,
};

/// The figure of ibex, a baseline of the same round, and the aim.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) subject: Order,
    /// The baseline; `None` if the figure speaks for itself.
    pub(crate) baseline: Option<Order>,
    /// Bound of the ratio, or of the figure if there is no baseline: an upper bound for a time or a
    /// cost, a lower bound for a rate.
    pub(crate) aim: Option<f64>,
    /// Set if a run without words includes the row.
    pub(crate) is_usual: bool,
}

impl Row {
    pub(crate) fn name(&self) -> String {
        self.subject.name()
    }

    /// Returns whether the row's name holds every one of `words`. Without words, the usual rows
    /// are chosen.
    pub(crate) fn is_chosen(&self, words: &[String]) -> bool {
        let name = self.name();
        match words {
            [] => self.is_usual,
            _ => words.iter().all(|word| name.contains(word.as_str())),
        }
    }
}

/// All rows, in groups whose measurements are made in turn.
pub(crate) fn groups(is_quick: bool) -> Vec<Vec<Row>> {
    let kinds = [
        Kind {
            work: Work::PingPong,
            beside: &[(Beside::Socket(Work::PingPong), Some([0.35, 0.95]))],
        },
        Kind {
            work: Work::Call,
            beside: &[
                (Beside::Socket(Work::Call), Some([0.2, 0.5])),
                (Beside::SameLink(Work::Channels), Some([1.3, 1.3])),
            ],
        },
        Kind {
            work: Work::Tonic,
            beside: &[(Beside::Socket(Work::Tonic), Some([0.7, 1.05]))],
        },
        Kind {
            work: Work::RaftOne,
            beside: &[(Beside::Socket(Work::RaftOne), None)],
        },
        Kind {
            work: Work::RaftMany,
            beside: &[(Beside::Socket(Work::RaftMany), None)],
        },
        Kind {
            work: Work::Get,
            beside: &[(Beside::Socket(Work::Get), Some([0.7, 1.05]))],
        },
        Kind {
            work: Work::Bodies,
            beside: &[(Beside::Socket(Work::Bodies), Some([1.2, 0.95]))],
        },
        Kind {
            work: Work::Stream,
            beside: &[(Beside::SameLink(Work::RawChannel), Some([0.95, 0.95]))],
        },
        Kind {
            work: Work::StreamInPlace,
            beside: &[(Beside::SameLink(Work::RawChannel), Some([0.95, 0.95]))],
        },
        Kind {
            work: Work::IdlePolls,
            beside: &[(Beside::Nothing, Some([2.0, 2.0]))],
        },
        Kind {
            work: Work::IdleCost,
            beside: &[(Beside::Nothing, Some([1.0, 1.0]))],
        },
    ];
    let groups = kinds
        .iter()
        .flat_map(|kind| [Multi, Current].map(|runtime| kind.rows(runtime, is_quick)));
    groups.collect()
}

/// A kind of work, and its comparisons.
struct Kind {
    work: Work,
    /// The baselines, each with the aims over shm and over tcp.
    beside: &'static [(Beside, Option<[f64; 2]>)],
}

#[derive(Clone, Copy)]
enum Beside {
    /// The work over tokio's socket.
    Socket(Work),
    /// The work over the same session.
    SameLink(Work),
    Nothing,
}

impl Kind {
    fn rows(&self, runtime: RuntimeName, is_quick: bool) -> Vec<Row> {
        let mut rows = Vec::new();
        for driver in [Tasks, Threads] {
            for fabric in [Shm, Tcp] {
                for &(beside, aims) in self.beside {
                    rows.push(self.row((runtime, driver, fabric), (beside, aims), is_quick));
                }
            }
        }
        rows
    }

    fn row(
        &self,
        (runtime, driver, fabric): (RuntimeName, DriverName, FabricName),
        (beside, aims): (Beside, Option<[f64; 2]>),
        is_quick: bool,
    ) -> Row {
        let order = |work: Work, over| Order {
            work,
            over,
            runtime,
            count: work.count(is_quick),
        };
        let over = Over::Ibex { fabric, driver };
        let is_of_tasks = driver == Tasks && runtime == Multi;
        Row {
            subject: order(self.work, over),
            baseline: match beside {
                Beside::Socket(work) => Some(order(work, Over::Socket)),
                Beside::SameLink(work) => Some(order(work, over)),
                Beside::Nothing => None,
            },
            aim: aims
                // Figures of so little work mean nothing.
                .filter(|_| driver == Tasks && !is_quick)
                .map(|[shm, tcp]| if fabric == Shm { shm } else { tcp }),
            is_usual: is_of_tasks || self.work == Work::PingPong,
        }
    }
}
