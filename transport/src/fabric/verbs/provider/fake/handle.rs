//! What a handle of the fake is: a pointer to a box with the number of its object.
//!
//! 1. A handle is made here, from a leaked box, and taken back by the call that destroys
//!    the object. In between nobody writes to it.

use std::sync::Arc;

use super::FakeProvider;
use super::world::World;

/// What a handle points to.
pub(super) struct Handle {
    pub(super) world: Arc<World>,
    pub(super) id: u64,
}

impl FakeProvider {
    pub(super) fn handle(&self, id: u64) -> *mut Handle {
        Box::into_raw(Box::new(Handle {
            world: Arc::clone(&self.world),
            id,
        }))
    }
}

/// Which object a handle names.
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
    // SAFETY: the caller's contract; it was made by `Box::into_raw`.
    drop(unsafe { Box::from_raw(pointer) });
}
