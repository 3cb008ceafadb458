//! Handles of the fake: each is a pointer to a box with the number of its object.
//!
//! 1. A handle is made here, from a leaked box, and taken back by the call that destroys the
//!    object. In between it is never written, except for the place where an extended completion
//!    queue shows its completion: that one belongs to its poller alone.

use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::Arc;

use super::{FakeProvider, world::World};

/// The target of a handle.
pub(super) struct Handle {
    pub(super) world: Arc<World>,
    pub(super) id: u64,
    shown: UnsafeCell<Shown>,
}

/// The fields that an extended completion queue shows without a call.
#[derive(Default)]
struct Shown {
    wr_id: u64,
    status: u32,
}

impl Handle {
    /// Shows a completion.
    ///
    /// # Safety
    /// Called by the poller of an extended completion queue (rule 1).
    pub(super) unsafe fn show(&self, wr_id: u64, status: u32) {
        // SAFETY: the caller's contract.
        unsafe { *self.shown.get() = Shown { wr_id, status } };
    }

    /// Returns where they are shown.
    pub(super) fn shown(&self) -> (NonNull<u64>, NonNull<u32>) {
        let shown = self.shown.get();
        // SAFETY: fields of a box.
        unsafe {
            let (wr_id, status) = (&raw mut (*shown).wr_id, &raw mut (*shown).status);
            (
                NonNull::new_unchecked(wr_id),
                NonNull::new_unchecked(status),
            )
        }
    }
}

impl FakeProvider {
    pub(super) fn handle(&self, id: u64) -> *mut Handle {
        Box::into_raw(Box::new(Handle {
            world: Arc::clone(&self.world),
            id,
            shown: UnsafeCell::default(),
        }))
    }
}

/// Returns the number of the object that a handle names.
///
/// # Safety
/// `pointer` is a handle that has not been taken back (rule 1).
pub(super) unsafe fn id_of(pointer: *mut Handle) -> u64 {
    // SAFETY: the caller's contract.
    unsafe { (*pointer).id }
}

/// Ends a handle.
///
/// # Safety
/// `pointer` is a handle that has not been taken back, and is not used again (rule 1).
pub(super) unsafe fn take_back(pointer: *mut Handle) {
    // SAFETY: the caller's contract; the pointer was made by `Box::into_raw`.
    drop(unsafe { Box::from_raw(pointer) });
}
