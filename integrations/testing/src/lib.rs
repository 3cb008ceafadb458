//! Common parts of the integrations' tests: two nodes of one process, joined over each available
//! fabric, trials over all fabrics, and stand-ins for other libraries.
#![forbid(unsafe_code)]

#[cfg(feature = "tonic")]
mod as_bytes;
mod meeting;
#[cfg(feature = "openraft")]
mod raft_log;
mod trials;

#[cfg(feature = "tonic")]
pub use as_bytes::AsBytes;
#[cfg(feature = "fake-device")]
pub use meeting::MemoryDevice;
pub use meeting::{Cell, DRIVERS, DriverName, Meeting, Over, fabrics};
#[cfg(feature = "openraft")]
pub use raft_log::RaftLog;
pub use trials::trials;
