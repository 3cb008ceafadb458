//! The command line.

use std::{fmt, path::PathBuf, time::Duration};

use clap::{Parser, ValueEnum};

use ibex_harness::{Error, network::Medium, run_keys::RunKeys};

use crate::{
    fire,
    load::Source,
    log::{Fsync, HEADER_BYTES},
    primary::Pace,
    transport::{
        Waiting,
        ibex::{DriverName, FabricName, Setup},
    },
};

/// Replicates a log from this process to replica processes that it starts, and compares ibex to
/// sockets doing the same
///
/// A record is acknowledged once a majority of primary and replicas has it durably. At the end
/// every log is read back, and its checksum compared to the primary's.
#[derive(Clone, Debug, Parser)]
#[command(name = "replication")]
pub(crate) struct Options {
    /// Replica processes beside the primary.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=16))]
    pub(crate) replicas: u8,

    /// File to replicate, or - for standard input. Default: a generated load.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,

    /// Records of the generated load. Default: 100000, or 20000 with --store files.
    #[arg(long, value_name = "COUNT", conflicts_with = "input",
        value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    records: Option<u64>,

    /// Payload of a record in bytes; a file is cut into records of this size.
    #[arg(long, value_name = "BYTES", default_value_t = 4096,
        value_parser = clap::value_parser!(u32).range(1..=64 << 20))]
    size: u32,

    /// Transport of the log.
    #[arg(long, value_enum, default_value_t = TransportName::Ibex, conflicts_with = "compare")]
    transport: TransportName,

    /// Run both transports and a raw copy over sockets in turn, and print the ratios.
    #[arg(long)]
    pub(crate) compare: bool,

    /// Number of runs of each transport with --compare.
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u8).range(1..))]
    pub(crate) pairs: u8,

    /// Fabric that ibex has to use.
    #[arg(long, value_enum, default_value_t = FabricChoice::Auto)]
    fabric: FabricChoice,

    /// Driver of ibex's engine.
    #[arg(long, value_enum, default_value_t = DriverName::Caller)]
    driver: DriverName,

    /// Authenticate all nodes by certificates that are made for the run, and encrypt tcp.
    #[arg(long, conflicts_with = "secret")]
    tls: bool,

    /// Authenticate all nodes by the shared secret in FILE (32 random bytes), and encrypt tcp.
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,

    /// Keys made by [`make_keys`](Self::make_keys).
    #[arg(skip)]
    keys: Option<RunKeys>,

    /// How all processes wait, over either transport.
    #[arg(long, value_enum, default_value_t = Waiting::Spin)]
    pub(crate) wait: Waiting,

    /// Storage of the logs.
    #[arg(long, value_enum, default_value_t = Store::Memory)]
    store: Store,

    /// Directory for the logs, with --store files. Default: a new one among the system's temporary
    /// files, which is removed at the end.
    #[arg(long, value_name = "PATH")]
    pub(crate) dir: Option<PathBuf>,

    /// When files are synced: for each record, for each group of records that came together, or
    /// every so many milliseconds.
    #[arg(long, value_name = "record|group|MS", default_value = "group", value_parser = parse_fsync)]
    pub(crate) fsync: Fsync,

    /// The most bytes of a segment. Default: 16 MiB, or 448 KiB under --fire.
    #[arg(long, value_name = "BYTES",
        value_parser = clap::value_parser!(u32).range(4096..=1 << 30))]
    segment_bytes: Option<u32>,

    /// Records that may be unacknowledged at a time.
    #[arg(long, value_name = "COUNT", default_value_t = 64,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    outstanding: u32,

    /// The most records that are appended before they are sent together. Of 4 KiB, 15 fit a segment
    /// of the loopback interface.
    #[arg(long, value_name = "COUNT", default_value_t = 15,
        value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    group: u32,

    /// Kill a replica with SIGKILL when so many records are acknowledged, and start it again; may
    /// be repeated.
    #[arg(long = "kill", value_name = "REPLICA@RECORDS", value_parser = parse_kill)]
    pub(crate) kills: Vec<Kill>,

    /// Run the primary and its replicas under fire for so many seconds
    ///
    /// Processes are killed, stopped, and denied descriptors, memory files and locked memory;
    /// connections are cut, reset and stalled; the link between the processes fails; crowds of
    /// silent clients connect. Logs are in files. The run fails if an acknowledged record is
    /// missing anywhere at the end.
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=86_400),
        conflicts_with_all = ["compare", "input", "records", "kills", "plot"])]
    pub(crate) fire: Option<u64>,

    /// Seed of the faults under --fire. Default: drawn at random, and printed.
    #[arg(long, requires = "fire")]
    pub(crate) seed: Option<u64>,

    /// Write a plot of the latencies to this file, as SVG.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object per run on standard output, and with --compare one with the ratios.
    #[arg(long)]
    pub(crate) json: bool,
}

