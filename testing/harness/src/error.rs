//! What can go wrong while measuring, told so that the reader can act on it.

use std::io;

use crate::job::Job;

/// Why a measurement could not be made.
///
/// A payload that arrived damaged is not an error of this kind: it is counted
/// by the [`Tally`](crate::check::Tally), and the measurement runs to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The refusal.
        r#source: io::Error,
    },

    /// The second process of the pair ended before its work was done.
    #[error("the peer process (pid {pid}) ended early, {status}; its own message is on stderr")]
    PeerEnded {
        /// The process id it had.
        pid: u32,
        /// How it ended, as far as known.
        status: String,
    },

    /// The peer process wrote something that is not what was expected from it.
    #[error("the peer process wrote {line:?}, which is not {expected}: {source}")]
    PeerSpoke {
        /// What should have come.
        expected: &'static str,
        /// What came.
        line: String,
        /// Why it was not understood.
        r#source: serde_json::Error,
    },

    /// A CPU that was asked for is not ours to use.
    #[error(
        "CPU {core} was asked for, but this process may run only on {allowed:?}; name two of these"
    )]
    Core {
        /// The CPU that was asked for.
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

    /// A measurement that would need too much memory, or never end.
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

    /// There is no device to measure on.
    #[error("RDMA cannot be used: {0}")]
    NoRdma(String),

    /// What was to be measured went another way.
    #[error(
        "{device} sent nothing during the measurement (its rdma_sends did not rise), so the \
         messages went another way"
    )]
    NotCarried {
        /// The RDMA device.
        device: String,
    },

    /// A failure of the code under measurement, in its own words.
    #[error(transparent)]
    Subject(Box<dyn std::error::Error + Send + Sync>),
}

impl Error {
    /// Wraps a failure of the code under measurement.
    pub fn subject(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Subject(error.into())
    }

    /// Says what was being done when the operating system refused.
    pub fn io<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Io {
            what,
            source: source.into(),
        }
    }
}
