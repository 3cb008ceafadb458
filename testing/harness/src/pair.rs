//! Two real processes: this one, and a peer that is the same program again.
//!
//! 1. The peer is started as `program --harness-peer TASK`, TASK being JSON. It speaks to its
//!    parent by lines of JSON on its standard output, and writes messages for people to standard
//!    error.
//! 2. Its last line is the [`Tally`] of its checks.
//! 3. Neither outlives the other by much: dropping a [`Pair`] kills the peer, and the kernel kills
//!    it when the thread that started it ends. A parent that polls watches [`Pair::watch`], which
//!    is set when the peer has ended.

#![forbid(unsafe_code)]

use std::{
    env,
    io::{self, BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    os::fd::RawFd,
    process::{ChildStdout, ExitCode, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
};

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use crate::{
    Error,
    check::Tally,
    cores::{self, Cores},
    job::Job,
    limit,
    process::{self, Process},
};

/// The task of a peer process.
#[derive(Debug, Serialize, Deserialize)]
pub enum Task {
    /// The other side of the shared-memory limit.
    RawShm {
        /// The measurement.
        job: Job,
        /// The shared memory, as an inherited descriptor.
        memory: RawFd,
    },
    /// The other side of the TCP limit.
    RawTcp {
        /// The measurement.
        job: Job,
        /// The address at which the measuring process listens.
        address: SocketAddr,
        /// Uses blocking calls if true.
        blocks: bool,
    },
    /// The other side of the limit of TLS.
    #[cfg(feature = "tls")]
    RawTls {
        /// The measurement.
        job: Job,
        /// The address at which the measuring process listens.
        address: SocketAddr,
        /// The certificate that it has.
        certificate: Vec<u8>,
    },
    /// The other side of the verbs limit.
    #[cfg(feature = "verbs")]
    RawVerbs {
        /// The measurement.
        job: Job,
        /// The queue pair to connect with.
        endpoint: crate::queue_pair::Endpoint,
    },
    /// The measuring program's own task, for a subject that is compared to a limit.
    Subject(Value),
}

/// The peer's command line.
#[derive(Serialize, Deserialize)]
struct Start {
    cores: Cores,
    task: Task,
}

/// A running peer process.
pub struct Pair {
    process: Process,
    lines: mpsc::Receiver<String>,
    ended: Arc<AtomicBool>,
}

impl Pair {
    /// Starts the peer, and confines this thread and the peer to both `cores` until each pins
    /// itself to its own. (A peer that began on the core of a parent that already polls might wait
    /// long for a time slice.)
    pub fn start(cores: Cores, task: Task) -> Result<Pair, Error> {
        cores::keep_to(&cores)?;
        let start = Start { cores, task };
        let start = serde_json::to_string(&start).map_err(Error::subject)?;
        let mut again = process::again().map_err(Error::io("finding this program's file"))?;
        again.args([PEER_ARGUMENT, &start]);
        let piped = again.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = Process::start("the peer process", piped);
        let mut process = process.map_err(Error::io("starting a process"))?;
        let output = process.stdout();
        let ended = Arc::new(AtomicBool::new(false));
        let (sender, lines) = mpsc::channel();
        let pair = Pair {
            process,
            lines,
            ended: Arc::clone(&ended),
        };
        thread::Builder::new()
            .name("peer-output".into())
            .spawn(move || read_lines(output, &sender, &ended))
            .map_err(Error::io("starting a thread"))?;
        Ok(pair)
    }

    /// Returns the process id of the peer.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Waits for the peer's next line and parses it as a `T`.
    pub fn receive<T: DeserializeOwned>(&mut self, expected: &'static str) -> Result<T, Error> {
        let Ok(line) = self.lines.recv() else {
            return Err(self.ended_early());
        };
        serde_json::from_str(&line).map_err(|source| Error::PeerSpoke {
            expected,
            line,
            source,
        })
    }

    /// Returns a flag for polling loops that is set when the peer has ended, well or badly. A
    /// thread that sees it also sees the peer's earlier writes.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch {
            pid: Some(self.pid()),
            ended: Arc::clone(&self.ended),
            connection: None,
        }
    }

    /// Waits until the peer has done its task. Returns its checks.
    pub fn finish(mut self) -> Result<Tally, Error> {
        let tally = self.receive("the tally of its checks")?;
        let status = self
            .process
            .wait()
            .map_err(Error::io("waiting for the peer process"))?;
        if status.success() {
            Ok(tally)
        } else {
            Err(self.ended_early())
        }
    }

    /// Returns the error for a peer that did not finish its task.
    #[must_use]
    pub fn ended_early(&mut self) -> Error {
        // The peer's output may close a moment before it exits. If it hangs without output, it must
        // be killed before it can be waited for.
        let status = match self.process.kill() {
            Ok(status) => status.to_string(),
            Err(error) => format!("status unknown: {error}"),
        };
        Error::PeerEnded {
            pid: self.pid(),
            status,
        }
    }
}

