//! Latency over verbs, in rounds of four: the limit, ibex, perftest's `ib_send_lat`, and
//! the limit again.
//!
//! The second run of the limit, compared to the first, shows what ratios of equals look
//! like here: a software device in an emulator is disturbed all the time. Hence a p5 beside
//! the median, too. Without `ib_send_lat` the lines that need it are left out.

use ibex_harness::{
    Error,
    cores::Cores,
    job::{Figures, Mode},
    limit::Limit,
    perftest::{self, Times},
    row::duration,
    verbs_port::VerbsPort,
};

use crate::{BenchRow, table::Line};

/// What one round gave.
struct Round {
    limit: Times,
    ibex: Times,
    perftest: Option<Times>,
    limit_again: Times,
}

/// Measures and prints the lines of `row`.
pub(crate) fn latency(cores: Cores, port: &VerbsPort, row: &BenchRow) -> Result<(), Error> {
    let job = row.job();
    let mut has_perftest = true;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let limit = times(&Limit::Verbs.measure(cores, job)?)?;
        let (ibex, _) = port.during(|| row.measure_ibex(row.driver, cores))?;
        let perftest = has_perftest.then(|| by_perftest(cores, port, row));
        let perftest = perftest.transpose().unwrap_or_else(|error| {
            println!("{:32} {error}", row.name());
            has_perftest = false;
            None
        });
        rounds.push(Round {
            limit,
            ibex: times(&ibex)?,
            perftest,
            limit_again: times(&Limit::Verbs.measure(cores, job)?)?,
        });
    }
    let name = row.name();
    let p50 = row.aim;
    let aims = [p50.map(|_| P5_AIM), p50];
    print(&name, aims, &rounds, |round| {
        Some((round.limit, round.ibex))
    });
    print("  ibex to ib_send_lat", aims, &rounds, |round| {
        Some((round.perftest?, round.ibex))
    });
    print("  limit to ib_send_lat", [None; 2], &rounds, |round| {
        Some((round.perftest?, round.limit))
    });
    print("  limit to itself", [None; 2], &rounds, |round| {
        Some((round.limit, round.limit_again))
    });
    Ok(())
}

/// Two lines, of p5 and of p50, for what `pair` takes from each round: the divisor and the
/// dividend.
fn print(
    name: &str,
    aims: [Option<f64>; 2],
    rounds: &[Round],
    pair: impl Fn(&Round) -> Option<(Times, Times)>,
) {
    type Percentile = fn(&Times) -> f64;
    let percentiles: [(&str, Percentile); 2] =
        [("p5", |times| times.p5), ("p50", |times| times.p50)];
    for ((percentile, of), aim) in percentiles.into_iter().zip(aims) {
        let mut pairs: Vec<_> = rounds
            .iter()
            .filter_map(&pair)
            .map(|(limit, subject)| [of(&limit), of(&subject)])
            .collect();
        pairs.sort_by(|a, b| (a[1] / a[0]).total_cmp(&(b[1] / b[0])));
        let (Some(first), Some(last)) = (pairs.first(), pairs.last()) else {
            continue;
        };
        let median = pairs[(pairs.len() - 1) / 2];
        let line = Line {
            name: &format!("{name} {percentile}"),
            cores: "-",
            pairs: pairs.len(),
            limit: duration(median[0].round() as u64),
            subject: duration(median[1].round() as u64),
            ratio: median[1] / median[0],
            spread: [first[1] / first[0], last[1] / last[0]],
            mode: Mode::Latency,
            aim,
        };
        println!("{line}");
    }
}

/// `ib_send_lat`, once more if its times are void: it asks the clock for its frequency, and
/// when it is disturbed meanwhile it prints infinities.
fn by_perftest(cores: Cores, port: &VerbsPort, row: &BenchRow) -> Result<Times, Error> {
    let measure = || perftest::send_latency(cores, port, row.size, row.job().iters);
    measure().or_else(|_| measure())
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
/// What is aimed at where nothing disturbs; the row's own aim is for the median.
const P5_AIM: f64 = 1.15;
