//! ibex beside the raw limit of this machine, in interleaved pairs.
//!
//! `cargo bench --bench pingpong` takes two to three minutes; a word behind `--`
//! (`-- shm`, `-- stream`) keeps to the rows whose names hold it. Each row shows the
//! median of the pairs' ratios with the lowest and the highest, what we aim at, if
//! something is aimed at, and whether the median is there. A missed aim fails nothing.
//! The distance of the two cores is measured beside each pair: figures of near and far
//! cores, which a virtual machine may change at any time, stand in lines of their own.

#[path = "../../examples/pingpong/measurement/mod.rs"]
mod measurement;

use std::{env, process::ExitCode};

use ibex_harness::{
    Error,
    cores::{self, Cores},
    interleave::{self, Interleaved, Series},
    job::{Figures, Job, Mode},
    limit::Limit,
    pair,
    row::{bytes, duration},
};

use crate::measurement::{
    channels::CodecName,
    session::{self, DriverName, FabricName, Order, Setup},
};

fn main() -> ExitCode {
    if let Some(code) = pair::run_if_peer(session::answer_here) {
        return code;
    }
    // Cargo passes `--bench`; what has no dash is ours.
    let filter = env::args()
        .skip(1)
        .find(|word| !word.starts_with('-'))
        .unwrap_or_default();
    match run(&filter) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("pingpong: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(filter: &str) -> Result<ExitCode, Error> {
    let cores = cores::choose(None)?;
    println!("cores {cores:?}; ratio: ibex to the limit, median of the pairs [lowest .. highest]");
    println!("latency: p50 one way, a lower ratio is better (v)");
    println!("stream: payload rate, a higher ratio is better (^)");
    println!("{HEADING}");
    for row in ROWS.into_iter().filter(|row| row.name().contains(filter)) {
        let run = row.measure(cores)?;
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
        for series in &run.series {
            row.print(series);
        }
        if run.mixed > 0 {
            println!(
                "{:32} {} pairs dropped: near and far during one pair",
                "", run.mixed
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What is measured in one row.
#[derive(Clone, Copy)]
struct BenchRow {
    fabric: FabricName,
    mode: Mode,
    size: usize,
    driver: DriverName,
    /// The ratio that we want: at most that in latency mode, at least that in stream
    /// mode.
    aim: Option<f64>,
}

impl BenchRow {
    fn name(&self) -> String {
        let fabric = ibex::Fabric::from(self.fabric);
        let size = bytes(self.size as f64);
        let (mode, driver, codec) = (self.mode.name(), self.driver.name(), CODEC.name());
        format!("{fabric} {mode} {size} {driver} {codec}")
    }

    fn measure(&self, cores: Cores) -> Result<Interleaved, Error> {
        let BenchRow {
            fabric,
            mode,
            size,
            driver,
            ..
        } = *self;
        let iters = session::usual_iters(fabric, mode, size);
        let job = Job {
            mode,
            size,
            iters,
            flip: false,
        };
        let setup = Setup {
            driver,
            fabric: Some(fabric),
        };
        let order = Order { job, codec: CODEC };
        interleave::run(
            cores,
            PAIRS,
            || Limit::from(fabric).measure(cores, job),
            || session::with_peer(cores, setup, |peer| session::measure(peer, cores[0], order)),
        )
    }

    fn print(&self, series: &Series) {
        let figure = |figures: &Figures| match figures.one_way {
            Some(times) => duration(times.p50.round() as u64),
            None => format!("{}/s", bytes(figures.bytes_per_second())),
        };
        let pair = series.median();
        let [lowest, highest] = series.spread();
        println!(
            "{:32} {:6} {:>5} {:>12} {:>12} {:>7.2} {} {:18} {}",
            self.name(),
            series.regime,
            series.pairs(),
            figure(&pair.limit),
            figure(&pair.subject),
            pair.ratio(),
            match self.mode {
                Mode::Latency => 'v',
                Mode::Stream => '^',
            },
            format!("[{lowest:.2} .. {highest:.2}]"),
            self.aim_and_verdict(pair.ratio()),
        );
    }

    /// What is aimed at, and whether a ratio is there.
    fn aim_and_verdict(&self, ratio: f64) -> String {
        let Some(aim) = self.aim else {
            return "-".to_owned();
        };
        let (sign, is_met) = match self.mode {
            Mode::Latency => ("<=", ratio <= aim),
            Mode::Stream => (">=", ratio >= aim),
        };
        let verdict = if is_met { "met" } else { "MISSED" };
        format!("{sign} {aim:<4} {verdict}")
    }
}

/// The limits know no codec either.
const CODEC: CodecName = CodecName::Raw;

/// Pairs per row, in the regime that has the most.
const PAIRS: usize = 7;

const ROWS: [BenchRow; 8] = {
    use DriverName::{Caller, Threads};
    use FabricName::{Shm, Tcp};
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
            aim,
        }
    }
    [
        row((Shm, Latency, 64, Caller), Some(1.5)),
        row((Shm, Latency, 64, Threads), Some(1.5)),
        row((Shm, Stream, 64, Caller), Some(0.1)),
        row((Shm, Stream, 1 << 20, Caller), Some(0.8)),
        row((Tcp, Latency, 64, Caller), Some(1.15)),
        row((Tcp, Latency, 64, Threads), None),
        row((Tcp, Stream, 64, Caller), Some(0.2)),
        row((Tcp, Stream, 1 << 20, Caller), Some(0.8)),
    ]
};

const HEADING: &str = "row                              cores  pairs        limit         ibex   \
                       ratio   lowest .. highest  aim";
