//! A peer's memory for one message, as control messages describe it.

use ibex_base::field::{FieldError, FieldReader, WireField};

/// Most rails of a session: further ways beside its wire, over which pieces of offered messages are
/// read.
pub const MOST_RAILS: usize = 3;

/// Memory of the peer's for one message, which this end's device writes to, or reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteMemory {
    address: u64,
    key: u32,
    bytes: u64,
}

impl RemoteMemory {
    /// Describes this many bytes at an address of the peer's, with the key to them; `None` if no
    /// memory can be.
    #[must_use]
    pub fn new(address: u64, key: u32, bytes: u64) -> Option<Self> {
        let is_possible = address > 0 && bytes > 0 && address.checked_add(bytes).is_some();
        is_possible.then_some(Self {
            address,
            key,
            bytes,
        })
    }

    /// Returns the address.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.address
    }

    /// The key that lets a device in.
    #[must_use]
    pub fn key(&self) -> u32 {
        self.key
    }

    /// Returns the length: that of the message.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The address of a byte inside.
    #[must_use]
    pub fn at(&self, offset: u64) -> u64 {
        debug_assert!(offset < self.bytes);
        self.address + offset
    }
}

impl WireField for RemoteMemory {
    fn read(from: &mut FieldReader<'_>, name: &'static str) -> Result<Self, FieldError> {
        let address = u64::read(from, name)?;
        let (key, bytes) = (u32::read(from, name)?, u64::read(from, name)?);
        let (field, value) = ("address of so much memory", address);
        Self::new(address, key, bytes).ok_or(FieldError::UnknownValue { field, value })
    }

    fn write(&self, out: &mut Vec<u8>) {
        self.address.write(out);
        self.key.write(out);
        self.bytes.write(out);
    }
}
