//! What wakes a peer on this host.

use std::{
    os::fd::OwnedFd,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use rustix::io::{retry_on_intr, write};

/// The eventfd that wakes the engine of a peer that maps memory of ours: it comes some time
/// after the session began, and is given back when that is over.
#[derive(Default)]
pub(super) struct PeerBell(Mutex<Option<Arc<OwnedFd>>>);

impl PeerBell {
    /// It has come. A second one is not taken.
    pub(super) fn set(&self, bell: OwnedFd) {
        self.cell().get_or_insert_with(|| Arc::new(bell));
    }

    /// From now on there is none.
    pub(super) fn give_back(&self) {
        let bell = self.cell().take();
        drop(bell);
    }

    /// Wakes the peer's engine; whether there is a bell.
    pub(super) fn ring(&self) -> bool {
        // Not under the lock: what a peer passes for an eventfd may make who writes wait.
        let bell = self.cell().clone();
        let Some(bell) = bell else {
            return false;
        };
        // A full counter is readable already; a dead peer does not mind.
        let _ = retry_on_intr(|| write(&*bell, &1u64.to_ne_bytes()));
        true
    }

    fn cell(&self) -> MutexGuard<'_, Option<Arc<OwnedFd>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
