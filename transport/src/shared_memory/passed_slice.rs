//! A slice of the program's region that a peer reads where it lies.
#![forbid(unsafe_code)]

use std::sync::Arc;

use ibex_base::fork;
use ibex_ring::memory::{RegionFile, RegionSlice, leave_to_peers};

/// A slice of a region that the peer maps. If it is dropped before the peer has released the message, the
/// region's pages are left to the peer.
#[derive(Debug)]
pub(crate) struct PassedSlice {
    /// Dropped before the slice, whose drop tells the program that the region is free.
    file: Arc<RegionFile>,
    slice: RegionSlice,
    is_released: bool,
}

impl PassedSlice {
    /// Makes a slice of a region whose pages are those of `file`.
    pub(crate) fn new(slice: RegionSlice, file: Arc<RegionFile>) -> Self {
        Self {
            file,
            slice,
            is_released: false,
        }
    }

    /// Returns the file that the peer maps.
    pub(crate) fn file(&self) -> &Arc<RegionFile> {
        &self.file
    }

    /// Notes that the peer has released the message.
    pub(crate) fn note_released(&mut self) {
        self.is_released = true;
    }
}

impl Drop for PassedSlice {
    fn drop(&mut self) {
        // In a forked child, the lock of the pages may be locked for ever.
        if !self.is_released && !fork::is_child() {
            leave_to_peers(&self.slice, &self.file);
        }
    }
}
