//! Latency over verbs, in rounds: the limit, ibex, perftest's `ib_send_lat`, UCX, libfabric, and
//! the limit again.
//!
//! The second run of the limit, compared to the first, shows the ratios of equal subjects here: a
//! software device in an emulator is disturbed all the time. The table therefore shows a p5 beside
//! the median. Lines of a program that is not installed are left out.

use ibex_harness::{
    Error,
    cores::Cores,
    job::{Figures, Mode},
    libraries,
    limit::Limit,
    perftest::{self, Times},
    verbs_port::VerbsPort,
};

use crate::{
    BenchRow,
    table::{Line, Table, Unit},
    verbs_cost::Cost,
};
use ibex_measurement::costs::Costs;

/// The results of one round, in nanoseconds.
struct Round {
    limit: Times,
    ibex: Times,
    mean: f64,
    perftest: Option<Times>,
    ucx: Option<f64>,
    libfabric: Option<f64>,
    limit_again: Times,
}

/// Measures and prints the lines of `row`.
pub(crate) fn measure(
    table: Table,
    cores: Cores,
    port: &VerbsPort,
    row: &BenchRow,
) -> Result<(), Error> {
    let (job, name) = (row.job(), row.name());
    let (size, iters) = (job.size, job.iters);
    let mut perftest = Program::new(&name);
    let (mut ucx, mut libfabric) = (Program::new(&name), Program::new(&name));
    let (mut rounds, mut costs) = (Vec::new(), Costs::default());
    for round in 1..=ROUNDS {
        eprintln!("{name}: round {round} of {ROUNDS}");
        let limit = times(&Limit::Verbs.measure(cores, job)?)?;
        let ((ibex, asked), _) = port.during(|| row.measure_with_costs(row.driver, cores))?;
        costs = costs.and(asked);
        rounds.push(Round {
            limit,
            mean: ibex.elapsed.as_nanos() as f64 / iters as f64 / 2.0,
            ibex: times(&ibex)?,
            perftest: perftest.run(table, || perftest::send_latency(cores, port, size, iters)),
            ucx: ucx.run(table, || libraries::ucx_latency(cores, port, size, iters)),
            libfabric: libfabric.run(table, || {
                libraries::libfabric_latency(cores, port, size, iters)
            }),
            limit_again: times(&Limit::Verbs.measure(cores, job)?)?,
        });
    }
    // A round trip is two messages.
    let cost = Cost::of(costs, 2 * ROUNDS as u64 * job.sequences().end);
    type Percentile = fn(&Times) -> f64;
    let percentiles: [(&str, Percentile); 2] =
        [("p5", |times| times.p5), ("p50", |times| times.p50)];
    for ((percentile, of), [aim, perftest_aim]) in percentiles.into_iter().zip(AIMS) {
        let pairs = |pair: &dyn Fn(&Round) -> Option<[Times; 2]>| -> Vec<_> {
            let pairs = rounds.iter().filter_map(pair);
            pairs.map(|pair| [of(&pair[0]), of(&pair[1])]).collect()
        };
        let print = |name: &str, aim, noise, cost, pairs| {
            let name = format!("{name} {percentile}");
            let line = Line::of(&name, (Unit::Nanoseconds, Mode::Latency), pairs);
            if let Some(line) = line {
                table.print(&Line {
                    aim,
                    noise,
                    cost,
                    ..line
                });
            }
        };
        let itself = pairs(&|round| Some([round.limit, round.limit_again]));
        let noise = Line::of("", (Unit::Nanoseconds, Mode::Latency), itself);
        let noise = noise.map(|line| line.spread);
        let limit = pairs(&|round| Some([round.limit, round.ibex]));
        print(&name, Some(aim), noise, Some(cost), limit);
        let to_perftest = pairs(&|round| Some([round.perftest?, round.ibex]));
        print(
            "  ibex to ib_send_lat",
            Some(perftest_aim),
            None,
            None,
            to_perftest,
        );
        let of_limit = pairs(&|round| Some([round.perftest?, round.limit]));
        print("  limit to ib_send_lat", None, None, None, of_limit);
    }
    let ucx = rounds
        .iter()
        .filter_map(|round| Some([round.ucx?, round.ibex.p50]));
    let libfabric = rounds
        .iter()
        .filter_map(|round| Some([round.libfabric?, round.mean]));
    for (name, pairs) in [
        ("  ibex to UCX am_lat p50", ucx.collect()),
        ("  ibex to fi_pingpong mean", Vec::from_iter(libfabric)),
    ] {
        let line = Line::of(name, (Unit::Nanoseconds, Mode::Latency), pairs);
        if let Some(line) = line {
            let aim = Some(1.0);
            table.print(&Line { aim, ..line });
        }
    }
    Ok(())
}

/// A program that may not be installed.
pub(crate) struct Program<'a> {
    name: &'a str,
    is_there: bool,
}

impl<'a> Program<'a> {
    /// Creates the program of the row `name`.
    pub(crate) fn new(name: &'a str) -> Program<'a> {
        let is_there = true;
        Program { name, is_there }
    }

    /// Returns the result of `measure`. After its first error, which is printed, later calls return
    /// `None`.
    pub(crate) fn run<T>(
        &mut self,
        table: Table,
        measure: impl FnOnce() -> Result<T, Error>,
    ) -> Option<T> {
        if !self.is_there {
            return None;
        }
        measure()
            .inspect_err(|error| {
                table.note(format_args!("{}: {error}", self.name));
                self.is_there = false;
            })
            .ok()
    }
}

fn times(figures: &Figures) -> Result<Times, Error> {
    if let Some(fault) = &figures.tally.first_fault {
        return Err(Error::subject(format!("data check failed: {fault}")));
    }
    let one_way = figures
        .one_way
        .ok_or_else(|| Error::subject("there are no times"))?;
    Ok(Times {
        p5: one_way.p5,
        p50: one_way.p50,
    })
}

const ROUNDS: usize = 9;
/// Ratios to reach, for p5 and for p50: against the limit, then against `ib_send_lat`.
const AIMS: [[f64; 2]; 2] = [[1.10, 1.15], [1.20, 1.25]];
