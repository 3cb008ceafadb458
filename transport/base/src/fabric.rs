//! The fabrics by name.

use std::fmt;

/// A fabric, which carries a session's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "lowercase"))]
pub enum Fabric {
    /// Shared memory between two processes of one host.
    Shm,
    /// The session's connection itself: TCP, or vsock where the peer's address is one of vsock.
    Tcp,
    /// RDMA through libibverbs.
    Verbs,
}

impl Fabric {
    /// All fabrics, in the order in which the automatic choice tries them: fastest first.
    pub const FASTEST_FIRST: [Fabric; 3] = [Fabric::Shm, Fabric::Verbs, Fabric::Tcp];

    /// Returns the fabric's name, which is also that of its cargo feature.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Fabric::Shm => "shm",
            Fabric::Tcp => "tcp",
            Fabric::Verbs => "verbs",
        }
    }
}

crate::wire_numbers! { Fabric { Shm = 1, Tcp = 2, Verbs = 3 } }

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
