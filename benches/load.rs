//! A service that gets more calls than it can answer: how many it answers in time, how it ends the
//! others, and how many a handler began in vain.
//!
//! `cargo bench --bench load` takes about half a minute. Two handlers take 10 ms for a call, so they answer
//! 200 a second. Each caller is a thread with a session of its own, which begins up to ten calls a second,
//! with a deadline of 100 ms: 20 callers make as many as are answered, and 60 three times as many. All
//! are in this process, and the handlers sleep, so the figures hardly depend on the machine.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    error::Error,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use ibex::prelude::*;
use ibex::{
    Fabric, Node, Pod, Policy,
    calls::{CallErrorKind, CallOptions, Execution},
};

fn main() -> Result<(), Box<dyn Error>> {
    println!(
        "{:6} {:>8} {:>11} {:>9} {:>9} {:>14}  calls that failed",
        "", "callers", "answered/s", "p50", "p99", "begun in vain"
    );
    for fabric in [Fabric::Shm, Fabric::Tcp] {
        for callers in [10, 20, 60] {
            let outcome = load(fabric, callers)?;
            let Outcome {
                mut times,
                in_vain,
                failures,
            } = outcome;
            times.sort_unstable();
            let at = |share: f64| {
                let index = (times.len() as f64 * share) as usize;
                times.get(index).copied().unwrap_or_default()
            };
            let failures: Vec<_> = failures
                .iter()
                .map(|((kind, execution), count)| format!("{count} {kind} ({execution})"))
                .collect();
            println!(
                "{:6} {callers:>8} {:>11.0} {:>9} {:>9} {in_vain:>14}  {}",
                fabric.name(),
                times.len() as f64 / LASTS.as_secs_f64(),
                format!("{:.0?}", at(0.5)),
                format!("{:.0?}", at(0.99)),
                failures.join(", ")
            );
        }
    }
    Ok(())
}

/// What the callers of one row have counted.
#[derive(Default)]
struct Outcome {
    /// Of the calls that were answered.
    times: Vec<Duration>,
    /// Calls that a handler got although nobody waited for the answer any more.
    in_vain: u64,
    /// By the kind of error and what it says of the execution.
    failures: BTreeMap<(String, String), u64>,
}

fn load(fabric: Fabric, callers: usize) -> Result<Outcome, Box<dyn Error>> {
    let node = || Node::builder().fabric(fabric, Policy::Require);
    let server = node().listen("127.0.0.1:0").build()?;
    let address = server.local_addr().expect("it listens");
    let service = server
        .channel("work")
        .codec::<Pod>()
        .service::<u64, u64>()?;
    let (in_vain, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let call = || -> Result<Outcome, Box<dyn Error + Send + Sync>> {
        let client = node().build()?;
        let work = client.connect(address)?.channel("work").codec::<Pod>();
        let in_time = CallOptions::new().timeout(DEADLINE);
        let work = work.caller::<u64, u64>()?.with(in_time);
        let mut outcome = Outcome::default();
        while !is_over.load(Ordering::Relaxed) {
            let begun = Instant::now();
            match work.call(&7) {
                Ok(_) => outcome.times.push(begun.elapsed()),
                Err(error) if error.kind() == CallErrorKind::Lost => break,
                Err(error) => {
                    let execution = match error.execution() {
                        Execution::NotExecuted => "not executed",
                        Execution::Executed => "executed",
                        _ => "unknown",
                    };
                    let kind = (format!("{:?}", error.kind()), execution.to_owned());
                    *outcome.failures.entry(kind).or_default() += 1;
                }
            }
            thread::sleep(PERIOD.saturating_sub(begun.elapsed()));
        }
        Ok(outcome)
    };
    let mut all = Outcome::default();
    thread::scope(|scope| -> Result<(), Box<dyn Error>> {
        scope.spawn(|| {
            service.serve_blocking(HANDLERS, |request| {
                if request.is_cancelled() {
                    in_vain.fetch_add(1, Ordering::Relaxed);
                }
                thread::sleep(TAKES);
                Ok(2 * **request)
            })
        });
        let threads: Vec<_> = (0..callers).map(|_| scope.spawn(call)).collect();
        thread::sleep(LASTS);
        is_over.store(true, Ordering::Relaxed);
        for thread in threads {
            let outcome = thread.join().expect("a caller's thread ran to its end");
            let outcome = outcome.map_err(|error| error.to_string())?;
            all.times.extend(outcome.times);
            for (kind, count) in outcome.failures {
                *all.failures.entry(kind).or_default() += count;
            }
        }
        let _report = server.close(Duration::ZERO);
        Ok(())
    })?;
    all.in_vain = in_vain.into_inner();
    Ok(all)
}

const HANDLERS: usize = 2;
const TAKES: Duration = Duration::from_millis(10);
const DEADLINE: Duration = Duration::from_millis(100);
const PERIOD: Duration = Duration::from_millis(100);
const LASTS: Duration = Duration::from_secs(5);