/// A view on whether the other process has ended. In the peer, which the kernel kills together with
/// its parent, it never reports an end.
#[derive(Clone, Default)]
pub struct Watch {
    /// The number of the process, if it is one of this host.
    pid: Option<u32>,
    ended: Arc<AtomicBool>,
    /// The connection whose end tells of the other process, of another host.
    #[allow(dead_code, reason = "held for its drop")]
    connection: Option<Arc<Shut>>,
}

/// A connection that ends with this value, though a thread reads from it.
struct Shut(TcpStream);

impl Drop for Shut {
    fn drop(&mut self) {
        // It fails if the connection has ended already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Watch {
    /// Watches a process of another host, which ends this connection when it ends and sends nothing
    /// on it. The connection ends with the watch.
    ///
    /// # Errors
    /// The process lacks a descriptor.
    pub fn over(connection: TcpStream) -> Result<Self, Error> {
        let watched = connection.try_clone();
        let mut watched = watched.map_err(Error::io("watching the connection"))?;
        let ended = Arc::<AtomicBool>::default();
        let noted = ended.clone();
        thread::spawn(move || {
            // Both an error and the end are the end.
            let _ = watched.read(&mut [0]);
            // ENDED, pairs with `has_ended`.
            noted.store(true, Ordering::Release);
        });
        Ok(Self {
            pid: None,
            ended,
            connection: Some(Arc::new(Shut(connection))),
        })
    }

    /// Returns whether the other process has ended, well or badly.
    #[inline]
    #[must_use]
    pub fn has_ended(&self) -> bool {
        // ENDED, pairs with `read_lines`: a thread that sees it sees the peer's last stores.
        self.ended.load(Ordering::Acquire)
    }

    /// Returns the error for a wait that can no longer succeed.
    #[cold]
    #[must_use]
    pub fn ended_early(&self) -> Error {
        let status = "before it had sent everything";
        match self.pid {
            Some(pid) => Error::PeerEnded {
                pid,
                status: status.into(),
            },
            None => Error::subject(format!("the process of the other host ended {status}")),
        }
    }
}

/// Runs this process as the peer if it was started as one.
///
/// Call it first in `main`, and return its result. `subject` does the work of a [`Task::Subject`].
pub fn run_if_peer(subject: impl FnOnce(Cores, Value) -> Result<Tally, Error>) -> Option<ExitCode> {
    let mut arguments = env::args().skip(1);
    if arguments.next()? != PEER_ARGUMENT {
        return None;
    }
    let start = arguments.next().unwrap_or_default();
    Some(match run(&start, subject) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("peer process {}: {error}", std::process::id());
            ExitCode::FAILURE
        }
    })
}

/// Sends the parent a message, as one line of JSON.
pub fn tell(message: &impl Serialize) -> Result<(), Error> {
    let mut line = serde_json::to_string(message).map_err(Error::subject)?;
    line.push('\n');
    let mut output = io::stdout().lock();
    output
        .write_all(line.as_bytes())
        .and_then(|()| output.flush())
        .map_err(Error::io("writing to the parent process"))
}

fn run(
    start: &str,
    subject: impl FnOnce(Cores, Value) -> Result<Tally, Error>,
) -> Result<(), Error> {
    process::stay_with_parent().map_err(Error::io("staying with the parent process"))?;
    let Start { cores, task } = serde_json::from_str(start).map_err(Error::subject)?;
    cores::keep_to(&cores)?;
    let tally = match task {
        Task::RawShm { job, memory } => limit::answer_shm(cores, job, memory)?,
        Task::RawTcp {
            job,
            address,
            blocks,
        } => limit::answer_tcp(cores, job, address, blocks)?,
        #[cfg(feature = "tls")]
        Task::RawTls {
            job,
            address,
            certificate,
        } => limit::answer_tls(cores, job, address, &certificate)?,
        #[cfg(feature = "verbs")]
        Task::RawVerbs { job, endpoint } => limit::answer_verbs(cores, job, &endpoint)?,
        Task::Subject(task) => subject(cores, task)?,
    };
    tell(&tally)
}

fn read_lines(output: ChildStdout, lines: &mpsc::Sender<String>, ended: &AtomicBool) {
    for line in BufReader::new(output).lines().map_while(Result::ok) {
        if lines.send(line).is_err() {
            break;
        }
    }
    // ENDED, pairs with `Watch::has_ended`: the peer's stores to shared memory
    // came before its output was closed, and so before this store.
    ended.store(true, Ordering::Release);
}

const PEER_ARGUMENT: &str = "--harness-peer";
