//! A replica appends its primary's records to its own log, and acknowledges those that are durable
//! there.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ibex_harness::{Error, clock};
use serde::{Deserialize, Serialize};

use crate::{
    catch_up,
    log::{Log, LogSettings, Tip},
    primary::processor_time,
    transport::{
        Join, Lost, PrimaryLink, Received, Waiting,
        ibex::{IbexPrimary, Setup},
        sockets::SocketPrimary,
    },
};

/// Instructions to a replica process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// The address of its primary.
    pub(crate) primary: SocketAddr,
    /// The transport to its primary.
    pub(crate) transport: Transport,
    /// Settings of its log.
    pub(crate) log: LogSettings,
    /// The time for which it looks for a primary after losing one; with zero, it fails with its
    /// primary.
    pub(crate) patience: Duration,
}

/// The transport between primary and replicas.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Over ibex.
    Ibex(Setup),
    /// Over TCP sockets.
    Sockets(Waiting),
}

/// Results of a replica, reported at its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// The end of its log, from reading the whole log back.
    pub(crate) tip: Tip,
    /// Bytes at the end of its log that it found torn at opening, and cut off.
    pub(crate) cut: u64,
    /// The end of its log when it joined.
    pub(crate) joined_at: u64,
    /// Processor time since the first batch, in seconds.
    pub(crate) processor_s: f64,
    /// The share of the time since the first batch that checksums took.
    pub(crate) checksum_share: f64,
    /// The share that copying and writing took.
    pub(crate) write_share: f64,
    /// The share that making records durable took.
    pub(crate) sync_share: f64,
}

impl Task {
    /// Opens the replica's log, up to its first invalid record.
    pub(crate) fn open_log(&self) -> Result<Log, Error> {
        Log::open(self.log.clone()).map_err(Error::subject)
    }

    /// Follows the primary until the log ends.
    pub(crate) fn follow(self, mut log: Log) -> Result<Report, Error> {
        let joined_at = log.tip().end;
        let mut begun = None;
        let mut patience = Instant::now() + self.patience;
        loop {
            let error = match self.join_and_follow(&mut log, &mut begun)? {
                Ended::Complete => break,
                Ended::Absent(error) => error,
                Ended::Lost(Lost(why)) => {
                    patience = Instant::now() + self.patience;
                    Error::subject(why)
                }
            };
            if Instant::now() >= patience {
                return Err(error);
            }
            // Records that were received and not acknowledged count from the next joining on.
            log.commit().map_err(Error::subject)?;
            thread::sleep(JOIN_EVERY);
        }
        log.sync().map_err(Error::subject)?;
        self.report(log, joined_at, begun)
    }

    /// Joins the primary with the end of the log, and follows it.
    fn join_and_follow(&self, log: &mut Log, begun: &mut Option<Begun>) -> Result<Ended, Error> {
        let join = Join::new(self.replica, log.tip());
        match self.transport {
            Transport::Ibex(setup) => match IbexPrimary::connect(setup, self.primary, join) {
                Ok(mut primary) => follow(log, &mut primary, begun),
                Err(error) => Ok(Ended::Absent(error)),
            },
            Transport::Sockets(waiting) => {
                match SocketPrimary::connect(waiting, self.primary, join) {
                    Ok(mut primary) => follow(log, &mut primary, begun),
                    Err(error) => Ok(Ended::Absent(error)),
                }
            }
        }
    }

    fn report(&self, mut log: Log, joined_at: u64, begun: Option<Begun>) -> Result<Report, Error> {
        let spent = log.spent();
        let (ticks, processor) = begun.unwrap_or((0, Duration::ZERO));
        let ticks = clock::ticks() - ticks;
        let processor = processor_time().saturating_sub(processor);
        let share = |part| part as f64 / ticks as f64;
        Ok(Report {
            replica: self.replica,
            tip: log.read_back().map_err(Error::subject)?,
            cut: log.cut(),
            joined_at,
            processor_s: processor.as_secs_f64(),
            checksum_share: share(spent.checksum),
            write_share: share(spent.write),
            sync_share: share(spent.sync),
        })
    }
}

/// The time of the first batch, and the processor time used until then.
type Begun = (u64, Duration);

/// The end of a connection to a primary.
enum Ended {
    /// The log has ended.
    Complete,
    /// The primary is lost.
    Lost(Lost),
    /// The primary was not found.
    Absent(Error),
}

/// Appends, commits and acknowledges, group by group. If groups are synced together, all batches
/// that have arrived form one group.
fn follow(
    log: &mut Log,
    primary: &mut impl PrimaryLink,
    begun: &mut Option<Begun>,
) -> Result<Ended, Error> {
    loop {
        let limit = log.sync_due();
        let limit = if limit == Duration::ZERO {
            Duration::MAX
        } else {
            limit
        };
        let received = primary.receive(limit, log.syncs_together(), &mut |records| {
            begun.get_or_insert_with(|| (clock::ticks(), processor_time()));
            log.append_records(catch_up::place(log, records), records)
                .map_err(Error::subject)
        })?;
        match received {
            Received::Batches => {
                log.commit().map_err(Error::subject)?;
                if let Err(lost) = primary.acknowledge(log.tip().end) {
                    return Ok(Ended::Lost(lost));
                }
            }
            Received::Nothing => log.sync().map_err(Error::subject)?,
            Received::End => return Ok(Ended::Complete),
            Received::Lost(lost) => return Ok(Ended::Lost(lost)),
        }
    }
}

/// Interval between attempts to find a primary.
const JOIN_EVERY: Duration = Duration::from_millis(10);
