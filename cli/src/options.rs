//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::address;
use crate::perf::PerfOptions;

/// Shows what this machine offers to programs that use ibex, and what stands in their way.
#[derive(Debug, Parser)]
#[command(
    name = "ibex",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub(crate) struct Options {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Info(InfoOptions),
    Doctor(DoctorOptions),
    Ping(PingOptions),
    Perf(PerfOptions),
    Watch(WatchOptions),
    Top(TopOptions),
    #[command(subcommand)]
    Config(Config),
    #[command(subcommand)]
    Keygen(Keygen),
    /// Print the completions of a shell
    #[command(after_help = PLAIN_CODES)]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page (view it by `ibex man | man -l -`), or write one for each subcommand
    #[command(after_help = PLAIN_CODES)]
    Man {
        /// Folder for the pages of the command and of each subcommand
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
}

/// Show fabrics, the choice among them and why, RDMA devices, and the device on a route
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  shown\n  \
    1  a name could not be resolved, no route leads there, there is no such network interface,\n     \
       or the output could not be written\n  \
    2  the command line is wrong\n  \
    3  a variable of the environment keeps a node from being made\n  \
    4  --shell, and no RDMA device serves the route")]
pub(crate) struct InfoOptions {
    /// Host to reach: also show the route to it, and the device, port and GID on it. A port behind it
    /// does not matter
    #[arg(long, value_name = "HOST", conflicts_with = "netdev", value_parser = address::host)]
    pub(crate) to: Option<String>,

    /// Network interface: also show the device, port and GID that belong to it
    #[arg(long, value_name = "IF")]
    pub(crate) netdev: Option<String>,

    /// Print only the choice, as `device_name= ib_port= gid_index= mtu_index=` for a shell script
    #[arg(long, conflicts_with = "json")]
    pub(crate) shell: bool,

    #[command(flatten)]
    pub(crate) common: Common,
}

/// Name what stops or slows RDMA, shared memory and TCP, as this process sees it, and what mends it
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  nothing stops a fabric; there may be warnings\n  \
    1  the output or the report could not be written\n  \
    2  the command line is wrong\n  \
    3  something stops a fabric, a variable of the environment keeps a node from being made, or\n     \
       HOST:PORT gives no session")]
pub(crate) struct DoctorOptions {
    /// A node that listens: also try to reach it and to begin a session
    #[arg(long, value_name = "HOST:PORT", value_parser = address::to_node)]
    pub(crate) to: Option<String>,

    #[command(flatten)]
    pub(crate) identity: Identity,

    /// Also write findings and devices to a file, without names of hosts and users, and without
    /// addresses
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) common: Common,
}

/// Send a checked payload to `ibex ping --listen` and back, over each fabric that both ends have
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  every ping came back over every fabric that both ends have\n  \
    1  --listen could not listen, a file of the identity is unusable, or the output could not be\n     \
       written\n  \
    2  the command line is wrong\n  \
    3  a ping was lost or damaged, or there was no session over any fabric")]
pub(crate) struct PingOptions {
    /// Where `ibex ping --listen` answers
    #[arg(value_name = "HOST:PORT", conflicts_with = "listen", value_parser = address::to_node)]
    pub(crate) to: Option<String>,

    /// Answer pings at this address, until the process is ended
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = address::to_listen)]
    pub(crate) listen: Option<String>,

    /// With --listen and without --secret: answer any who reach an address that other hosts can
    /// reach
    #[arg(long, requires = "listen")]
    pub(crate) insecure: bool,

    /// Pings over each fabric
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub(crate) count: u64,

    /// Milliseconds from one ping to the next
    #[arg(long, value_name = "MS", default_value_t = 1000)]
    pub(crate) interval_ms: u64,

    /// Bytes of a payload, up to 16,000,000
    #[arg(long, value_name = "BYTES", default_value_t = 64, value_parser = sizes)]
    pub(crate) size_bytes: usize,

    #[command(flatten)]
    pub(crate) identity: Identity,

    /// Print JSON, when all is done
    #[arg(long, conflicts_with = "listen")]
    pub(crate) json: bool,
}

/// Reads the size of a payload. The default limit on messages is 16 MiB, with some bytes of header.
fn sizes(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(size @ 0..=16_000_000) => Ok(size),
        _ => Err("it may be 0 to 16000000".to_owned()),
    }
}

/// What proves this command to a node with security.
#[derive(Args, Debug)]
pub(crate) struct Identity {
    /// For a node with a shared secret: the file of it
    #[arg(
        long,
        value_name = "FILE",
        requires = "to",
        conflicts_with = "certificate"
    )]
    pub(crate) secret: Option<PathBuf>,

    /// For a node with certificates: this end's certificate
    #[arg(long, value_name = "FILE", requires_all = ["key", "authorities"])]
    pub(crate) certificate: Option<PathBuf>,

    /// The private key of that certificate
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) key: Option<PathBuf>,

    /// The certificates of the authorities that issue nodes' certificates
    #[arg(long, value_name = "FILE", requires = "certificate")]
    pub(crate) authorities: Option<PathBuf>,
}

