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

    /// Returns the number that stands for the fabric in a handshake.
    #[must_use]
    pub fn to_wire(self) -> u8 {
        match self {
            Fabric::Shm => 1,
            Fabric::Tcp => 2,
            Fabric::Verbs => 3,
        }
    }

    /// Returns the fabric that `number` stands for; `None` for one of a later version.
    #[must_use]
    pub fn from_wire(number: u8) -> Option<Self> {
        let mut all = Self::FASTEST_FIRST.into_iter();
        all.find(|fabric| fabric.to_wire() == number)
    }
}

impl fmt::Display for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
