//! The primary: appends what is written to its log, sends the log to the replicas, and
//! acknowledges to the writer what a majority has.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use hdrhistogram::Histogram;
use ibex_harness::{Error, clock};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::{
    load::{Load, Next},
    log::{Log, Spent, Tip},
    quorum::{Change, Quorum},
    transport::Endpoint,
};

/// How a primary takes records from its writer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Records that may be unacknowledged.
    pub(crate) outstanding: usize,
    /// Records that are appended before they are sent and committed, at most: a group.
    pub(crate) group: usize,
}

/// What came of it.
#[derive(Debug)]
pub(crate) struct Written {
    /// Where the log ends.
    pub(crate) tip: Tip,
    /// Bytes of the payloads.
    pub(crate) payload_bytes: u64,
    /// From the first record to the last acknowledgement.
    pub(crate) elapsed: Duration,
    /// From append to acknowledgement by a majority, in ticks.
    pub(crate) latency: Histogram<u64>,
    /// The length of a tick.
    pub(crate) tick_ns: f64,
    /// What of `elapsed` went into the log, in ticks.
    pub(crate) spent: Spent,
    /// Processor time of this process in `elapsed`.
    pub(crate) processor: Duration,
    /// Until every replica had everything as well.
    pub(crate) settled_after: Duration,
    /// Replicas that were lost on the way.
    pub(crate) lost: usize,
    /// What carried the bytes.
    pub(crate) carrier: String,
}

/// Told of what goes on, now and then; an error ends the run.
pub(crate) trait Observer {
    /// So many records are acknowledged to the writer.
    fn acknowledged(&mut self, records: u64) -> Result<(), Error>;
    /// A replica came or went.
    fn changed(&mut self, change: &Change);
}

/// A log with its replicas.
pub(crate) struct Primary<'a, E: Endpoint> {
    log: Log,
    quorum: Quorum<E>,
    observer: &'a mut dyn Observer,

    // The writer's records that are not acknowledged: where each ends, and when it came.
    outstanding: VecDeque<(u64, u64)>,
    latency: Histogram<u64>,
    acknowledged: u64,

    // Replicas.
    changes: Vec<Change>,
    lost: usize,
    look_at: Instant,
}

