//! A replica: appends what its primary sends to its own log, and acknowledges what is
//! durable there.

use std::{net::SocketAddr, time::Duration};

use ibex_harness::{Error, clock};
use serde::{Deserialize, Serialize};

use crate::{
    log::{Log, LogSettings, Tip},
    primary::processor_time,
    transport::{
        Join, PrimaryLink, Received, Waiting,
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
    /// Follows the primary until it has no more.
    pub(crate) fn run(self) -> Result<Report, Error> {
        let (replica, primary) = (self.replica, self.primary);
        let mut log = Log::open(self.log).map_err(Error::subject)?;
        let join = Join::new(replica, log.tip());
        let report = match self.transport {
            Transport::Ibex(setup) => {
                let mut link = IbexPrimary::connect(setup, primary, join)?;
                follow(&mut log, &mut link)
            }
            Transport::Sockets(waiting) => {
                let mut link = SocketPrimary::connect(waiting, primary, join)?;
                follow(&mut log, &mut link)
            }
        }?;
        Ok(Report {
            replica,
            joined_at: join.end,
            ..report
        })
    }
}

/// Appends, commits and acknowledges, group by group; what has come together is a group.
fn follow(log: &mut Log, primary: &mut impl PrimaryLink) -> Result<Report, Error> {
    let mut begun = None;
    loop {
        let limit = log.sync_due();
        let limit = if limit == Duration::ZERO {
            Duration::MAX
        } else {
            limit
        };
        let received = primary.receive(limit, &mut |batch| {
            begun.get_or_insert_with(|| (clock::ticks(), processor_time()));
            log.append_records(batch.at, batch.records)
                .map_err(Error::subject)
        })?;
        match received {
            Received::Batches => {
                log.commit().map_err(Error::subject)?;
                primary.acknowledge()?;
            }
            Received::Nothing => log.sync().map_err(Error::subject)?,
            Received::End => break,
        }
    }
    log.sync().map_err(Error::subject)?;
    let spent = log.spent();
    let (ticks, processor) = begun.unwrap_or((0, Duration::ZERO));
    let ticks = clock::ticks() - ticks;
    let processor = processor_time().saturating_sub(processor);
    let share = |part| part as f64 / ticks as f64;
    Ok(Report {
        replica: 0,
        tip: log.read_back().map_err(Error::subject)?,
        cut: log.cut(),
        joined_at: 0,
        processor_s: processor.as_secs_f64(),
        checksum_share: share(spent.checksum),
        write_share: share(spent.write),
        sync_share: share(spent.sync),
    })
}
