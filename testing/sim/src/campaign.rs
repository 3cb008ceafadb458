//! A campaign: many runs, from seeds that follow from one.
#![forbid(unsafe_code)]

use std::{
    collections::BTreeMap,
    panic::catch_unwind,
    sync::{
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use ibex_harness::draw::mix;

use super::{Coverage, Faults, Simulation, Summary, Violation};

/// Runs that follow each other, until they suffice or one breaks a rule.
#[derive(Clone, Copy, Debug)]
pub struct Campaign {
    /// The seed of the first run; the others follow from it.
    pub seed: u64,
    /// The end of the campaign.
    pub until: Until,
}

/// The condition that ends a campaign.
#[derive(Clone, Copy, Debug)]
pub enum Until {
    /// The runs have taken this many steps in all. The same seed then makes the same campaign on
    /// any number of threads; with one step it is a single run.
    Steps(u64),
    /// The runs have taken this long.
    Time(Duration),
}

/// Sums over all runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of runs.
    pub runs: u64,
    /// Steps of all runs.
    pub steps: u64,
    /// Frames sent.
    pub frames: u64,
    /// Messages handed out.
    pub messages: u64,
    /// Number of times that a session resumed over new wires.
    pub resumed: u64,
    /// Records that were sent again after a resumption.
    pub replayed: u64,
    /// Faults that happened.
    pub faults: Faults,
    /// Pairs of state and event that the sessions met.
    pub coverage: Coverage,
    /// A hash of all traces, in order.
    pub trace: u64,
}

impl Campaign {
    /// Runs the campaign on `threads` threads.
    ///
    /// # Errors
    /// The first rule that was broken, in the order of the runs.
    pub fn run(&self, threads: usize) -> Result<Totals, Violation> {
        let next = AtomicU64::new(0);
        thread::scope(|scope| {
            let (tell, notified) = mpsc::channel();
            for _ in 0..threads {
                let (tell, next) = (tell.clone(), &next);
                scope.spawn(move || {
                    loop {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let run = run_alone(self.seed_of(index));
                        if tell.send((index, run)).is_err() {
                            // The receiver is gone because the runs suffice.
                            return;
                        }
                    }
                });
            }
            self.collect(notified)
        })
    }

    /// Adds runs up in their order, whichever finishes first.
    fn collect(
        &self,
        notified: mpsc::Receiver<(u64, Result<Summary, Violation>)>,
    ) -> Result<Totals, Violation> {
        let begun = Instant::now();
        let mut totals = Totals::default();
        let mut early = BTreeMap::new();
        for (index, run) in notified {
            early.insert(index, run);
            while let Some(run) = early.remove(&totals.runs) {
                totals.add(&run?);
                let is_enough = match self.until {
                    Until::Steps(steps) => totals.steps >= steps,
                    Until::Time(time) => begun.elapsed() >= time,
                };
                if is_enough {
                    return Ok(totals);
                }
            }
        }
        Ok(totals)
    }

    /// Returns the seed of a run. The first run has the campaign's own, so any run can be repeated
    /// alone.
    fn seed_of(&self, index: u64) -> u64 {
        self.seed.wrapping_add(mix(index))
    }
}

impl Totals {
    fn add(&mut self, run: &Summary) {
        self.runs += 1;
        self.steps += run.steps;
        self.frames += run.frames;
        self.messages += run.messages;
        self.resumed += run.resumed;
        self.replayed += run.replayed;
        self.faults += run.faults;
        self.coverage |= run.coverage;
        self.trace = mix(self.trace ^ run.trace);
    }
}

/// Runs one seed. A panic counts as a broken rule.
fn run_alone(seed: u64) -> Result<Summary, Violation> {
    let panicked = |_| Violation {
        seed,
        step: 0,
        peer: 0,
        side: None,
        what: "the run panicked".to_owned(),
    };
    catch_unwind(|| Simulation::new(seed).run()).map_err(panicked)?
}