impl<'a, E: Endpoint> Primary<'a, E> {
    /// A log whose `replicas` replicas are about to join.
    pub(crate) fn new(
        log: Log,
        endpoint: E,
        replicas: usize,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, Error> {
        Ok(Primary {
            acknowledged: log.tip().number,
            log,
            quorum: Quorum::new(endpoint, replicas),
            observer,
            outstanding: VecDeque::new(),
            latency: Histogram::new_with_bounds(1, LONGEST_TICKS, 3).map_err(Error::subject)?,
            changes: Vec::new(),
            lost: 0,
            look_at: Instant::now(),
        })
    }

    /// Replicates what `load` gives, from the time when all replicas are there until they all
    /// have all of it.
    pub(crate) fn write(mut self, load: &mut Load, pace: Pace) -> Result<Written, Error> {
        let patience = Instant::now() + PATIENCE;
        while !self.quorum.all_have(0) {
            self.progress_by(patience, "join")?;
            self.look_around()?;
            self.quorum.wait(u64::MAX, LOOK_EVERY);
        }

        let (begun, begun_ticks) = (Instant::now(), clock::ticks());
        let processor = processor_time();
        let mut payload_bytes = 0;
        let mut is_over = false;
        while !is_over || !self.outstanding.is_empty() {
            let before = (self.log.tip(), self.acknowledged);
            is_over = is_over || self.append_group(load, pace, &mut payload_bytes)?;
            self.replicate()?;
            if (self.log.tip(), self.acknowledged) == before {
                self.wait(pace);
            }
        }
        let elapsed = begun.elapsed();
        let tick_ns = elapsed.as_nanos() as f64 / (clock::ticks() - begun_ticks).max(1) as f64;
        let processor = processor_time().saturating_sub(processor);
        let spent = self.log.spent();

        let patience = Instant::now() + PATIENCE;
        let end = self.log.tip().end;
        while !self.quorum.all_have(end) {
            self.progress_by(patience, "have everything")?;
            self.look_around()?;
            self.replicate()?;
            self.quorum.wait(end, LOOK_EVERY);
        }
        self.log.sync().map_err(Error::subject)?;
        let settled_after = begun.elapsed();
        let tip = self.log.read_back().map_err(Error::subject)?;
        let carrier = self.quorum.carrier();
        self.quorum.end();
        Ok(Written {
            tip,
            payload_bytes,
            elapsed,
            latency: self.latency,
            tick_ns,
            spent,
            processor,
            settled_after,
            lost: self.lost,
            carrier,
        })
    }

    /// Appends what the writer has, up to a group; whether it will have nothing more.
    fn append_group(
        &mut self,
        load: &mut Load,
        pace: Pace,
        bytes: &mut u64,
    ) -> Result<bool, Error> {
        let room = pace.outstanding - self.outstanding.len();
        for _ in 0..room.min(pace.group) {
            let begun = clock::ticks();
            match load.next()? {
                Next::Record(payload) => {
                    self.log.append(payload).map_err(Error::subject)?;
                    *bytes += payload.len() as u64;
                    self.outstanding.push_back((self.log.tip().end, begun));
                }
                Next::NotYet => break,
                Next::End => return Ok(true),
            }
        }
        Ok(false)
    }

    /// Sends what was appended, makes it durable here while the replicas do the same, and
    /// acknowledges to the writer what a majority has.
    fn replicate(&mut self) -> Result<(), Error> {
        self.quorum.send(&mut self.log, &mut self.changes);
        let own = self.log.commit().map_err(Error::subject)?;
        let reached = self.quorum.reached(own, &mut self.changes);
        let now = clock::ticks();
        while let Some(&(end, begun)) = self.outstanding.front()
            && end <= reached
        {
            self.outstanding.pop_front();
            self.latency.saturating_record(now.wrapping_sub(begun));
            self.acknowledged += 1;
        }
        if Instant::now() >= self.look_at {
            self.look_around()?;
        }
        Ok(())
    }

    /// Waits until a whole group may follow, or all is acknowledged.
    fn wait(&mut self, pace: Pace) {
        let group = pace.group.min(self.outstanding.len()).max(1);
        let Some(&(offset, _)) = self.outstanding.get(group - 1) else {
            // It is the writer that has nothing.
            self.quorum.wait(u64::MAX, LOOK_EVERY);
            return;
        };
        let limit = self.log.sync_due();
        let limit = if limit == Duration::ZERO {
            LOOK_EVERY
        } else {
            limit
        };
        self.quorum.wait(offset, limit.min(LOOK_EVERY));
    }

    /// Takes replicas in, and tells the observer what happened.
    fn look_around(&mut self) -> Result<(), Error> {
        self.look_at = Instant::now() + LOOK_EVERY;
        while let Some(change) = self.quorum.admit(&mut self.log)? {
            self.changes.push(change);
        }
        for change in self.changes.drain(..) {
            self.lost += usize::from(matches!(change, Change::Lost { .. }));
            self.observer.changed(&change);
        }
        self.observer.acknowledged(self.acknowledged)
    }

    fn progress_by(&self, patience: Instant, what: &str) -> Result<(), Error> {
        if Instant::now() < patience {
            return Ok(());
        }
        let present = self.quorum.present();
        Err(Error::subject(format!(
            "not all replicas came to {what} within {PATIENCE:?}; {present} are there, and what \
             they said is above"
        )))
    }
}

/// Processor time that this process has used, with all its threads.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// About 10 s at 5 GHz; what takes longer is recorded as this.
const LONGEST_TICKS: u64 = 50_000_000_000;
/// How often replicas are looked for that join.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long replicas may take to join, and to catch up at the end.
const PATIENCE: Duration = Duration::from_secs(120);
