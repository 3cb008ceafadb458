//! ibex beside the raw limit of this machine, in interleaved pairs.
//!
//! `cargo bench --bench pingpong` takes about two minutes; `-- --help` names the options. Rows of
//! verbs need `--features verbs` and a device; `cargo xtask bench --vm` runs them in a guest that
//! has one.
//!
//! Each row shows the median of the pairs' ratios, the lowest and the highest, the same of the
//! limit to itself if it was measured twice, and the aim, if there is one, with whether the median
//! meets it. A missed aim fails nothing; the program fails if it could measure nothing.
//!
//! The distance of the two cores is measured beside each pair. A virtual machine may move cores at
//! any time, so figures of near and of far cores stand in separate lines.

#[cfg(feature = "verbs")]
#[path = "../../tests/crowd/mod.rs"]
mod crowd;
mod many_pairs;
#[cfg(feature = "verbs")]
mod many_sessions;
mod table;
mod verbs_cost;
mod verbs_latency;
mod verbs_streams;

use std::process::ExitCode;

use clap::Parser;
use ibex_harness::{
    Error,
    cores::{self, Cores},
    interleave::{self, Interleaved, Series},
    job::{Figures, Job, Mode},
    limit::Limit,
    pair,
    row::bytes,
    verbs_port::VerbsPort,
};

use crate::table::{Form, Line, Table, Unit};
use ibex_measurement::{
    channels::CodecName,
    costs::Costs,
    session::{self, DriverName, FabricName, Order, Setup},
};

