//! A region that the program has provided for messages to arrive in.
//!
//! The bytes are written through their address, by an engine or by a device on its behalf, and no
//! reference to them exists until the region is the program's again.

use std::{fmt, mem, ptr::NonNull, slice, sync::Arc};

use super::{MappedBytes, Region, bytes::RegionBytes};
use crate::memory::{Access, MemoryError, MemoryUse};

/// A region without slices, in which a message may arrive.
pub struct ProvidedRegion {
    region: Region,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: the bytes at `base` are the region's, which belongs to this value alone and is Send.
unsafe impl Send for ProvidedRegion {}

/// The reason why a region cannot be provided.
#[derive(Debug, thiserror::Error)]
pub enum RegionUnfit {
    /// Slices of the region exist, and promise that its bytes do not change.
    #[error(
        "slices of the region exist; wait until none does (`Region::wait_free`), and provide it then"
    )]
    HasSlices,
    /// The region is a mapped file or memory of an owner, and can only be read.
    #[error(
        "the region is a mapped file or memory of an owner, which nothing can be written to; provide a \
         `Vec` or pages of its own (`Region::zeroed`)"
    )]
    IsReadOnly,
    /// The end has as many regions as it takes.
    #[error(
        "the receiver has {limit} regions already, as many as it takes; provide the next one when a \
         message has arrived in one of them"
    )]
    TooMany {
        /// The number of regions that an end takes.
        limit: usize,
    },
    /// The kernel refuses memory for the region's pages.
    #[error(transparent)]
    Memory(#[from] MemoryError),
}

impl ProvidedRegion {
    /// Takes over a region. Its pages are there afterwards, if they are its own, so that no engine waits
    /// for them.
    ///
    /// # Errors
    ///
    /// The region, with the reason why no message may arrive in it.
    pub fn new(mut region: Region) -> Result<Self, (Region, RegionUnfit)> {
        let bytes = match Arc::get_mut(&mut region.bytes) {
            None => Err(RegionUnfit::HasSlices),
            Some(RegionBytes::Heap(bytes)) => {
                Ok((NonNull::from(bytes.as_mut_slice()), bytes.len()))
            }
            Some(RegionBytes::Mapped(mapped)) if mapped.is_own => {
                let writable = mapped.make_writable();
                let (memory, length) = (&mapped.memory, mapped.length);
                let (what, access) = (MemoryUse::LargeMessage, Access::ReadWrite);
                let populated = writable.and_then(|()| memory.populate(what, length, access));
                let place = NonNull::slice_from_raw_parts(memory.base(), length);
                populated
                    .map_err(RegionUnfit::Memory)
                    .map(|()| (place, length))
            }
            Some(RegionBytes::Mapped(_) | RegionBytes::Owned(_)) => Err(RegionUnfit::IsReadOnly),
        };
        match bytes {
            Ok((place, length)) => {
                // A future that was leaked may have left a waker, which is foreign code. It is dropped
                // here, so that an engine may drop the region.
                region.waiters = Arc::default();
                Ok(Self {
                    region,
                    base: place.cast(),
                    length,
                })
            }
            Err(unfit) => Err((region, unfit)),
        }
    }

    /// Returns the address of the first byte. Whoever writes there has no other reference to the
    /// bytes, and ends before the region is [the program's](Self::into_region).
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Copies the bytes to other memory, because a device may write here for ever. The region's memory is
    /// leaked.
    #[must_use]
    pub fn copied(self) -> Self {
        // SAFETY: these are the region's bytes, and whoever writes them still does so by a device, which
        // the copy may see or not.
        let bytes = unsafe { slice::from_raw_parts(self.base.as_ptr(), self.length) }.to_vec();
        mem::forget(self);
        match Self::new(bytes.into()) {
            Ok(copy) => copy,
            Err(_) => unreachable!("memory of the heap without slices is fit"),
        }
    }

    /// Returns the number of bytes.
    #[must_use]
    pub fn length(&self) -> usize {
        self.length
    }

    /// Returns the memory itself, which a fabric may know; `None` if it is on the heap, where other
    /// objects are as well.
    #[must_use]
    pub fn mapped(&self) -> Option<&MappedBytes> {
        match &*self.region.bytes {
            RegionBytes::Heap(_) | RegionBytes::Owned(_) => None,
            RegionBytes::Mapped(mapped) => Some(mapped),
        }
    }

    /// Returns the region, to which nobody writes any more.
    #[must_use]
    pub fn into_region(self) -> Region {
        self.region
    }
}

impl fmt::Debug for ProvidedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut region = f.debug_struct("ProvidedRegion");
        region.field("bytes", &self.length).finish()
    }
}
