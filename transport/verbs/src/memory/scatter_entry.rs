//! Pieces of memory of which work requests are made.

use std::marker::PhantomData;
use std::slice;

use crate::abi::Sge;

/// A piece of memory of a work request.
#[derive(Clone, Copy, Debug)]
pub struct ScatterEntry<'memory> {
    pub(crate) sge: Sge,
    pub(crate) registered: bool,
    memory: PhantomData<&'memory [u8]>,
}

impl<'memory> ScatterEntry<'memory> {
    /// A piece of registered memory, which exists while `'memory` lasts.
    #[inline]
    pub(super) fn registered(sge: Sge) -> Self {
        Self {
            sge,
            registered: true,
            memory: PhantomData,
        }
    }

    /// An entry without bytes, with which arrays of entries are made before they are filled.
    pub const EMPTY: Self = Self {
        sge: Sge {
            addr: 0,
            length: 0,
            lkey: 0,
        },
        registered: false,
        memory: PhantomData,
    };

    /// Memory that is not registered, for inline sends only: the bytes are copied while
    /// they are posted.
    ///
    /// # Panics
    /// If it is longer than 4 GiB.
    #[inline]
    #[must_use]
    pub fn unregistered(bytes: &'memory [u8]) -> Self {
        Self {
            sge: Sge {
                addr: bytes.as_ptr().addr() as u64,
                length: u32::try_from(bytes.len()).expect("a piece below 4 GiB"),
                lkey: 0,
            },
            registered: false,
            memory: PhantomData,
        }
    }

    /// Returns the piece's length.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.sge.length
    }
}

/// A piece of memory of a work request that the device writes
/// ([`MemoryRegion::target`](crate::MemoryRegion::target)).
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub struct TargetEntry<'memory>(pub(crate) ScatterEntry<'memory>);

impl<'memory> TargetEntry<'memory> {
    pub(crate) fn as_entries<'list>(list: &'list [Self]) -> &'list [ScatterEntry<'memory>] {
        // SAFETY: the same pieces, since the type is transparent.
        unsafe { slice::from_raw_parts(list.as_ptr().cast(), list.len()) }
    }

    /// Returns the piece's length.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.0.bytes()
    }
}
