//! Runs engines under seeded faults, for as long as the options say: `cargo xtask simulate`.

use std::{
    env,
    hash::{BuildHasher, RandomState},
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

use ibex_sim::{Campaign, SimOptions, Totals, Until};

fn main() -> ExitCode {
    let Some((campaign, is_single)) = parse(env::args().skip(1)) else {
        eprintln!("usage: cargo xtask simulate [--seconds N | --steps N] [--seed S]");
        return ExitCode::from(2);
    };
    let threads = match is_single {
        true => 1,
        false => thread::available_parallelism().map_or(1, usize::from),
    };
    println!("seed {}, {threads} threads", campaign.seed);
    if is_single {
        println!("{:#?}", SimOptions::from_seed(campaign.seed));
    }
    let begun = Instant::now();
    match campaign.run(threads) {
        Ok(totals) => {
            print(&totals, begun.elapsed());
            let missing = totals.faults.by_kind().filter(|(_, times)| *times == 0);
            let missing: Vec<_> = missing.map(|(fault, _)| fault.to_string()).collect();
            if is_single || missing.is_empty() {
                return ExitCode::SUCCESS;
            }
            println!("nothing was shown of {}: run longer", missing.join(", "));
        }
        Err(violation) => {
            println!("BROKEN: {violation}");
            println!("again: cargo xtask simulate --seed {}", violation.seed);
        }
    }
    ExitCode::FAILURE
}

fn print(totals: &Totals, time: Duration) {
    let Totals {
        runs,
        steps,
        frames,
        messages,
        resumed,
        replayed,
        ..
    } = totals;
    println!(
        "{steps} steps of {runs} runs in {:.1} s",
        time.as_secs_f64()
    );
    println!("{frames} frames, {messages} messages handed out");
    println!("{resumed} resumptions, {replayed} records sent again");
    let faults = totals.faults.by_kind();
    let faults: Vec<_> = faults
        .map(|(fault, times)| format!("{times} {fault}"))
        .collect();
    println!("faults: {}", faults.join(", "));
    println!(
        "{} pairs of state and event, trace {:016x}",
        totals.coverage.pairs(),
        totals.trace
    );
}

/// Parses the command line. Returns the campaign and whether it is a single run; `None` if the
/// arguments are invalid.
fn parse(mut arguments: impl Iterator<Item = String>) -> Option<(Campaign, bool)> {
    let (mut seed, mut until) = (None, None);
    while let Some(name) = arguments.next() {
        let number: u64 = arguments.next()?.parse().ok()?;
        match name.as_str() {
            "--seed" if seed.is_none() => seed = Some(number),
            "--steps" if until.is_none() => until = Some(Until::Steps(number)),
            "--seconds" if until.is_none() => {
                until = Some(Until::Time(Duration::from_secs(number)));
            }
            _ => return None,
        }
    }
    let is_single = seed.is_some() && until.is_none();
    let until = match is_single {
        true => Until::Steps(1),
        false => until.unwrap_or(Until::Time(DEFAULT_TIME)),
    };
    let seed = seed.unwrap_or_else(|| RandomState::new().hash_one(()));
    Some((Campaign { seed, until }, is_single))
}

/// The default duration.
const DEFAULT_TIME: Duration = Duration::from_secs(60);
