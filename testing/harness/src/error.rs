//! Errors of a measurement, with what the reader can do about them.

use std::io;

use crate::job::Job;

/// The reason why a measurement could not be made.
///
/// A damaged payload is not an error of this kind: the [`Tally`](crate::check::Tally) counts it,
/// and the measurement runs to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused an operation.
    #[error("{what}: {source}")]
    Io {
        /// The operation.
        what: &'static str,
        /// The system's error.
        r#source: io::Error,
    },

    /// The second process of the pair ended before its work was done.
    #[error("the peer process (pid {pid}) ended early, {status}; its own message is on stderr")]
    PeerEnded {
        /// The peer's process id.
        pid: u32,
        /// The peer's exit status, as far as known.
        status: String,
    },

    /// The peer process wrote an unexpected line.
    #[error("the peer process wrote {line:?}, which is not {expected}: {source}")]
    PeerSpoke {
        /// The expected line.
        expected: &'static str,
        /// The line that came.
        line: String,
        /// The parser's error.
        r#source: serde_json::Error,
    },

    /// A requested CPU is not available to this process.
    #[error(
        "CPU {core} was asked for, but this process may run only on {allowed:?}; name two of these"
    )]
    Core {
        /// The requested CPU.
        core: usize,
        /// The CPUs of this process's affinity mask.
        allowed: Vec<usize>,
    },

    /// Both ends poll, so they need a CPU each.
    #[error(
        "a pair of polling processes needs two CPUs, and this process may run only on {allowed:?}"
    )]
    OneCore {
        /// The CPUs of this process's affinity mask.
        allowed: Vec<usize>,
    },

    /// The measurement would need too much memory, or never end.
    #[error(
        "{iters} messages of {size} bytes cannot be measured: a message may have at most \
         {} bytes, and there may be 1 to {} of them",
        Job::MAX_SIZE,
        Job::MAX_ITERS
    )]
    Job {
        /// Payload of a message, in bytes.
        size: usize,
        /// Messages or round trips.
        iters: u64,
    },

    /// No RDMA device can be used.
    #[error("RDMA cannot be used: {0}")]
    NoRdma(String),

    /// The messages did not pass through the device under measurement.
    #[error(
        "{device} sent nothing during the measurement (its rdma_sends did not rise), so the \
         messages went another way"
    )]
    NotCarried {
        /// The RDMA device.
        device: String,
    },

    /// The code under measurement failed; the text is its own.
    #[error(transparent)]
    Subject(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps a failure of the code under measurement.
    pub fn subject(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Subject(error.into())
    }

    /// Wraps an error of the operating system with the operation that it refused.
    pub fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Io {
            what,
            source: source.into(),
        }
    }
}
