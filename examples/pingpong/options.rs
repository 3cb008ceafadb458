//! What the command line asks for, and the rows that follow from it.

use std::path::PathBuf;

use clap::{Parser, ValueEnum};
use ibex_harness::{
    Error,
    cores::Cores,
    job::{Job, Mode},
    run_keys::RunKeys,
};

use crate::measurement::{
    channels::CodecName,
    session::{DriverName, FabricName, Setup, usual_iters},
};

/// Measures ibex between two processes, beside the raw limit of this machine.
///
/// Without options it starts its own peer process and shows every fabric of this
/// machine. Each row is measured three times in turn with its limit, which is the
/// same work without a library; the row with the median ratio is shown.
#[derive(Debug, Parser)]
#[command(name = "pingpong")]
pub(crate) struct Options {
    /// Which fabrics to measure. Default: all, or auto with --connect.
    #[arg(long, value_enum)]
    fabric: Option<FabricChoice>,

    /// Payload of a message, at most 67108864 (64 MiB); may be repeated. Default: two
    /// sizes per mode.
    #[arg(long = "size", value_name = "BYTES", value_parser = parse_size)]
    sizes: Vec<usize>,

    /// Round trips or messages to time, at most 1000000000. Default: about half a
    /// second's worth.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..=Job::MAX_ITERS))]
    iters: Option<u64>,

    /// Who runs the engine. Default: caller, or threads with --pairs or --io-threads.
    #[arg(long, value_enum)]
    driver: Option<DriverName>,

    /// Ping-pongs at once between the two processes, each over a session and by threads of its
    /// own; at most 1000. Without a limit beside them.
    #[arg(long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=1000),
        conflicts_with_all = ["listen", "connect"])]
    pairs: u16,

    /// I/O threads of each node, at most 64.
    #[arg(long, value_name = "COUNT", default_value_t = 1,
        value_parser = clap::value_parser!(u16).range(1..=64))]
    io_threads: u16,

    /// How messages become bytes.
    #[arg(long, value_enum, default_value_t = CodecName::Raw)]
    pub(crate) codec: CodecName,

    /// Ping-pong or stream. Default: latency, or both if no size is given.
    #[arg(long, value_enum)]
    mode: Option<ModeChoice>,

    /// The cores of the measuring process and of the answering one. Default: the
    /// first two allowed. With --pairs all threads may run on all allowed cores.
    #[arg(long, value_name = "A,B", value_parser = parse_cores, conflicts_with = "pairs")]
    pub(crate) cores: Option<Cores>,

    /// Serve measurements for other hosts at HOST:PORT, until stopped.
    #[arg(long, value_name = "ADDR", value_parser = |text: &str| parse_address(text, 0),
        conflicts_with_all = ["connect", "sizes", "iters", "mode"])]
    pub(crate) listen: Option<String>,

    /// Measure with a listener on another host, at HOST:PORT (no raw limit then).
    #[arg(long, value_name = "ADDR", value_parser = |text: &str| parse_address(text, 1))]
    pub(crate) connect: Option<String>,

    /// Authenticate both nodes by certificates that are made for the run, and encrypt tcp.
    #[arg(long, conflicts_with_all = ["secret", "listen", "connect"])]
    tls: bool,

    /// The same by the shared secret in FILE: 32 random bytes, also between hosts.
    #[arg(long, value_name = "FILE")]
    secret: Option<PathBuf>,

    /// One JSON object per row on standard output, and nothing else there.
    #[arg(long)]
    pub(crate) json: bool,

    /// Flip one byte on the way, to see the check and the run fail.
    #[arg(long, hide = true)]
    flip_byte: bool,
}

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

/// What to measure, in order.
pub(crate) struct Plan {
    /// Fabrics; `None` leaves the choice to ibex.
    pub(crate) fabrics: Vec<Option<FabricName>>,
    /// Modes and sizes.
    pub(crate) shapes: Vec<(Mode, usize)>,
}

impl Options {
    /// How nodes authenticate each other.
    pub(crate) fn protection(&self) -> Result<Option<RunKeys>, Error> {
        match &self.secret {
            Some(file) => RunKeys::secret(file).map(Some),
            None if self.tls => RunKeys::certificates().map(Some),
            None => Ok(None),
        }
    }

    /// Who runs the engines.
    pub(crate) fn driver(&self) -> DriverName {
        let default = match (self.pairs, self.io_threads) {
            (1, 1) => DriverName::Caller,
            _ => DriverName::Threads,
        };
        self.driver.unwrap_or(default)
    }

    /// Nodes as the options ask for them, with `fabric`.
    pub(crate) fn setup(&self, fabric: Option<FabricName>, protection: Option<RunKeys>) -> Setup {
        Setup {
            protection,
            sessions: self.pairs.into(),
            io_threads: self.io_threads.into(),
            ..Setup::new(self.driver(), fabric)
        }
    }

    /// The rows that the options ask for.
    pub(crate) fn plan(&self) -> Plan {
        let (shm, tcp) = (Some(FabricName::Shm), Some(FabricName::Tcp));
        let verbs = Some(FabricName::Verbs);
        let default = match self.connect {
            Some(_) => FabricChoice::Auto,
            None => FabricChoice::All,
        };
        let fabrics = match self.fabric.unwrap_or(default) {
            FabricChoice::Auto => vec![None],
            FabricChoice::Shm => vec![shm],
            FabricChoice::Tcp => vec![tcp],
            FabricChoice::Verbs => vec![verbs],
            FabricChoice::All => vec![shm, tcp, verbs],
        };
        let modes: &[Mode] = match self.mode {
            Some(ModeChoice::Latency) => &[Mode::Latency],
            Some(ModeChoice::Stream) => &[Mode::Stream],
            None if self.sizes.is_empty() => &[Mode::Latency, Mode::Stream],
            None => &[Mode::Latency],
        };
        let shapes = modes.iter().flat_map(|&mode| {
            let sizes = match (mode, &self.sizes[..]) {
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

    /// The fabric that a listener insists on.
    pub(crate) fn required_fabric(&self) -> Option<FabricName> {
        match self.fabric {
            Some(FabricChoice::Shm) => Some(FabricName::Shm),
            Some(FabricChoice::Tcp) => Some(FabricName::Tcp),
            Some(FabricChoice::Verbs) => Some(FabricName::Verbs),
            _ => None,
        }
    }

    /// Whether nobody has said how long to measure.
    pub(crate) fn leaves_iters_to_us(&self) -> bool {
        self.iters.is_none()
    }

    /// One measurement; its length suits the speed of the fabric.
    pub(crate) fn job(&self, fabric: FabricName, mode: Mode, size: usize) -> Job {
        let iters = self
            .iters
            .unwrap_or_else(|| usual_iters(fabric, mode, size));
        Job {
            mode,
            size,
            iters,
            flip: self.flip_byte,
        }
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

/// The address as it is, if it has a host and a port that is at least `lowest_port`.
fn parse_address(text: &str, lowest_port: u16) -> Result<String, String> {
    let is_host = |host: &str| {
        let in_brackets = host.starts_with('[') && host.ends_with(']');
        !host.is_empty() && (in_brackets || !host.contains(':'))
    };
    let is_port = |port: &str| port.parse().is_ok_and(|port: u16| port >= lowest_port);
    match text.rsplit_once(':') {
        Some((host, port)) if is_host(host) && is_port(port) => Ok(text.to_owned()),
        _ => Err(format!(
            "give HOST:PORT, such as 127.0.0.1:7000 or [::1]:7000, with a port from {lowest_port} \
             to 65535"
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
