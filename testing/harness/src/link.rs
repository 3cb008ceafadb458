//! The loop of a measurement, common to the raw limits and the subjects that are compared to them.
//! A [`Link`] moves single messages; [`measure`] and [`answer`] are the two ends of the
//! conversation.

#![forbid(unsafe_code)]

use crate::{
    Error,
    check::Tally,
    histogram::{Laps, Stopped},
    job::{Job, Mode},
};

/// An end of a two-way path between the two processes.
pub trait Link {
    /// Sends message `sequence`, filled by [`Job::fill`].
    fn send(&mut self, sequence: u64) -> Result<(), Error>;

    /// Waits for message `sequence` and checks it into `tally`.
    fn receive(&mut self, sequence: u64, tally: &mut Tally) -> Result<(), Error>;

    /// Transmits everything that was sent; no message follows.
    fn finish(&mut self) -> Result<(), Error>;
}

/// Runs the measuring end: sends pings, or receives a stream and counts.
pub fn measure(job: &Job, link: &mut impl Link, tally: &mut Tally) -> Result<Stopped, Error> {
    let mut laps = Laps::new(*job);
    let (warmup, timed) = job.split();
    match job.mode {
        Mode::Latency => {
            for sequence in warmup {
                link.send(sequence)?;
                link.receive(sequence, tally)?;
            }
            laps.start();
            let first = timed.start;
            for sequence in timed {
                laps.wait_until_due(sequence - first);
                link.send(sequence)?;
                if sequence > first {
                    laps.record();
                }
                link.receive(sequence, tally)?;
                laps.lap();
                laps.count(sequence - first);
            }
            laps.record();
        }
        Mode::Stream => {
            for sequence in warmup {
                link.receive(sequence, tally)?;
            }
            laps.start();
            let first = timed.start;
            for sequence in timed {
                link.receive(sequence, tally)?;
                laps.count(sequence - first);
            }
        }
    }
    Ok(laps.stop())
}

/// Runs the answering end: answers each ping, or sends as fast as it may.
pub fn answer(job: &Job, link: &mut impl Link) -> Result<Tally, Error> {
    let mut tally = Tally::default();
    for sequence in job.sequences() {
        if job.mode == Mode::Latency {
            link.receive(sequence, &mut tally)?;
        }
        link.send(sequence)?;
    }
    link.finish()?;
    Ok(tally)
}
