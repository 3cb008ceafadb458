//! The command line of `ibex perf`, and the rows that follow from it.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use ibex_harness::{
    Error,
    cores::Cores,
    job::{Job, Mode},
    run_keys::RunKeys,
};
use ibex_measurement::{
    channels::CodecName,
    session::{DriverName, FabricName, Setup, usual_iters},
};

use crate::address;

/// Measure latency, rate and bandwidth of ibex, beside raw limits, plain TCP and TLS
///
/// Without HOST and --listen it starts its own peer process and measures every fabric of this
/// machine; with HOST, every fabric that both ends have. Each row is measured three times in turn
/// with its limit, which is the same work without a library. The row with the median ratio is
/// shown. Both ends check every byte.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  every row was measured, and every byte arrived undamaged\n  \
    1  --listen could not listen, a file is unusable, there are no two cores, or the output could\n     \
       not be written\n  \
    2  the command line is wrong\n  \
    3  a row could not be measured, or a message was damaged")]
pub(crate) struct PerfOptions {
    /// HOST or HOST:PORT where `ibex perf --listen` runs. Default: a process of this machine
    #[arg(value_name = "HOST", value_parser = |text: &str| address::to_node_at(text, Some(PORT)),
        conflicts_with_all = ["listen", "cores", "tls"])]
    pub(crate) to: Option<String>,

    /// Serve measurements for other hosts until the process is ended. Default: 0.0.0.0:7700
    #[arg(long, value_name = "ADDRESS[:PORT]", num_args = 0..=1, default_missing_value = EVERYWHERE,
        value_parser = |text: &str| address::to_listen_at(text, PORT),
        conflicts_with_all = ["fabric", "sizes", "sweep", "iters", "seconds", "rate", "mode",
            "pairs", "tls", "save", "json"])]
    pub(crate) listen: Option<String>,

    /// Fabric to measure. Default: all
    #[arg(long, value_enum)]
    fabric: Option<FabricChoice>,

    /// Ping-pong or stream. Default: latency, or both if no size is given
    #[arg(long, value_enum)]
    mode: Option<ModeChoice>,

    /// Payload of a message, at most 67108864 (64 MiB); may be repeated. Default: two sizes per
    /// mode
    #[arg(long = "size", value_name = "BYTES", value_parser = parse_size)]
    sizes: Vec<usize>,

    /// Sizes from 8 B to 1 MiB, each eight times the last
    #[arg(long, conflicts_with = "sizes")]
    sweep: bool,

    /// Time of a measurement, about. Default: half a second, less if messages are fast
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    pub(crate) seconds: Option<f64>,

    /// Round trips or messages to time, at most 1000000000, in place of a time
    #[arg(long, value_name = "COUNT", conflicts_with = "seconds",
        value_parser = clap::value_parser!(u64).range(1..=Job::MAX_ITERS))]
    pub(crate) iters: Option<u64>,

    /// Begin this many round trips per second at fixed times. A late one counts from when it was
    /// due
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) rate: Option<u64>,

    /// With --seconds: seconds between the lines that a measurement prints meanwhile on standard
    /// error; 0: none
    #[arg(long, value_name = "SECONDS", default_value_t = 1)]
    interval: u64,

    /// Sessions at once, each with a thread at either end; at most 1000. They are shown without a
    /// limit
    #[arg(long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000))]
    pairs: u16,

    /// I/O threads of each node, at most 64
    #[arg(long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    io_threads: u16,

    /// Driver of the engines. Default: caller, or threads with --pairs or --io-threads
    #[arg(long, value_enum)]
    driver: Option<DriverName>,

    /// Codec of the messages
    #[arg(long, value_enum, default_value_t = CodecName::Raw)]
    pub(crate) codec: CodecName,

    /// Cores of the measuring and the answering process. Default: the first two allowed. With
    /// --pairs all threads may run on all allowed cores
    #[arg(long, value_name = "A,B", value_parser = parse_cores, conflicts_with = "pairs")]
    pub(crate) cores: Option<Cores>,

    /// Authenticate both nodes by certificates that are made for the run, and encrypt tcp
    #[arg(long, conflicts_with = "secret")]
    tls: bool,

    /// Authenticate both nodes by the shared secret in FILE (`ibex keygen secret`), and encrypt
    /// tcp; also between hosts
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,

    /// Also write to FOLDER: the rows as JSON, each latency row as HDR percentiles (.hgrm), and
    /// plots as SVG
    #[arg(long, value_name = "FOLDER")]
    pub(crate) save: Option<PathBuf>,

    /// Print one JSON object per row on standard output as it is measured, and nothing else there
    #[arg(long)]
    pub(crate) json: bool,

    /// Flip one byte on the way, to see the check and the run fail
    #[arg(long, hide = true)]
    flip_byte: bool,
}

