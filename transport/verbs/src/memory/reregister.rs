//! Changing a registration in place, which may cost less than a new one
//! ([`ibv_rereg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_rereg_mr.3.html)).
//!
//! Every change may give the region other keys, so the peer has to be told anew, and requests that are
//! outstanding may fail. Not every device has it, and some can change only one thing or the other.
//!
//! A change that fails in the device leaves a region that nobody may use: the error says so, and the
//! region keeps the memory of before and after until it is dropped.

use std::mem::ManuallyDrop;
use std::sync::Arc;

use ibex_base::fork;

use super::{
    protection_domain::ProtectionDomain,
    region::{DeviceMemory, MemoryRegion, RegionAccess},
};
use crate::{
    device::DeviceContext,
    error::VerbsError,
    provider::{ReregisterFailure, Reregistration},
};

impl<M: DeviceMemory> MemoryRegion<M> {
    /// Gives the region other rights (`IBV_REREG_MR_CHANGE_ACCESS`).
    ///
    /// # Errors
    /// [`VerbsError::Unsupported`] or [`VerbsError::Call`], which say whether the region can still be
    /// used; [`VerbsError::Closed`] if it is registered no more.
    pub fn change_access(&mut self, access: RegionAccess) -> Result<(), VerbsError> {
        let change = Reregistration {
            access: Some(access.bits()),
            ..Reregistration::default()
        };
        self.reregister(&change).map_err(|(error, _)| error)?;
        self.access = access;
        Ok(())
    }

    /// Moves the region to another protection domain of the same open device
    /// (`IBV_REREG_MR_CHANGE_PD`).
    ///
    /// # Errors
    /// The errors of [`change_access`](Self::change_access), and [`VerbsError::OtherDevice`].
    pub fn move_to(&mut self, domain: &ProtectionDomain) -> Result<(), VerbsError> {
        let to = domain.inner();
        let from = self.domain()?;
        if !Arc::ptr_eq(&from.context, &to.context) {
            return Err(VerbsError::OtherDevice {
                object: "memory region",
                device: to.context.name().to_owned(),
                other: from.context.name().to_owned(),
            });
        }
        let change = Reregistration {
            domain: Some(to.handle),
            ..Reregistration::default()
        };
        self.reregister(&change).map_err(|(error, _)| error)?;
        // The region keeps its new domain alive from now on.
        let moved = |held: &mut super::region::LiveRegistration| held.domain = Arc::clone(to);
        let is_held = self.registration.while_held(moved).is_some();
        match is_held && self.registration.move_to(&from, to) {
            true => Ok(()),
            false => {
                self.registration.end();
                Err(closed(&to.context))
            }
        }
    }

    /// Puts other memory in the place of the region's (`IBV_REREG_MR_CHANGE_TRANSLATION`). Returns
    /// the memory of before, with which the device is done.
    ///
    /// # Errors
    /// The errors of [`change_access`](Self::change_access); the new memory is dropped then, with the
    /// region at the latest.
    pub fn replace_memory(&mut self, memory: M) -> Result<M, VerbsError> {
        let (base, bytes) = (memory.base(), memory.bytes());
        let change = Reregistration {
            memory: Some((base, bytes)),
            ..Reregistration::default()
        };
        let start = base.addr().get();
        let range = start..start + bytes;
        let changed = self.reregister(&change);
        let old = self.base.addr().get();
        for advised in [range.clone(), old..old + self.bytes] {
            // SAFETY: both memories live, and are kept from children (`DeviceMemory`). The library may
            // have let children have either (rule 3 of `region`).
            unsafe { fork::keep_from_children(advised) };
        }
        if let Err((error, is_usable)) = changed {
            if !is_usable {
                // A second failure leaves the memory of the first to the device, for ever.
                let before = self.doubtful.replace(memory);
                std::mem::forget(before);
            }
            return Err(error);
        }
        // A registration that was ended meanwhile needs no range.
        self.registration.while_held(|held| held.range = range);
        (self.base, self.bytes) = (base, bytes);
        let before = std::mem::replace(&mut self.memory, ManuallyDrop::new(memory));
        Ok(ManuallyDrop::into_inner(before))
    }

    /// Makes a change. The error also tells whether the region can still be used.
    fn reregister(&mut self, change: &Reregistration) -> Result<(), (VerbsError, bool)> {
        let domain = self.domain().map_err(|error| (error, false))?;
        let context = &domain.context;
        // SAFETY: the region is registered while the state is held; new memory is mapped while its
        // value lives, which the region takes over, or keeps if the device may know it.
        let changed = self
            .registration
            .while_held(|held| unsafe { context.provider().reregister(held.handle, change) });
        const CALL: &str = "ibv_rereg_mr";
        const WHAT: &str = "registrations that can be changed";
        match changed {
            None => Err((closed(context), false)),
            Some(Ok((lkey, rkey))) => {
                (self.lkey, self.rkey) = (lkey, rkey);
                Ok(())
            }
            Some(Err(ReregisterFailure::Unchanged(errno))) => {
                let error = context.lacks(CALL, errno, WHAT, "the region is as it was");
                Err((error, true))
            }
            Some(Err(ReregisterFailure::Unusable(errno))) => {
                let instead = "the region cannot be used any more: drop it and register the memory";
                Err((context.lacks(CALL, errno, WHAT, instead), false))
            }
        }
    }

    fn domain(&self) -> Result<Arc<super::protection_domain::Domain>, VerbsError> {
        let domain = |held: &mut super::region::LiveRegistration| Arc::clone(&held.domain);
        self.registration
            .while_held(domain)
            .ok_or_else(|| VerbsError::Closed {
                device: "of the memory region".to_owned(),
            })
    }
}

fn closed(context: &DeviceContext) -> VerbsError {
    VerbsError::Closed {
        device: context.name().to_owned(),
    }
}
