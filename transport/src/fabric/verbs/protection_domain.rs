//! A protection domain: what queue pairs and memory regions must share to be used together.

use std::sync::Arc;

use super::device::{Context, Device};
use super::error::VerbsError;
use super::provider::DomainHandle;
use crate::fork;

/// A protection domain. Clones are the same domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<Domain>,
}

/// What the objects of a domain keep alive.
#[derive(Debug)]
pub(super) struct Domain {
    pub(super) handle: DomainHandle,
    pub(super) context: Arc<Context>,
}

impl ProtectionDomain {
    /// Makes one.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    pub fn new(device: &Device) -> Result<Self, VerbsError> {
        let context = Arc::clone(device.context());
        // SAFETY: the context is open.
        let handle =
            unsafe { context.provider().create_domain(context.handle()) }.map_err(|errno| {
                context.failed("ibv_alloc_pd", errno, "nothing can be made on this device")
            })?;
        Ok(Self {
            inner: Arc::new(Domain { handle, context }),
        })
    }

    pub(super) fn inner(&self) -> &Arc<Domain> {
        &self.inner
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // SAFETY: regions, shared receive queues and queue pairs of this domain held an
        // `Arc` of it, so all are destroyed.
        if let Err(errno) = unsafe { self.context.provider().destroy_domain(self.handle) } {
            self.context.undestroyed("ibv_dealloc_pd", errno);
        }
    }
}
