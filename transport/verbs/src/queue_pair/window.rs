//! Binding and invalidating memory windows, by requests of a queue pair.
//!
//! Each is posted by a call of its own, so that a window's state always is that of its last request,
//! and is signaled, since the state moves on with the completion. Requests to a send queue are done in
//! order: a message that is posted after a binding may already tell the peer the key.

use std::any::Any;
use std::sync::Arc;

use super::{AnyPair, memory_window::WindowBinding};
use crate::abi::{BindInfo, BindWr, access_flags, send_flags, wr_opcode};
use crate::{
    BindRequest, DeviceMemory, MemoryRegion, MemoryWindow, PostError, QueuePair, RegionAccess,
    RemoteAddress, WindowError, WindowKind, WorkId, memory::protection_domain::Domain,
    memory::region::LiveRegistration, provider::next_key,
};

impl QueuePair {
    /// Binds a window to a part of a region: type 1 by
    /// [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), type 2 by a work
    /// request. Takes one place of the send queue, and makes a completion, which belongs to
    /// [`MemoryWindow::take`]. Returns the place of the window's first byte.
    ///
    /// # Errors
    /// [`WindowError`]; nothing has changed then.
    pub fn bind_window<M: DeviceMemory + 'static>(
        &mut self,
        window: &mut MemoryWindow,
        region: &Arc<MemoryRegion<M>>,
        request: &BindRequest,
    ) -> Result<RemoteAddress, WindowError> {
        window.check_bind()?;
        self.any.check_domain(window)?;
        check_range(request, region.bytes())?;
        let access = remote_rights(request.access, region.access())?;
        self.any.check_room()?;
        let (start, bytes) = (request.range.start, request.range.len());
        let address = region.remote(start).address;
        let flags = request.flags | send_flags::SIGNALED;
        let post = |domain: &Arc<Domain>, region: *mut _| {
            if !Arc::ptr_eq(domain, &window.domain) {
                return Err(WindowError::OtherDomain {
                    object: "memory region",
                });
            }
            let info = BindInfo {
                region,
                address,
                bytes: bytes as u64,
                access,
            };
            match window.kind() {
                WindowKind::One => self.any.bind_first(window, request.id, flags, &info),
                WindowKind::Two => self.any.bind_second(window, request.id, flags, info),
            }
        };
        let key = region
            .while_registered(post)
            .unwrap_or(Err(WindowError::Unregistered))?;
        let kept: Arc<dyn Any + Send + Sync> = Arc::clone(region) as _;
        let binding = WindowBinding {
            key,
            address,
            bytes,
            peer_invalidates: request.peer_invalidates,
            pair: Arc::clone(&self.any.inner),
            number: self.number(),
            registration: Arc::clone(&region.registration),
            _region: kept,
        };
        window.begin_binding(request.id, binding);
        Ok(RemoteAddress { address, rkey: key })
    }

    /// Takes the window's key from the peer. Takes one place of the send queue, and makes a
    /// completion, which belongs to [`MemoryWindow::take`]; with it the peer gets in no more. A window
    /// of type 2 need not be bound yet: the queue pair does both requests in order, and the completion
    /// of the first one is then no longer the window's.
    ///
    /// # Errors
    /// [`WindowError`]; nothing has changed then. A window that is not to be bound, which includes one
    /// that is invalidated already, is refused here.
    pub fn invalidate_window(
        &mut self,
        window: &mut MemoryWindow,
        id: WorkId,
    ) -> Result<(), WindowError> {
        let binding = window.check_invalidate(&self.any.inner)?;
        self.any.check_domain(window)?;
        self.any.check_room()?;
        let flags = send_flags::SIGNALED;
        let key = match window.kind() {
            WindowKind::One => {
                let address = binding.address;
                // Soft-RoCE's driver reads the region also where no bytes of it are bound.
                let unbind = |held: &mut LiveRegistration| {
                    let info = BindInfo {
                        region: held.handle.as_ptr(),
                        address,
                        bytes: 0,
                        access: 0,
                    };
                    self.any.bind_first(window, id, flags, &info)
                };
                let unbound = Arc::clone(&binding.registration).while_held(unbind);
                Some(unbound.unwrap_or(Err(WindowError::Unregistered))?)
            }
            WindowKind::Two => {
                let key = window.key();
                self.any.post_window_request(id, flags, |place| {
                    place.opcode = wr_opcode::LOCAL_INVALIDATE;
                    place.imm_data = key.to_raw();
                })?;
                None
            }
        };
        window.begin_invalidating(id, self.number(), key);
        Ok(())
    }
}

