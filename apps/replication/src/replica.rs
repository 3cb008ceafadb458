//! A replica: appends what its primary sends to its own log, and acknowledges what is
//! durable there.

use std::{
    net::SocketAddr,
    thread,
    time::{Duration, Instant},
};

use ibex_harness::{Error, clock};
use serde::{Deserialize, Serialize};

use crate::{
    log::{Log, LogSettings, Tip},
    primary::processor_time,
    transport::{
        Join, Lost, PrimaryLink, Received, Waiting,
        ibex::{IbexPrimary, Setup},
        sockets::SocketPrimary,
    },
};

/// What a replica process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// Which replica it is.
    pub(crate) replica: u32,
    /// Where its primary is,
    pub(crate) primary: SocketAddr,
    /// and how to talk to it.
    pub(crate) transport: Transport,
    /// Its log.
    pub(crate) log: LogSettings,
    /// How long it looks for a primary once it has none; zero: it fails with its primary.
    pub(crate) patience: Duration,
}

/// How primary and replicas talk.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Over ibex.
    Ibex(Setup),
    /// Over TCP sockets.
    Sockets(Waiting),
}

/// What a replica reports at its end.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Report {
    /// Which replica it is.
    pub(crate) replica: u32,
    /// Where its log ends, from reading all of it back.
    pub(crate) tip: Tip,
    /// Bytes that it found torn when it opened its log, and cut off.
    pub(crate) cut: u64,
    /// Where its log ended when it joined.
    pub(crate) joined_at: u64,
    /// Processor time since the first batch, in seconds.
    pub(crate) processor_s: f64,
    /// The share of the time since the first batch that went into checksums,
    pub(crate) checksum_share: f64,
    /// into copying and writing,
    pub(crate) write_share: f64,
    /// and into making durable.
    pub(crate) sync_share: f64,
}

impl Task {
    /// Its log, as far as it is sound.
    pub(crate) fn open_log(&self) -> Result<Log, Error> {
        Log::open(self.log.clone()).map_err(Error::subject)
    }

    /// Follows the primary until it has no more.
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
            // What it took and did not acknowledge counts from the next joining on.
            log.commit().map_err(Error::subject)?;
            thread::sleep(JOIN_EVERY);
        }
        log.sync().map_err(Error::subject)?;
        self.report(log, joined_at, begun)
    }

    /// Joins from where the log ends.
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

/// When the first batch came: the time, and the processor time used until then.
type Begun = (u64, Duration);

/// How it ended with a primary.
enum Ended {
    /// It has no more.
    Complete,
    /// It is gone.
    Lost(Lost),
    /// There was none.
    Absent(Error),
}

/// Appends, commits and acknowledges, group by group; where groups are synced, what has come
/// together is one.
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
        let received = primary.receive(limit, log.syncs_together(), &mut |batch| {
            begun.get_or_insert_with(|| (clock::ticks(), processor_time()));
            log.append_records(batch.at, batch.records)
                .map_err(Error::subject)
        })?;
        match received {
            Received::Batches => {
                log.commit().map_err(Error::subject)?;
                if let Err(lost) = primary.acknowledge() {
                    return Ok(Ended::Lost(lost));
                }
            }
            Received::Nothing => log.sync().map_err(Error::subject)?,
            Received::End => return Ok(Ended::Complete),
            Received::Lost(lost) => return Ok(Ended::Lost(lost)),
        }
    }
}

/// How often a primary is looked for.
const JOIN_EVERY: Duration = Duration::from_millis(10);