/// The transport of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum TransportName {
    /// ibex, over the fabric of --fabric.
    Ibex,
    /// TCP sockets, without a library.
    Sockets,
}

impl fmt::Display for TransportName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportName::Ibex => "ibex",
            TransportName::Sockets => "sockets",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FabricChoice {
    Auto,
    Shm,
    Tcp,
    Verbs,
}

/// The storage of the logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    /// In the memory of their process.
    Memory,
    /// In files.
    Files,
}

/// A replica to kill, and the moment to do so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    /// Index of the replica.
    pub(crate) replica: u32,
    /// Acknowledged records after which it is killed.
    pub(crate) records: u64,
}

impl Options {
    /// Returns an error if options contradict each other.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.record_bytes() + HEADER_BYTES > self.segment_bytes() {
            return Err(format!(
                "a record of {} bytes and its header do not fit a segment of {}: raise \
                 --segment-bytes",
                self.size,
                self.segment_bytes()
            ));
        }
        if self.compare && matches!(self.source(), Source::Stdin) {
            return Err("--compare needs its input more than once: give a file".into());
        }
        if self.fire.is_some() && self.record_bytes() < fire::SMALLEST_RECORD {
            return Err(format!(
                "under --fire a record has its number in it: --size is {} at least",
                fire::SMALLEST_RECORD
            ));
        }
        match self
            .kills
            .iter()
            .find(|kill| kill.replica >= self.replicas.into())
        {
            Some(kill) => Err(format!(
                "replica {} cannot be killed: there are {}, from 0 on",
                kill.replica, self.replicas
            )),
            None => Ok(()),
        }
    }

    /// Returns the storage of the logs.
    pub(crate) fn store(&self) -> Store {
        match self.fire {
            Some(_) => Store::Files,
            None => self.store,
        }
    }

    /// Returns the source of the payloads.
    pub(crate) fn source(&self) -> Source {
        match &self.input {
            Some(path) if path.as_os_str() == "-" => Source::Stdin,
            Some(path) => Source::File(path.clone()),
            None => Source::Generated(self.records.unwrap_or(match self.store() {
                Store::Memory => 100_000,
                Store::Files => 20_000,
            })),
        }
    }

    /// Returns the bytes of a payload.
    pub(crate) fn record_bytes(&self) -> usize {
        self.size as usize
    }

    /// Returns the most bytes of a segment.
    pub(crate) fn segment_bytes(&self) -> usize {
        match (self.segment_bytes, self.fire) {
            (Some(bytes), _) => bytes as usize,
            // The segment is smaller than a ring, so that memory files can be limited to a segment.
            // It is larger than what passes through a ring at once, so that some pieces are large
            // messages.
            (None, Some(_)) => 448 << 10,
            (None, None) => 16 << 20,
        }
    }

    /// Returns the transport of a run without comparison.
    pub(crate) fn transport(&self) -> TransportName {
        self.transport
    }

    /// Returns the pace of the primary. If each record is made durable by itself, each is also sent
    /// by itself.
    pub(crate) fn pace(&self) -> Pace {
        let is_single = self.store() == Store::Files && self.fsync == Fsync::Record;
        Pace {
            outstanding: self.outstanding as usize,
            group: if is_single { 1 } else { self.group as usize },
        }
    }

    /// Returns the medium that connects the processes.
    pub(crate) fn medium(&self) -> Medium {
        match (self.transport, self.fabric) {
            (TransportName::Sockets, _) | (_, FabricChoice::Tcp) => Medium::Packets,
            (_, FabricChoice::Verbs) => Medium::Device,
            (_, FabricChoice::Shm | FabricChoice::Auto) => Medium::Memory,
        }
    }

    /// Returns the settings of nodes.
    pub(crate) fn setup(&self) -> Setup {
        Setup {
            fabric: match self.fabric {
                FabricChoice::Auto => None,
                FabricChoice::Shm => Some(FabricName::Shm),
                FabricChoice::Tcp => Some(FabricName::Tcp),
                FabricChoice::Verbs => Some(FabricName::Verbs),
            },
            driver: self.driver,
            waiting: self.wait,
            keys: self.keys,
        }
    }

    /// Makes the keys of the run, if its nodes authenticate each other. The caller removes them at
    /// the end.
    pub(crate) fn make_keys(&mut self) -> Result<Option<RunKeys>, Error> {
        self.keys = match &self.secret {
            Some(file) => Some(RunKeys::secret(file)?),
            None if self.tls => Some(RunKeys::certificates()?),
            None => None,
        };
        Ok(self.keys)
    }
}