/// The port of `--listen`.
const PORT: u16 = 7700;
const EVERYWHERE: &str = "0.0.0.0:7700";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum FabricChoice {
    Auto,
    Shm,
    Tcp,
    Verbs,
    All,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeChoice {
    Latency,
    Stream,
}

/// The measurements of a run, in order.
pub(crate) struct Plan {
    /// Fabrics; `None` leaves the choice to ibex.
    pub(crate) fabrics: Vec<Option<FabricName>>,
    /// Modes and sizes.
    pub(crate) shapes: Vec<(Mode, usize)>,
}

impl PerfOptions {
    /// Returns the keys by which nodes authenticate each other, if they do.
    pub(crate) fn protection(&self) -> Result<Option<RunKeys>, Error> {
        match &self.secret {
            Some(file) => RunKeys::secret(file).map(Some),
            None if self.tls => RunKeys::certificates().map(Some),
            None => Ok(None),
        }
    }

    /// Returns the time between lines of a measurement; `None` for no lines.
    pub(crate) fn interval(&self) -> Option<Duration> {
        let seconds = self.seconds.and(Some(self.interval));
        seconds
            .filter(|&seconds| seconds > 0)
            .map(Duration::from_secs)
    }

    /// Returns the number of sessions at once.
    pub(crate) fn pairs(&self) -> usize {
        self.pairs.into()
    }

    /// Returns the driver of the engines.
    pub(crate) fn driver(&self) -> DriverName {
        let default = match (self.pairs, self.io_threads) {
            (1, 1) => DriverName::Caller,
            _ => DriverName::Threads,
        };
        self.driver.unwrap_or(default)
    }

    /// Returns the settings of nodes over `fabric`.
    pub(crate) fn setup(&self, fabric: Option<FabricName>, protection: Option<RunKeys>) -> Setup {
        Setup {
            protection,
            sessions: self.pairs.into(),
            io_threads: self.io_threads.into(),
            ..Setup::new(self.driver(), fabric)
        }
    }

    /// Returns the rows that the options ask for.
    pub(crate) fn plan(&self) -> Plan {
        let (shm, tcp) = (Some(FabricName::Shm), Some(FabricName::Tcp));
        let verbs = Some(FabricName::Verbs);
        let fabrics = match self.fabric.unwrap_or(FabricChoice::All) {
            FabricChoice::Auto => vec![None],
            FabricChoice::Shm => vec![shm],
            FabricChoice::Tcp => vec![tcp],
            FabricChoice::Verbs => vec![verbs],
            FabricChoice::All => vec![shm, tcp, verbs],
        };
        let modes: &[Mode] = match self.mode {
            _ if self.rate.is_some() => &[Mode::Latency],
            Some(ModeChoice::Latency) => &[Mode::Latency],
            Some(ModeChoice::Stream) => &[Mode::Stream],
            None if self.sizes.is_empty() => &[Mode::Latency, Mode::Stream],
            None => &[Mode::Latency],
        };
        let shapes = modes.iter().flat_map(|&mode| {
            let sizes = match (mode, &self.sizes[..]) {
                (_, []) if self.sweep => &SWEEP[..],
                (Mode::Latency, []) => &[64, 64 << 10],
                (Mode::Stream, []) => &[64, 1 << 20],
                (_, sizes) => sizes,
            };
            sizes.iter().map(move |&size| (mode, size))
        });
        Plan {
            fabrics,
            shapes: shapes.collect(),
        }
    }

    /// Returns a job whose length suits the speed of the fabric.
    pub(crate) fn job(&self, fabric: FabricName, mode: Mode, size: usize) -> Job {
        let iters = self
            .iters
            .unwrap_or_else(|| usual_iters(fabric, mode, size));
        Job {
            mode,
            size,
            iters,
            flip: self.flip_byte,
            rate: self.rate,
        }
    }
}

const SWEEP: [usize; 7] = [8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 1 << 20];

fn parse_seconds(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.01..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("it may be 0.01 to 3600".to_owned()),
    }
}

fn parse_size(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size) if size <= Job::MAX_SIZE => Ok(size),
        _ => Err(format!(
            "a message may have 0 to {} bytes, in digits",
            Job::MAX_SIZE
        )),
    }
}

fn parse_cores(text: &str) -> Result<Cores, String> {
    let cores: Option<Vec<usize>> = text
        .split(',')
        .map(|core| core.trim().parse().ok())
        .collect();
    match cores.as_deref() {
        Some(&[here, there]) => Ok([here, there]),
        _ => Err(format!("{text:?} is not two core numbers, such as 0,1")),
    }
}