impl AnyPair {
    fn check_domain(&self, window: &MemoryWindow) -> Result<(), WindowError> {
        match Arc::ptr_eq(&self.inner.domain, &window.domain) {
            true => Ok(()),
            false => Err(WindowError::OtherDomain {
                object: "queue pair",
            }),
        }
    }

    fn check_room(&self) -> Result<(), WindowError> {
        match self.send_room() {
            0 => Err(WindowError::QueueFull {
                capacity: self.capacity,
            }),
            _ => Ok(()),
        }
    }

    /// Binds a window of type 1, or unbinds it. Returns its key.
    fn bind_first(
        &mut self,
        window: &MemoryWindow,
        id: WorkId,
        flags: u32,
        info: &BindInfo,
    ) -> Result<u32, WindowError> {
        let (pair, id) = (self.inner.handle, id.to_raw());
        let provider = self.inner.domain.context.provider();
        // SAFETY: the queue pair and the window are alive; `info` names a region that is registered
        // during the call (`while_held`).
        let bound = unsafe { provider.bind_window(pair, window.handle, id, flags, info) };
        let key = bound.map_err(|source| PostError {
            call: "ibv_bind_mw",
            requests: 1,
            accepted: 0,
            source,
        })?;
        self.outstanding += 1;
        Ok(key)
    }

    /// Binds a window of type 2. Returns its key.
    fn bind_second(
        &mut self,
        window: &MemoryWindow,
        id: WorkId,
        flags: u32,
        info: BindInfo,
    ) -> Result<u32, WindowError> {
        let rkey = next_key(window.key().to_raw());
        let window = window.handle.as_ptr();
        self.post_window_request(id, flags, |place| {
            place.opcode = wr_opcode::BIND_WINDOW;
            place.bind = BindWr { window, rkey, info };
        })?;
        Ok(rkey)
    }

    /// Posts one request without entries.
    fn post_window_request(
        &mut self,
        id: WorkId,
        flags: u32,
        fill: impl FnOnce(&mut crate::abi::SendWr),
    ) -> Result<(), WindowError> {
        self.table.clear();
        let place = self.table.push_other(id, flags, &[]);
        fill(place.expect("a request without entries fits into an empty table"));
        self.outstanding += self.post_table()?;
        Ok(())
    }
}

fn check_range(request: &BindRequest, bytes: usize) -> Result<(), WindowError> {
    let (start, end) = (request.range.start, request.range.end);
    match start < end && end <= bytes {
        true => Ok(()),
        false => Err(WindowError::Range { start, end, bytes }),
    }
}

/// Returns the rights of the peer, of those that were asked for, if the region can give them.
fn remote_rights(wanted: RegionAccess, region: RegionAccess) -> Result<u32, WindowError> {
    const REMOTE: u32 =
        access_flags::REMOTE_WRITE | access_flags::REMOTE_READ | access_flags::REMOTE_ATOMIC;
    let rights = wanted.bits() & REMOTE;
    let writes = rights & (access_flags::REMOTE_WRITE | access_flags::REMOTE_ATOMIC) != 0;
    let lets_write = region.contains(RegionAccess::RECEIVE);
    match region.contains(RegionAccess::WINDOWS) && (lets_write || !writes) {
        true => Ok(rights),
        false => Err(WindowError::Rights),
    }
}
