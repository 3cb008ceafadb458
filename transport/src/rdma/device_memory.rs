//! Memory from `ibex_ring` that can be registered with a device.

use std::{ptr::NonNull, sync::Arc};

use ibex_ring::memory::{BufferSlab, Mapping, MirroredMapping};

use ibex_verbs::DeviceMemory;

/// A mapping.
#[derive(Debug)]
pub(crate) struct DeviceMapping(pub(crate) Mapping);

/// The first of the two windows of a ring. The device needs no second one, since a record over
/// the seam is two scatter entries.
#[derive(Debug)]
pub(super) struct DeviceRing(pub(super) Arc<MirroredMapping>);

/// All buffers of a slab.
#[derive(Debug)]
pub(super) struct DeviceSlab(pub(super) Arc<BufferSlab>);

// SAFETY: only its drop unmaps a mapping, which hands out nothing but addresses.
unsafe impl DeviceMemory for DeviceMapping {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}

// SAFETY: as for `DeviceMapping`; the value behind the `Arc` does not move and lives as long as
// this one.
unsafe impl DeviceMemory for DeviceRing {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn bytes(&self) -> usize {
        self.0.capacity()
    }
}

// SAFETY: a slab's memory is a mapping that lives as long as the slab; the value behind the `Arc`
// does not move and lives as long as this one.
unsafe impl DeviceMemory for DeviceSlab {
    fn base(&self) -> NonNull<u8> {
        self.0.base()
    }

    fn bytes(&self) -> usize {
        self.0.bytes()
    }
}
