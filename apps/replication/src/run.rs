//! A run: a primary in this process, replicas in processes of their own, the whole load, and a
//! comparison of all logs' checksums at the end.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr},
    path::{Path, PathBuf},
    process,
    time::Duration,
};

use hdrhistogram::Histogram;
use ibex_harness::Error;

use crate::{
    load::Load,
    log::{Log, LogSettings, Tip},
    options::{Options, Store, TransportName},
    primary::{Observer, Primary, Written},
    processes::{Processes, Role},
    progress::Progress,
    quorum::Quorum,
    raw_copy::Copy,
    replica::{Report, Task, Transport},
    transport::{Change, Replicas, ibex::IbexReplicas},
};

/// Results of a run.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The carrier of the log.
    pub(crate) carrier: String,
    /// The end of the primary's log.
    pub(crate) tip: Tip,
    /// Records that were written.
    pub(crate) records: u64,
    /// Bytes of their payloads.
    pub(crate) payload_bytes: u64,
    /// Seconds from the first record to the last acknowledgement.
    pub(crate) seconds: f64,
    /// Processor time of all processes together in `seconds`.
    pub(crate) processor_seconds: f64,
    /// Seconds until every replica had all records.
    pub(crate) settled_seconds: f64,
    /// Times from a record's append to its acknowledgement by a majority, in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
    /// Shares of the primary's time.
    pub(crate) shares: Shares,
    /// Reports of the replicas.
    pub(crate) replicas: Vec<Report>,
    /// Replicas that the primary lost during the run.
    pub(crate) lost: usize,
    /// Replicas that the run killed.
    pub(crate) killed: usize,
}

/// Shares of a process's time that went into its log.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub(crate) struct Shares {
    /// Making or checking checksums.
    pub(crate) checksum: f64,
    /// Copying and writing.
    pub(crate) write: f64,
    /// Making records durable.
    pub(crate) sync: f64,
}

impl Outcome {
    /// Returns the records per second, as acknowledged to their writer.
    pub(crate) fn records_per_second(&self) -> f64 {
        self.records as f64 / self.seconds
    }

    /// Returns the payload bytes per second.
    pub(crate) fn bytes_per_second(&self) -> f64 {
        self.payload_bytes as f64 / self.seconds
    }

    /// Returns the processor time per record, of all processes together, in microseconds.
    pub(crate) fn processor_us(&self) -> f64 {
        self.processor_seconds / self.records as f64 * 1e6
    }

    /// Returns a quantile of the latency, in microseconds.
    pub(crate) fn latency_us(&self, quantile: f64) -> f64 {
        self.latency_ns.value_at_quantile(quantile) as f64 / 1e3
    }

    /// Returns the replicas whose log differs from the primary's.
    pub(crate) fn differing(&self) -> Vec<&Report> {
        let differs = |report: &&Report| report.tip != self.tip;
        self.replicas.iter().filter(differs).collect()
    }
}

/// Runs over `transport`.
pub(crate) fn run(
    options: &Options,
    transport: TransportName,
    progress: &Progress,
) -> Result<Outcome, Error> {
    match transport {
        TransportName::Ibex => {
            let setup = options.setup();
            let replicas = IbexReplicas::listen(setup, HERE, options.replicas.into())?;
            run_over(options, Transport::Ibex(setup), replicas, progress)
        }
        TransportName::Sockets => {
            let replicas = Quorum::listen(options.wait, HERE, options.replicas.into())?;
            let transport = Transport::Sockets(options.wait);
            run_over(options, transport, replicas, progress)
        }
    }
}

/// Returns the payload bytes per second of a raw copy over sockets, with or without logs, with the
/// settings of the run that gave `outcome`.
pub(crate) fn raw_copy(options: &Options, outcome: &Outcome, appends: bool) -> Result<f64, Error> {
    let load = Load::open(&options.source(), options.record_bytes())?;
    let copy = Copy {
        replicas: options.replicas.into(),
        pace: options.pace(),
        waiting: options.wait,
        log: log_settings(options, None),
        appends,
    };
    let seconds = copy.measure(load)?.as_secs_f64();
    Ok(outcome.payload_bytes as f64 / seconds)
}

pub(crate) fn log_settings(options: &Options, directory: Option<PathBuf>) -> LogSettings {
    let record_bytes = options.record_bytes();
    LogSettings {
        directory,
        fsync: options.fsync,
        segment_bytes: options.segment_bytes(),
        // The margin leaves room for the headers.
        expected_bytes: options.source().records(record_bytes).unwrap_or(0)
            * (record_bytes as u64 + 64),
    }
}

