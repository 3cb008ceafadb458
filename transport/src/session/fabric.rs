//! The fabrics by name.
#![forbid(unsafe_code)]

use std::fmt;

/// A fabric, which carries a session's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fabric {
    /// Memory that both processes map.
    Shm,
    /// The session's connection.
    Tcp,
    /// A queue pair of an RDMA device.
    Verbs,
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Fabric::Shm => "shm",
            Fabric::Tcp => "tcp",
            Fabric::Verbs => "verbs",
        })
    }
}
