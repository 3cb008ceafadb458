//! The things that the tests of the integrations share: two nodes of one process, joined over each
//! fabric that there is, trials over all of them, and stand-ins of other libraries.

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
