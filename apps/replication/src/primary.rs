//! The primary appends the writer's records to its log, sends the log to the replicas, and
//! acknowledges the records that a majority has.

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
    transport::{Change, Replicas},
};

/// The pace at which a primary takes records from its writer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Pace {
    /// Records that may be unacknowledged.
    pub(crate) outstanding: usize,
    /// The most records of a group, which is appended before it is sent and committed.
    pub(crate) group: usize,
}

/// Results of a run.
#[derive(Debug)]
pub(crate) struct Written {
    /// The end of the log.
    pub(crate) tip: Tip,
    /// Bytes of the payloads.
    pub(crate) payload_bytes: u64,
    /// Time from the first record to the last acknowledgement.
    pub(crate) elapsed: Duration,
    /// Times from a record's append to its acknowledgement by a majority, in ticks.
    pub(crate) latency: Histogram<u64>,
    /// The length of a tick.
    pub(crate) tick_ns: f64,
    /// The part of `elapsed` that the log took, in ticks.
    pub(crate) spent: Spent,
    /// Processor time of this process during `elapsed`.
    pub(crate) processor: Duration,
    /// Time until every replica had all records.
    pub(crate) settled_after: Duration,
    /// Replicas that were lost during the run.
    pub(crate) lost: usize,
    /// The carrier of the bytes.
    pub(crate) carrier: String,
}

/// An observer of a running primary; an error ends the run.
pub(crate) trait Observer {
    /// Reports the number of records acknowledged to the writer.
    fn acknowledged(&mut self, records: u64) -> Result<(), Error>;
    /// Reports that a replica joined or was lost.
    fn changed(&mut self, change: &Change);
}

/// A log with its replicas.
pub(crate) struct Primary<'a, R: Replicas> {
    log: Log,
    replicas: R,
    observer: &'a mut dyn Observer,

    // The writer's unacknowledged records: the end of each, and the time of its append.
    outstanding: VecDeque<(u64, u64)>,
    latency: Histogram<u64>,
    acknowledged: u64,

    // The changes of the replicas: losses so far, and when to look next.
    lost: usize,
    look_at: Instant,
}

impl<'a, R: Replicas> Primary<'a, R> {
    /// Creates a primary whose `replicas` are about to join.
    pub(crate) fn new(
        log: Log,
        replicas: R,
        observer: &'a mut dyn Observer,
    ) -> Result<Self, Error> {
        Ok(Primary {
            acknowledged: log.tip().number,
            log,
            replicas,
            observer,
            outstanding: VecDeque::new(),
            latency: Histogram::new_with_bounds(1, LONGEST_TICKS, 3).map_err(Error::subject)?,
            lost: 0,
            look_at: Instant::now(),
        })
    }

    /// Waits until all replicas have joined, replicates `load`, and returns when every replica has
    /// all of it.
    pub(crate) fn write(mut self, load: &mut Load, pace: Pace) -> Result<Written, Error> {
        let patience = Instant::now() + PATIENCE;
        while !self.replicas.all_have(0) {
            self.progress_by(patience, "join")?;
            self.look_around()?;
            self.replicate()?;
            self.wait_for(u64::MAX, LOOK_EVERY);
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
        while !self.replicas.all_have(end) {
            self.progress_by(patience, "have everything")?;
            self.look_around()?;
            self.replicate()?;
            self.wait_for(end, LOOK_EVERY);
        }
        self.log.sync().map_err(Error::subject)?;
        let settled_after = begun.elapsed();
        let tip = self.log.read_back().map_err(Error::subject)?;
        let carrier = self.replicas.carrier();
        self.replicas.end();
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

    /// Appends the writer's records, up to a group. Returns whether the load has ended.
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

    /// Sends appended records, makes them durable here while the replicas do the same, and
    /// acknowledges to the writer those that a majority has.
    fn replicate(&mut self) -> Result<(), Error> {
        self.replicas.send(&mut self.log)?;
        let own = self.log.commit().map_err(Error::subject)?;
        let reached = self.replicas.reached(own);
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

    /// Waits until a whole group may follow, or until all records are acknowledged.
    fn wait(&mut self, pace: Pace) {
        let group = pace.group.min(self.outstanding.len()).max(1);
        let Some(&(offset, _)) = self.outstanding.get(group - 1) else {
            // No record is outstanding, so the writer is the one to wait for.
            self.wait_for(u64::MAX, LOOK_EVERY);
            return;
        };
        let limit = self.log.sync_due();
        let limit = if limit == Duration::ZERO {
            LOOK_EVERY
        } else {
            limit
        };
        self.wait_for(offset, limit.min(LOOK_EVERY));
    }

    fn wait_for(&mut self, offset: u64, limit: Duration) {
        if self.replicas.wait(offset, limit) {
            self.look_at = Instant::now();
        }
    }

    /// Admits replicas, leaves lost ones out, and reports that to the observer.
    fn look_around(&mut self) -> Result<(), Error> {
        self.look_at = Instant::now() + LOOK_EVERY;
        while let Some(change) = self.replicas.next_change(&mut self.log)? {
            self.lost += usize::from(matches!(change, Change::Lost { .. }));
            self.observer.changed(&change);
        }
        self.observer.acknowledged(self.acknowledged)
    }

    fn progress_by(&self, patience: Instant, what: &str) -> Result<(), Error> {
        if Instant::now() < patience {
            return Ok(());
        }
        let present = self.replicas.present();
        Err(Error::subject(format!(
            "not all replicas came to {what} within {PATIENCE:?}; {present} are there, and what \
             they said is above"
        )))
    }
}

/// Returns the processor time that this process has used, with all its threads.
pub(crate) fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// About 10 s at 5 GHz; longer latencies are recorded as this.
const LONGEST_TICKS: u64 = 50_000_000_000;
/// Interval at which joining replicas are admitted, and lost ones left out.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// The longest wait for replicas to join, and to catch up at the end.
const PATIENCE: Duration = Duration::from_secs(120);