fn main() -> ExitCode {
    if let Some(code) = pair::run_if_peer(session::answer_here) {
        return code;
    }
    let options = Options::parse();
    match run(&options.words, options.table()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Compares ibex with the raw limit of this machine, in interleaved pairs.
#[derive(Parser)]
#[command(name = "pingpong")]
struct Options {
    /// Measure only the rows whose names hold each of these words, such as `tcp throughput`.
    words: Vec<String>,

    /// Print one JSON object for each row.
    #[arg(long)]
    json: bool,

    /// Print each row as a row of the table in BENCHMARKS.md.
    #[arg(long, conflicts_with = "json")]
    markdown: bool,

    /// Instructions of a message in a stream of 64 B over verbs, as counted elsewhere: of one in a
    /// shared frame, and of one in a frame of its own.
    #[arg(long, value_name = "SHARED,OWN", value_delimiter = ',')]
    instructions: Vec<f64>,

    /// Passed by Cargo.
    #[arg(long, hide = true)]
    bench: bool,
}

impl Options {
    fn table(&self) -> Table {
        let mut counted = self.instructions.iter().copied();
        let form = match (self.json, self.markdown) {
            (true, _) => Form::Json,
            (_, true) => Form::Markdown,
            _ => Form::Table,
        };
        Table::new(form, [(); 2].map(|()| counted.next()))
    }
}

fn run(words: &[String], table: Table) -> Result<ExitCode, Error> {
    let is_named = |name: &str| {
        let name = name.to_lowercase();
        words.iter().all(|word| name.contains(&word.to_lowercase()))
    };
    let rows = ROWS.into_iter().filter(|row| is_named(&row.name()));
    let rows: Vec<_> = rows.collect();
    let streams = verbs_streams::ROWS
        .into_iter()
        .filter(|row| is_named(row.name));
    let streams: Vec<_> = streams.collect();
    let has_many_pairs = is_named(MANY_PAIRS);
    let of_engines = many_pairs::ENGINE_ROWS
        .into_iter()
        .filter(|row| is_named(row.name));
    let of_engines: Vec<_> = of_engines.collect();
    let has_many_sessions = is_named(MANY_SESSIONS);
    let has_others = has_many_pairs || has_many_sessions || !of_engines.is_empty();
    if rows.is_empty() && streams.is_empty() && !has_others {
        return Err(no_such_row(words));
    }
    let cores = cores::choose(None)?;
    table.note(format_args!(
        "cores {cores:?}; ratio: ibex to the limit, median of the pairs [lowest .. highest]"
    ));
    table.note("latency: p50 one way, a lower ratio is better (v)");
    table.note("stream: payload rate, a higher ratio is better (^)");
    table.print_heading();
    let port = VerbsPort::choose();
    let is_possible = port.is_ok()
        || has_many_pairs
        || !of_engines.is_empty()
        || rows.iter().any(|row| row.fabric != FabricName::Verbs);
    for row in rows {
        let run = match (row.fabric, &port) {
            (FabricName::Verbs, Err(reason)) => {
                table.note(format_args!("{:36} {reason}", row.name()));
                continue;
            }
            (FabricName::Verbs, Ok(port)) => {
                table.note(port);
                if row.mode == Mode::Latency && row.beside == Beside::Limit {
                    verbs_latency::measure(table, cores, port, &row)?;
                    continue;
                }
                port.during(|| row.measure(cores))?.0
            }
            _ => row.measure(cores)?,
        };
        if let Some(pair) = &run.damaged {
            let fault = pair.subject.tally.first_fault.as_ref();
            let fault = fault.or(pair.limit.tally.first_fault.as_ref());
            eprintln!(
                "{}: data check failed: {}",
                row.name(),
                fault.map_or("", |first| first)
            );
            return Ok(ExitCode::FAILURE);
        }
        let most = run.series.iter().map(Series::pairs).max();
        for series in &run.series {
            if !table.has_one_line_for_a_row() || Some(series.pairs()) == most {
                row.print(table, series);
            }
        }
        if run.mixed > 0 {
            table.note(format_args!(
                "{:36} {} pairs dropped: near and far during one pair",
                "", run.mixed
            ));
        }
    }
    for row in streams {
        match &port {
            Ok(port) => row.measure(table, cores, port)?,
            Err(reason) => table.note(format_args!("{:36} {reason}", row.name)),
        }
    }
    if has_many_pairs {
        many_pairs::throughput(MANY_PAIRS, table, cores)?;
    }
    for row in of_engines {
        row.measure(table, cores)?;
    }
    if has_many_sessions {
        match &port {
            #[cfg(feature = "verbs")]
            Ok(port) => many_sessions::throughput(MANY_SESSIONS, table, port)?,
            #[cfg(not(feature = "verbs"))]
            Ok(_) => unreachable!("no port is chosen without the feature"),
            Err(reason) => table.note(format_args!("{MANY_SESSIONS:36} {reason}")),
        }
    }
    // A command that selects rows of verbs alone fails if there is no device.
    Ok(match is_possible {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Names the rows that exist.
fn no_such_row(words: &[String]) -> Error {
    let rows = ROWS.iter().map(BenchRow::name);
    let streams = verbs_streams::ROWS.iter().map(|row| row.name);
    let of_engines = many_pairs::ENGINE_ROWS.iter().map(|row| row.name);
    let others = streams.chain(of_engines).chain([MANY_PAIRS, MANY_SESSIONS]);
    let names: Vec<_> = rows.chain(others.map(str::to_owned)).collect();
    let names = names.join("\n  ");
    Error::subject(format!(
        "there is no row whose name holds each of {words:?}, but:\n  {names}"
    ))
}

/// The subject that ibex is compared to in a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beside {
    /// The raw limit of the fabric.
    Limit,
    /// Sockets that block.
    Blocking,
    /// ibex driven by its callers.
    Caller,
}

/// The measurement of one row.
#[derive(Clone, Copy)]
struct BenchRow {
    fabric: FabricName,
    mode: Mode,
    size: usize,
    driver: DriverName,
    beside: Beside,
    /// The ratio to reach: an upper bound in latency mode, a lower bound in stream mode.
    aim: Option<f64>,
}

impl BenchRow {
    /// Returns the row's name, which over shared memory and TCP is its label in BENCHMARKS.md and
    /// README.md.
    fn name(&self) -> String {
        let fabric = match self.fabric {
            FabricName::Shm => "shared memory",
            FabricName::Tcp => "TCP",
            FabricName::Verbs => "verbs",
        };
        let size = bytes(self.size as f64);
        let mode = match self.mode {
            Mode::Latency => "one-way latency",
            Mode::Stream => "throughput",
        };
        let driver = match self.driver {
            DriverName::Threads => ", `Driver::Threads`",
            _ => "",
        };
        let beside = match self.beside {
            Beside::Limit => "",
            Beside::Blocking => " beside sockets that block",
            Beside::Caller => " beside `Driver::Caller`",
        };
        format!("{fabric}, {size}, {mode}{driver}{beside}")
    }

    fn job(&self) -> Job {
        let BenchRow {
            fabric, mode, size, ..
        } = *self;
        Job {
            mode,
            size,
            iters: session::usual_iters(fabric, mode, size),
            flip: false,
            rate: None,
        }
    }

    fn measure(&self, cores: Cores) -> Result<Interleaved, Error> {
        let beside = || match self.beside {
            Beside::Limit => Limit::from(self.fabric).measure(cores, self.job()),
            Beside::Blocking => Limit::BlockingTcp.measure(cores, self.job()),
            Beside::Caller => self.measure_ibex(DriverName::Caller, cores),
        };
        let ibex = || self.measure_ibex(self.driver, cores);
        interleave::run(cores, PAIRS, beside, ibex)
    }

    fn measure_ibex(&self, driver: DriverName, cores: Cores) -> Result<Figures, Error> {
        self.measure_with_costs(driver, cores)
            .map(|(figures, _)| figures)
    }

    fn measure_with_costs(
        &self,
        driver: DriverName,
        cores: Cores,
    ) -> Result<(Figures, Costs), Error> {
        let setup = Setup::new(driver, Some(self.fabric));
        let order = Order::checked(self.job(), CODEC);
        session::with_peer(cores, setup, |peer| {
            session::measure_on(peer, &cores[..1], order)
        })
    }

    fn print(&self, table: Table, series: &Series) {
        let figure = |figures: &Figures| match figures.one_way {
            Some(times) => times.p50,
            None => figures.bytes_per_second(),
        };
        let pair = series.median();
        let line = Line {
            name: &self.name(),
            cores: &series.regime.to_string(),
            pairs: series.pairs(),
            limit: figure(&pair.limit),
            subject: figure(&pair.subject),
            unit: match self.mode {
                Mode::Latency => Unit::Nanoseconds,
                Mode::Stream => Unit::BytesPerSecond,
            },
            ratio: pair.ratio(),
            spread: series.spread(),
            noise: None,
            cost: None,
            mode: self.mode,
            aim: self.aim,
        };
        table.print(&line);
    }
}

/// Row of 8 pairs of processes that wait for each other, on two cores. The limit is blocking
/// sockets.
const MANY_PAIRS: &str =
    "TCP, eight pairs on two cores, 64 B, `Driver::Threads` beside sockets that block (5 rounds)";

/// Row of 200 sessions on one receive queue. The limit is one session there.
const MANY_SESSIONS: &str = "verbs 200 sessions to 1 (limit)";

/// The codec of all rows; the limits use none either.
const CODEC: CodecName = CodecName::Raw;

/// Pairs per row, counted in the line (near or far cores) that has the most.
const PAIRS: usize = 7;

const ROWS: [BenchRow; 12] = {
    use DriverName::{Caller, Threads};
    use FabricName::{Shm, Tcp, Verbs};
    use Mode::{Latency, Stream};
    const fn row(
        (fabric, mode, size, driver): (FabricName, Mode, usize, DriverName),
        aim: Option<f64>,
    ) -> BenchRow {
        BenchRow {
            fabric,
            mode,
            size,
            driver,
            beside: Beside::Limit,
            aim,
        }
    }
    const fn beside(beside: Beside, row: BenchRow) -> BenchRow {
        BenchRow { beside, ..row }
    }
    [
        row((Shm, Latency, 64, Caller), Some(1.5)),
        row((Shm, Latency, 64, Threads), Some(1.5)),
        row((Shm, Stream, 64, Caller), Some(0.1)),
        row((Shm, Stream, 1 << 20, Caller), Some(0.8)),
        row((Tcp, Latency, 64, Caller), Some(1.15)),
        row((Tcp, Latency, 64, Threads), Some(1.5)),
        beside(
            Beside::Blocking,
            row((Tcp, Latency, 64, Threads), Some(0.6)),
        ),
        row((Tcp, Stream, 64, Caller), Some(0.2)),
        row((Tcp, Stream, 1 << 20, Caller), Some(0.8)),
        row((Verbs, Latency, 64, Caller), Some(1.25)),
        beside(
            Beside::Caller,
            row((Verbs, Latency, 64, Threads), Some(1.25)),
        ),
        row((Verbs, Stream, 64, Caller), None),
    ]
};
