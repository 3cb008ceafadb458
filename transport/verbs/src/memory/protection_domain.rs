//! A protection domain, which queue pairs and memory regions must share to be used together.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use ibex_base::fork;

use super::region::RegionRegistration;
use crate::{
    device::{Device, DeviceContext},
    error::{VerbsError, consequence},
    provider::{DomainHandle, ThreadDomainHandle},
};

/// A protection domain of an open device. Clones are the same domain.
///
/// See [`ibv_alloc_pd(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_pd.3.html).
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    inner: Arc<Domain>,
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
    /// Of a parent domain. The thread domain goes after it, and the domain that it stands for last.
    _thread: Option<ThreadDomain>,
    base: Option<Arc<Domain>>,
}

/// A thread domain, by which a parent domain's objects do without locks.
#[derive(Debug)]
struct ThreadDomain {
    handle: ThreadDomainHandle,
    context: Arc<DeviceContext>,
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
        let handle =
            unsafe { context.provider().create_domain(context.handle()) }.map_err(|errno| {
                let otherwise = "nothing can be made on this device";
                context.failed("ibv_alloc_pd", errno, consequence(errno, otherwise))
            })?;
        Ok(Self {
            inner: Arc::new(Domain {
                handle,
                context,
                relaxed_ordering: relaxed,
                registrations: Mutex::new(Some(BTreeMap::new())),
                _thread: None,
                base: None,
            }),
        })
    }

    /// Makes a parent domain: one that stands for this one, and has no thread domain. Each can be used
    /// in the other's place, and regions, windows, address handles and queue pairs of the two belong
    /// together. A parent domain of a parent domain stands for the same domain as that one.
    ///
    /// See [`ibv_alloc_parent_domain(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_parent_domain.3.html).
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] if the device has no parent domains, and its refusal.
    pub fn parent(&self) -> Result<Self, VerbsError> {
        self.parent_with(None)
    }

    /// Makes a parent domain like that of [`parent`](Self::parent), with a thread domain of its own.
    /// The library takes no locks for the queue pairs and shared receive queues that are made with
    /// it, and may have them share a doorbell: posting costs less.
    ///
    /// See [`ibv_alloc_td(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_td.3.html).
    ///
    /// # Safety
    /// The queue pairs and shared receive queues that are made with this domain, and the completion
    /// queues that they complete into, are used by one thread at a time, all together: while a thread
    /// is in a call of one of them, its drop included, no other thread is in a call of any. `&mut`
    /// keeps only the calls of one object apart. They may move to another thread together.
    ///
    /// # Errors
    /// The errors of [`parent`](Self::parent).
    pub unsafe fn parent_of_one_thread(&self) -> Result<Self, VerbsError> {
        let context = &self.inner.context;
        // SAFETY: the context is open.
        let made = unsafe { context.provider().create_thread_domain(context.handle()) };
        let handle = made.map_err(|errno| {
            let instead = "use the protection domain itself, whose objects any threads may use";
            context.lacks("ibv_alloc_td", errno, "thread domains", instead)
        })?;
        self.parent_with(Some(ThreadDomain {
            handle,
            context: Arc::clone(context),
        }))
    }

    fn parent_with(&self, thread: Option<ThreadDomain>) -> Result<Self, VerbsError> {
        let base = self.inner.base();
        let context = &base.context;
        let thread_handle = thread.as_ref().map(|thread| thread.handle);
        // SAFETY: the context is open, and domain and thread domain are alive, of that context.
        let made = unsafe {
            let provider = context.provider();
            provider.create_parent_domain(context.handle(), base.handle, thread_handle)
        };
        let handle = made.map_err(|errno| {
            let instead = "use the protection domain itself, which does the same";
            context.lacks("ibv_alloc_parent_domain", errno, "parent domains", instead)
        })?;
        Ok(Self {
            inner: Arc::new(Domain {
                handle,
                context: Arc::clone(context),
                relaxed_ordering: base.relaxed_ordering,
                registrations: Mutex::new(None),
                _thread: thread,
                base: Some(Arc::clone(base)),
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

    pub(crate) fn inner(&self) -> &Arc<Domain> {
        &self.inner
    }
}

impl Domain {
    /// Returns the domain that a parent domain stands for, or the domain itself.
    fn base(self: &Arc<Self>) -> &Arc<Self> {
        self.base.as_ref().unwrap_or(self)
    }

    /// Returns whether objects of the two domains can be used together.
    pub(crate) fn is_with(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self.base(), other.base())
    }

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
        // A parent domain's registrations are those of the domain that it stands for.
        let holder = self.base.as_deref().unwrap_or(self);
        let registrations = holder.registrations.lock();
        registrations.unwrap_or_else(PoisonError::into_inner)
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

impl Drop for ThreadDomain {
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // SAFETY: its parent domain, which held it, is destroyed or was not made.
        let destroyed = unsafe { self.context.provider().destroy_thread_domain(self.handle) };
        if let Err(errno) = destroyed {
            self.context.undestroyed("ibv_dealloc_td", errno);
        }
    }
}
