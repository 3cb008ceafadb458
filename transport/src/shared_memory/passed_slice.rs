//! A slice of the program's region that a peer reads where it lies.
#![forbid(unsafe_code)]

use std::{mem, sync::Arc};

use ibex_base::fork;
use ibex_ring::memory::{RegionFile, RegionSlice, keep_to_itself};

/// A slice of a region that the peer maps. Dropping it before the peer has released the message copies
/// the region, so an engine drops it behind its turn.
#[derive(Debug)]
pub(crate) struct PassedSlice {
    /// Present until it is dropped.
    slice: Option<RegionSlice>,
    file: Arc<RegionFile>,
    is_released: bool,
}

impl PassedSlice {
    /// Makes a slice of a region whose pages are those of `file`.
    pub(crate) fn new(slice: RegionSlice, file: Arc<RegionFile>) -> Self {
        Self {
            slice: Some(slice),
            file,
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
        if self.is_released || fork::is_child() {
            return;
        }
        let Some(slice) = self.slice.take() else {
            return;
        };
        if let Err(error) = keep_to_itself(&slice, &self.file) {
            tracing::warn!(
                %error,
                "a region stays busy for ever: its peer may still read a message in it, and there is \
                 no memory to move it to"
            );
            mem::forget(slice);
        }
    }
}
