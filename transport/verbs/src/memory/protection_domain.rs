//! A protection domain, which queue pairs and memory regions must share to be used together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use ibex_base::sync::lock;

use super::region::RegionRegistration;
use crate::{
    Device, VerbsError, device::DeviceContext, error::consequence, provider::DomainHandle,
};

/// A protection domain of an open device. Clones are the same domain.
///
/// See [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) inner: Arc<Domain>,
}

/// The part of a domain that the objects made from it keep alive.
#[derive(Debug)]
pub(crate) struct Domain {
    pub(crate) handle: DomainHandle,
    pub(crate) context: Arc<DeviceContext>,
    /// The device may order its accesses to regions of this domain loosely.
    pub(crate) relaxed_ordering: bool,
    /// Registrations by number, which closing the device ends; `None` after that.
    registrations: Mutex<Option<BTreeMap<u64, Weak<RegionRegistration>>>>,
}

impl ProtectionDomain {
    /// Makes a domain on an open device.
    ///
    /// # Errors
    /// [`VerbsError`] if the device refuses.
    pub fn new(device: &Device) -> Result<Self, VerbsError> {
        Self::with_ordering(device, false)
    }

    /// Makes a domain like [`new`](Self::new). If `relaxed`, the device may write to its regions
    /// in any order before the completion that announces the bytes.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub fn with_ordering(device: &Device, relaxed: bool) -> Result<Self, VerbsError> {
        let context = Arc::clone(device.context());
        // SAFETY: the context is open.
        let made = unsafe { context.provider().create_domain(context.opened.handle) };
        let handle = made.map_err(|errno| {
            let otherwise = "nothing can be made on this device";
            context.failed("ibv_alloc_pd", consequence(errno, otherwise))(errno)
        })?;
        Ok(Self {
            inner: Arc::new(Domain {
                handle,
                context,
                relaxed_ordering: relaxed,
                registrations: Mutex::new(Some(BTreeMap::new())),
            }),
        })
    }

    /// Ends all registrations, including those that other code holds, and refuses new ones, so that
    /// memory of applications no longer keeps the device open. Each region keeps its memory, and
    /// requests that use it fail at the device.
    pub fn end_registrations(&self) {
        let mut registrations = self.inner.registrations();
        let ended = registrations.take();
        drop(registrations);
        for registration in ended.into_iter().flat_map(BTreeMap::into_values) {
            if let Some(registration) = registration.upgrade() {
                registration.end();
            }
        }
    }
}

impl Domain {
    /// Adds a registration; false if the domain takes no more.
    pub(crate) fn note(&self, number: u64, registration: &Arc<RegionRegistration>) -> bool {
        let mut registrations = self.registrations();
        let noted = registrations.as_mut();
        noted
            .map(|noted| noted.insert(number, Arc::downgrade(registration)))
            .is_some()
    }

    /// Removes a registration that has ended.
    pub(crate) fn forget(&self, number: u64) {
        if let Some(noted) = self.registrations().as_mut() {
            noted.remove(&number);
        }
    }

    fn registrations(&self) -> MutexGuard<'_, Option<BTreeMap<u64, Weak<RegionRegistration>>>> {
        lock(&self.registrations)
    }
}

impl Drop for Domain {
    fn drop(&mut self) {
        // SAFETY: regions, shared receive queues and queue pairs of this domain held an
        // `Arc` of it, so all are destroyed.
        unsafe { self.context.destroy(self.handle) };
    }
}
