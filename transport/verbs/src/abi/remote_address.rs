//! Places in the memory of a peer, and the keys to them.
#![forbid(unsafe_code)]

/// A place in a peer's memory, and the key to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteAddress {
    /// The address there.
    pub address: u64,
    /// The key that permits this end to read or write there.
    pub rkey: u32,
}

impl RemoteAddress {
    /// Returns the key alone.
    #[must_use]
    pub fn key(self) -> RemoteKey {
        RemoteKey(self.rkey)
    }

    /// Returns the place this many bytes behind. The addresses of a peer are numbers here, so they
    /// wrap.
    #[must_use]
    pub fn plus(self, bytes: u64) -> Self {
        Self {
            address: self.address.wrapping_add(bytes),
            ..self
        }
    }
}

/// The key of a memory region or of a memory window, by which a peer reaches it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RemoteKey(pub(crate) u32);

impl RemoteKey {
    /// Takes the number that a peer has sent.
    #[must_use]
    pub fn from_raw(raw: u32) -> Self {
        Self(raw)
    }

    /// Returns the number, to be sent to a peer.
    #[must_use]
    pub fn to_raw(self) -> u32 {
        self.0
    }
}
