//! The slots of a caller while a thread holds them.

use std::{
    ops::{Deref, DerefMut},
    sync::MutexGuard,
};

use super::CallerState;
use crate::caller::slots::Slots;

/// The slots, held by a thread. A reply that is dropped or copied out during that time may turn the
/// engine in this very thread, and the engine may call the caller's waker. The holder then handles
/// that call when it leaves.
pub(crate) struct HeldSlots<'a> {
    pub(super) state: &'a CallerState,
    /// `Some` until the drop.
    pub(super) slots: Option<MutexGuard<'a, Slots>>,
}

impl Deref for HeldSlots<'_> {
    type Target = Slots;

    fn deref(&self) -> &Slots {
        self.slots.as_ref().expect("held until the drop")
    }
}

impl DerefMut for HeldSlots<'_> {
    fn deref_mut(&mut self) -> &mut Slots {
        self.slots.as_mut().expect("held until the drop")
    }
}

impl Drop for HeldSlots<'_> {
    fn drop(&mut self) {
        if let Some(slots) = self.slots.take()
            && self.state.slots.unlock(slots)
        {
            self.state.wake();
        }
    }
}