fn run_over(
    options: &Options,
    transport: Transport,
    replicas: impl Replicas,
    progress: &Progress,
) -> Result<Outcome, Error> {
    let directories = Directories::make(options)?;
    let settings = |name: &str| log_settings(options, directories.of(name));
    let primary = replicas.address();
    let task = |replica| Task {
        replica,
        primary,
        transport,
        log: settings(&format!("replica-{replica}")),
        patience: Duration::ZERO,
    };
    let roles = (0..options.replicas.into()).map(|replica| Role::Replica(task(replica)));
    let mut watch = Watch {
        options,
        processes: Processes::start(roles.collect())?,
        killed: 0,
        progress,
    };
    let mut load = Load::open(&options.source(), options.record_bytes())?;
    let log = Log::open(settings("primary")).map_err(Error::subject)?;
    let before = log.tip().number;
    let primary = Primary::new(log, replicas, &mut watch)?;
    let written = primary.write(&mut load, options.pace())?;
    let mut reports = watch.processes.finish()?;
    reports.sort_by_key(|report| report.replica);
    Ok(outcome(written, before, reports, watch.killed))
}

fn outcome(written: Written, records_before: u64, replicas: Vec<Report>, killed: usize) -> Outcome {
    let ticks = written.elapsed.as_nanos() as f64 / written.tick_ns;
    let spent = written.spent;
    let mut latency_ns = nanoseconds();
    for bar in written.latency.iter_recorded() {
        let ns = bar.value_iterated_to() as f64 * written.tick_ns;
        latency_ns.saturating_record_n(ns as u64, bar.count_at_value());
    }
    Outcome {
        carrier: written.carrier,
        tip: written.tip,
        records: written.tip.number - records_before,
        payload_bytes: written.payload_bytes,
        seconds: written.elapsed.as_secs_f64(),
        processor_seconds: written.processor.as_secs_f64()
            + replicas.iter().map(|one| one.processor_s).sum::<f64>(),
        settled_seconds: written.settled_after.as_secs_f64(),
        latency_ns,
        shares: Shares {
            checksum: spent.checksum as f64 / ticks,
            write: spent.write as f64 / ticks,
            sync: spent.sync as f64 / ticks,
        },
        replicas,
        lost: written.lost,
        killed,
    }
}

/// Creates an empty histogram of nanoseconds, up to a minute.
pub(crate) fn nanoseconds() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, 60_000_000_000, 3);
    histogram.expect("the bounds are constants that hdrhistogram accepts")
}

/// Watches a run: kills the replicas that the options name, and checks that no other process ends.
struct Watch<'a> {
    options: &'a Options,
    processes: Processes,
    /// The number of kills done.
    killed: usize,
    progress: &'a Progress,
}

impl Observer for Watch<'_> {
    fn acknowledged(&mut self, records: u64) -> Result<(), Error> {
        self.progress.acknowledged(records);
        while let Some(kill) = self.options.kills.get(self.killed)
            && kill.records <= records
        {
            self.killed += 1;
            let note = format!(
                "{records} records acknowledged: replica {} killed",
                kill.replica
            );
            self.progress.note(&note);
            self.processes.kill_and_start(kill.replica as usize)?;
        }
        self.processes.check()
    }

    fn changed(&mut self, change: &Change) {
        match change {
            Change::Joined { has: 0, .. } => {}
            Change::Joined { replica, has } => {
                let note = format!("replica {replica} is there and has {has} bytes");
                self.progress.note(&note);
            }
            Change::Lost { replica, why } => {
                let note = format!("replica {replica} is gone: {why}");
                self.progress.note(&note);
            }
        }
    }
}

/// The directories of a run's logs.
pub(crate) struct Directories {
    root: Option<PathBuf>,
    is_ours: bool,
}

impl Directories {
    /// Makes the directories that are missing.
    pub(crate) fn make(options: &Options) -> Result<Directories, Error> {
        let root = match (options.store(), &options.dir) {
            (Store::Memory, _) => None,
            (Store::Files, Some(path)) => Some(path.clone()),
            (Store::Files, None) => {
                let name = format!("ibex-replication-{}", process::id());
                Some(env::temp_dir().join(name))
            }
        };
        if let Some(root) = &root {
            fs::create_dir_all(root).map_err(Error::io("making a directory for the logs"))?;
        }
        Ok(Directories {
            root,
            is_ours: options.dir.is_none(),
        })
    }

    /// Returns the directory of the log `name`; `None` if logs are in memory.
    pub(crate) fn of(&self, name: &str) -> Option<PathBuf> {
        let root: Option<&Path> = self.root.as_deref();
        root.map(|root| root.join(name))
    }
}

impl Drop for Directories {
    fn drop(&mut self) {
        if let Some(root) = &self.root
            && self.is_ours
        {
            // A directory that cannot be removed is among temporary files.
            let _ = fs::remove_dir_all(root);
        }
    }
}

/// All processes are on this host.
const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