/// Print events of RDMA devices, and of a session with a node, as they come
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  the session is over and no device is left, or --count events were printed\n  \
    1  a file of the identity is unusable, or the output could not be written\n  \
    2  the command line is wrong\n  \
    4  there is nothing to watch: no RDMA device, and no session")]
pub(crate) struct WatchOptions {
    /// A node that listens: also begin a session with it and watch that
    #[arg(long, value_name = "HOST:PORT", value_parser = address::to_node)]
    pub(crate) to: Option<String>,

    #[command(flatten)]
    pub(crate) identity: Identity,

    /// End after this many events
    #[arg(long)]
    pub(crate) count: Option<u64>,

    /// Print each event as a JSON object on a line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Show what a running node does and why it is slow: sessions, rates, waits, warnings in words
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  shown, or several nodes were listed\n  \
    1  the node ended or does not answer, the folder of sockets is another user's, or the output\n     \
       could not be written\n  \
    2  the command line is wrong\n  \
    4  no such node: none was built with `Node::builder().inspect()`, of ibex's feature\n     \
       `inspect`, or it has ended")]
pub(crate) struct TopOptions {
    /// The process of the node, or the path of its socket; without it, the only node of this user
    /// that can be inspected, or a list of them
    #[arg(value_name = "PID | SOCKET")]
    pub(crate) node: Option<String>,

    /// Print one table, and end, as is done where the output is no terminal
    #[arg(long)]
    pub(crate) once: bool,

    /// Print what the node answers, a JSON object on a line, and end
    #[arg(long)]
    pub(crate) json: bool,

    /// Milliseconds from one look to the next
    #[arg(long, value_name = "MS", default_value_t = 1000,
          value_parser = clap::value_parser!(u64).range(100..=3_600_000))]
    pub(crate) interval_ms: u64,
}

/// Explain settings
#[derive(Debug, Subcommand)]
pub(crate) enum Config {
    /// Show every setting of a node: its value, where that comes from, its unit, and what it does
    Explain(ExplainOptions),
}

/// What `config explain` shows.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes:\n  \
    0  shown\n  \
    1  the output could not be written\n  \
    2  the command line is wrong, or no setting has such a name\n  \
    3  a variable of the environment keeps a node from being made")]
pub(crate) struct ExplainOptions {
    /// Show only settings whose names have all these words, such as `rdma` or `timeout`
    #[arg(value_name = "WORD")]
    pub(crate) words: Vec<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Make a secret or certificates with which nodes authenticate each other
#[derive(Debug, Subcommand)]
pub(crate) enum Keygen {
    /// Make a shared secret: a file of 32 random bytes, for `SharedSecret::from_file`
    #[command(after_help = KEYGEN_CODES)]
    Secret {
        /// File to make
        #[arg(default_value = "cluster.key")]
        file: PathBuf,
        #[command(flatten)]
        output: KeygenOutput,
    },
    /// Make a certificate authority for tests: `ca.pem` and `ca.key`
    #[command(after_help = KEYGEN_CODES)]
    Ca {
        #[command(flatten)]
        folder: Folder,
        #[command(flatten)]
        output: KeygenOutput,
    },
    /// Make a node's certificate and key, signed by that authority: `NAME.pem` and `NAME.key`
    #[command(after_help = KEYGEN_CODES)]
    Node {
        /// The node's name: the DNS name in the certificate, by which `authorize` knows it
        name: String,
        #[command(flatten)]
        folder: Folder,
        #[command(flatten)]
        output: KeygenOutput,
    },
}

/// Where certificates are, and for how long they last.
#[derive(Args, Debug)]
pub(crate) struct Folder {
    /// Folder of the authority
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    pub(crate) folder: PathBuf,

    /// Days until the certificate expires
    #[arg(long, default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=36_500))]
    pub(crate) days: u32,
}

/// How `keygen` prints and writes.
#[derive(Args, Debug)]
pub(crate) struct KeygenOutput {
    /// Replace files that exist
    #[arg(long)]
    pub(crate) force: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Options of subcommands that read the machine.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Folder with another machine's /sys, /proc, /dev, /etc and /usr
    #[arg(long, hide = true, default_value = "/", value_name = "FOLDER")]
    pub(crate) root: PathBuf,
}

const PLAIN_CODES: &str = "Exit codes:\n  \
    0  printed or written\n  \
    1  the output could not be written\n  \
    2  the command line is wrong";

const KEYGEN_CODES: &str = "Exit codes:\n  \
    0  the files are there, readable for their owner alone\n  \
    1  a file exists, or cannot be read or written\n  \
    2  the command line is wrong";