fn parse_fsync(text: &str) -> Result<Fsync, String> {
    match (text, text.parse()) {
        ("record", _) => Ok(Fsync::Record),
        ("group", _) => Ok(Fsync::Group),
        (_, Ok(milliseconds)) if milliseconds > 0 => {
            Ok(Fsync::Interval(Duration::from_millis(milliseconds)))
        }
        _ => Err("give `record`, `group`, or a number of milliseconds from 1 on".into()),
    }
}

fn parse_kill(text: &str) -> Result<Kill, String> {
    let parts = text.split_once('@');
    let parsed = parts.and_then(|(replica, records)| {
        Some(Kill {
            replica: replica.parse().ok()?,
            records: records.parse().ok()?,
        })
    });
    parsed.ok_or_else(|| "give REPLICA@RECORDS, such as 0@5000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Options, String> {
        let words = ["replication"].into_iter().chain(line.split_whitespace());
        let options = Options::try_parse_from(words).map_err(|error| error.to_string())?;
        options.check().map(|()| options)
    }

    #[test]
    fn values_have_their_forms() {
        let options = parse("--fsync 20 --kill 1@500 --kill 0@7 --store files").unwrap();
        assert_eq!(options.fsync, Fsync::Interval(Duration::from_millis(20)));
        let kill = |replica, records| Kill { replica, records };
        assert_eq!(options.kills, [kill(1, 500), kill(0, 7)]);
        assert_eq!(
            parse("--store files --fsync record").unwrap().pace().group,
            1
        );
    }

    #[test]
    fn options_that_cannot_work_are_refused_with_ones_that_do() {
        let refusal = |line| parse(line).unwrap_err();
        assert!(refusal("--fsync 0").contains("milliseconds"));
        assert!(refusal("--kill 3").contains("0@5000"));
        assert!(refusal("--kill 2@5").contains("there are 2"));
        assert!(refusal("--size 5000 --segment-bytes 5000").contains("--segment-bytes"));
        assert!(refusal("--compare --input -").contains("give a file"));
        assert!(refusal("--compare --transport sockets").contains("--transport"));
        assert!(refusal("--fire 5 --size 7").contains("--size"));
        assert!(refusal("--seed 5").contains("--fire"));
    }
}
