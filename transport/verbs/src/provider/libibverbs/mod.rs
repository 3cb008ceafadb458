//! The system's libibverbs, which is looked for when a program first asks for it.
//!
//! Each method is one verb. The library's inline functions go through the context's table
//! of operations; for the data path that table's own entries are handed out, so that a
//! call costs one indirection less than through a wrapper.

mod completion;
#[cfg(feature = "all")]
mod datagram;
mod drivers;
mod extended_queue;
#[cfg(feature = "all")]
mod foreign;
mod memory;
mod pairs;
mod queries;
mod shared_receives;
mod sys;
#[cfg(feature = "all")]
mod xrc;

use std::ffi::{CStr, c_int, c_void};
use std::iter;
use std::mem::{MaybeUninit, transmute, zeroed};
use std::ptr;
use std::sync::{PoisonError, RwLock};

use ibex_base::fork;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{
    AnyHandle, ContextHandle, CreatedPair, DeviceAttributes, DeviceEntry, DomainHandle, HotCalls,
    NodeType, OpenedContext, PairHandle, Provider, QueriedPair, QueuePairInit, RawEvent,
    SharedReceiveHandle, Transport, sealed,
};
use crate::{
    abi::{
        RecvWr, attribute_mask::AttributeMask, event_element::EventElement,
        fork_status::ForkStatus, gid::GidEntry, port::PortAttributes,
        queue_pair_attributes::QueuePairAttributes,
    },
    error::VerbsError,
};

/// The system's library.
#[derive(Debug)]
pub struct Libibverbs(());

impl Libibverbs {
    /// Loads the library, if no earlier call has. It stays loaded.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], with what the dynamic linker says; [`VerbsError::DeviceList`] if
    /// there are no descriptors to load it; [`VerbsError::UsedAfterFork`].
    pub fn load() -> Result<Self, VerbsError> {
        fork::check(|| "libibverbs, as it is loaded here,".to_owned())?;
        if !sys::is_loaded() {
            // The linker would report a lack of descriptors only as text.
            has_descriptors_to_spare().map_err(|source| VerbsError::DeviceList { source })?;
            sys::load().map_err(|reason| VerbsError::NoLibrary { reason })?;
        }
        Ok(Self(()))
    }

    /// Lists the devices that there are drivers for.
    fn listed() -> Result<Vec<DeviceEntry>, VerbsError> {
        Self::with_devices(|devices| {
            let entry = |device: &*mut sys::ibv_device| DeviceEntry {
                name: device_name(*device),
                file: device_file(*device),
                // SAFETY: an entry of a list that exists.
                transport: Transport::from_raw(unsafe { (**device).transport_type }),
                // SAFETY: as above.
                guid: u64::from_be(unsafe { sys::ibv_get_device_guid(*device) }),
                // SAFETY: as above.
                node_type: NodeType::from_raw(unsafe { (**device).node_type }),
            };
            devices.iter().map(entry).collect()
        })
    }

    /// Loads drivers that could not be loaded before. Returns whether there was one.
    fn load_drivers() -> Result<bool, Errno> {
        let _no_list = LISTS.write().unwrap_or_else(PoisonError::into_inner);
        drivers::load_missing()
    }

    /// Calls `found` with the devices while the list of them exists.
    fn with_devices<R>(found: impl FnOnce(&[*mut sys::ibv_device]) -> R) -> Result<R, VerbsError> {
        let _no_driver_comes = LISTS.read().unwrap_or_else(PoisonError::into_inner);
        let mut count: c_int = 0;
        clear_errno();
        // SAFETY: `count` is written to; the list is freed below.
        let list = unsafe { sys::ibv_get_device_list(&raw mut count) };
        if list.is_null() {
            return Err(match last_errno() {
                Errno::NOSYS => VerbsError::NoKernelSupport {
                    source: Errno::NOSYS,
                    hidden: None,
                },
                source => VerbsError::DeviceList { source },
            });
        }
        // SAFETY: the library says that `list` has `count` entries before its null.
        let devices =
            unsafe { std::slice::from_raw_parts(list, usize::try_from(count).unwrap_or(0)) };
        let result = found(devices);
        // SAFETY: the list came from `ibv_get_device_list`; contexts that were opened from
        // it stay valid.
        unsafe { sys::ibv_free_device_list(list) };
        Ok(result)
    }
}

impl sealed::Sealed for Libibverbs {}

impl Provider for Libibverbs {
    fn devices(&self) -> Result<Vec<DeviceEntry>, VerbsError> {
        let refused = |source| VerbsError::DeviceList { source };
        // Without spare descriptors the library leaves devices out, or reports that the kernel has
        // no verbs.
        has_descriptors_to_spare().map_err(refused)?;
        let listed = Self::listed()?;
        if drivers::may_be_missing(listed.len()) && Self::load_drivers().map_err(refused)? {
            return Self::listed();
        }
        Ok(listed)
    }

    fn is_libibverbs(&self) -> bool {
        true
    }

    fn fork_status(&self) -> ForkStatus {
        // SAFETY: the call takes nothing and returns a number. A library before rdma-core 35 does
        // not have it; what stands in for it answers that fork support is not initialized.
        ForkStatus::from_raw(unsafe { sys::ibv_is_fork_initialized() })
    }

    fn open(&self, name: &str) -> Result<OpenedContext, VerbsError> {
        let refused = |source| VerbsError::Open {
            device: name.to_owned(),
            source,
        };
        has_descriptors_to_spare().map_err(refused)?;
        Self::with_devices(|devices| {
            let is_meant = |device: &&*mut sys::ibv_device| device_name(**device) == name;
            let device = devices.iter().find(is_meant);
            let device = device.ok_or_else(|| VerbsError::NoSuchDevice {
                name: name.to_owned(),
                present: devices.iter().map(|one| device_name(*one)).collect(),
            })?;
            clear_errno();
            // SAFETY: an entry of a list that exists.
            let context = unsafe { sys::ibv_open_device(*device) };
            let handle = ContextHandle::new(context).ok_or_else(|| refused(last_errno()))?;
            // SAFETY: the context is open.
            let (ops, async_fd) = unsafe { ((*context).ops, (*context).async_fd) };
            match hot_calls(&ops) {
                Some(hot) => Ok(OpenedContext {
                    handle,
                    hot,
                    async_fd,
                }),
                None => {
                    // SAFETY: nothing was made from it.
                    unsafe { sys::ibv_close_device(context) };
                    Err(refused(Errno::OPNOTSUPP))
                }
            }
        })?
    }

    unsafe fn destroy(&self, handle: AnyHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe {
            match handle {
                AnyHandle::Context(it) => sys::ibv_close_device(it.as_ptr()),
                AnyHandle::Domain(it) => sys::ibv_dealloc_pd(it.as_ptr()),
                AnyHandle::Region(it) => sys::ibv_dereg_mr(it.as_ptr()),
                AnyHandle::Window(it) => sys::ibv_dealloc_mw(it.as_ptr()),
                AnyHandle::Buffer(it) => sys::ibv_free_dm(it.as_ptr()),
                AnyHandle::Channel(it) => sys::ibv_destroy_comp_channel(it.as_ptr()),
                AnyHandle::Completion(it) => sys::ibv_destroy_cq(it.as_ptr()),
                AnyHandle::SharedReceive(it) => sys::ibv_destroy_srq(it.as_ptr()),
                AnyHandle::Pair(it) => sys::ibv_destroy_qp(it.as_ptr()),
                AnyHandle::Address(it) => sys::ibv_destroy_ah(it.as_ptr()),
                AnyHandle::XrcDomain(it) => sys::ibv_close_xrcd(it.as_ptr()),
            }
        })
    }

    unsafe fn query_device(&self, context: ContextHandle) -> Result<DeviceAttributes, Errno> {
        // SAFETY: the trait's contract.
        unsafe { queries::device(context) }
    }

    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> Result<PortAttributes, Errno> {
        // SAFETY: the trait's contract.
        unsafe { queries::port(context, port) }
    }

    unsafe fn query_gid(
        &self,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> Result<Option<GidEntry>, Errno> {
        // SAFETY: the trait's contract.
        unsafe { queries::gid(context, port, index) }
    }

    unsafe fn query_pkey(
        &self,
        context: ContextHandle,
        port: u8,
        index: u16,
    ) -> Result<u16, Errno> {
        let mut pkey = 0;
        clear_errno();
        // SAFETY: the trait's contract; `pkey` is written to.
        let asked =
            unsafe { sys::ibv_query_pkey(context.as_ptr(), port, index.into(), &raw mut pkey) };
        minus_one(asked)?;
        Ok(u16::from_be(pkey))
    }

    unsafe fn async_event(&self, context: ContextHandle) -> Result<Option<RawEvent>, Errno> {
        let mut raw = MaybeUninit::<sys::ibv_async_event>::zeroed();
        clear_errno();
        // SAFETY: the trait's contract; the event is written to.
        match minus_one(unsafe { sys::ibv_get_async_event(context.as_ptr(), raw.as_mut_ptr()) }) {
            Ok(()) => {}
            Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
            Err(errno) => return Err(errno),
        }
        // SAFETY: the kind determines which element is set. The object that it points to exists
        // until the event is acknowledged, below.
        unsafe {
            let event_type = (*raw.as_ptr()).event_type;
            let element = &raw const (*raw.as_ptr()).element;
            let element = match EventElement::of(event_type) {
                EventElement::QueuePair => (*(*element).qp).qp_num.into(),
                EventElement::CompletionQueue => (*(*element).cq).cq_context.addr() as u64,
                EventElement::ReceiveQueue => (*(*element).srq).srq_context.addr() as u64,
                EventElement::Port => (*element).port_num as u64,
                EventElement::Nothing => 0,
            };
            sys::ibv_ack_async_event(raw.as_mut_ptr());
            Ok(Some(RawEvent {
                event_type,
                element,
            }))
        }
    }

    unsafe fn create_pair(
        &self,
        domain: DomainHandle,
        init: &QueuePairInit,
    ) -> Result<CreatedPair, Errno> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut raw: sys::ibv_qp_init_attr = unsafe { zeroed() };
        raw.send_cq = init.send_queue.as_ptr();
        raw.recv_cq = init.receive_queue.as_ptr();
        raw.srq = init
            .shared
            .map_or(ptr::null_mut(), SharedReceiveHandle::as_ptr);
        raw.cap.max_send_wr = init.sizes.send_requests;
        raw.cap.max_recv_wr = init.sizes.receive_requests;
        raw.cap.max_send_sge = init.sizes.send_entries;
        raw.cap.max_recv_sge = init.sizes.receive_entries;
        raw.cap.max_inline_data = init.sizes.inline_bytes;
        raw.qp_type = init.kind.to_raw();
        clear_errno();
        // SAFETY: the trait's contract.
        let pair = unsafe { sys::ibv_create_qp(domain.as_ptr(), &raw mut raw) };
        let handle = PairHandle::new(pair).ok_or_else(last_errno)?;
        Ok(CreatedPair {
            handle,
            // SAFETY: the queue pair exists.
            number: unsafe { (*pair).qp_num },
            sizes: pairs::sizes(&raw.cap),
        })
    }

    unsafe fn modify_pair(
        &self,
        pair: PairHandle,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), Errno> {
        let mut raw = pairs::attributes(attributes);
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_modify_qp(pair.as_ptr(), &raw mut raw, mask.bits() as c_int) })
    }

    unsafe fn query_pair(&self, pair: PairHandle) -> Result<QueriedPair, Errno> {
        // SAFETY: the trait's contract.
        unsafe { pairs::query(pair) }
    }
}

fn hot_calls(ops: &sys::ibv_context_ops) -> Option<HotCalls> {
    // SAFETY: each pair of types is the same C function type: thin pointers to structures
    // and plain integers. A device without
    // shared receive queues may have no call for them; then it cannot make one either,
    // and the entry is never reached.
    unsafe {
        Some(HotCalls {
            post_send: transmute::<*const c_void, super::PostSend>(ops.post_send? as *const c_void),
            post_receive: transmute::<*const c_void, super::PostReceive>(
                ops.post_recv? as *const c_void,
            ),
            post_shared_receive: match ops.post_srq_recv {
                Some(call) => transmute::<*const c_void, super::PostReceive>(call as *const c_void),
                None => no_shared_receives,
            },
            poll_queue: transmute::<*const c_void, super::PollQueue>(ops.poll_cq? as *const c_void),
            request_notify: transmute::<*const c_void, super::RequestNotify>(
                ops.req_notify_cq? as *const c_void,
            ),
        })
    }
}

unsafe extern "C" fn no_shared_receives(
    _: *mut c_void,
    _: *mut RecvWr,
    _: *mut *mut RecvWr,
) -> c_int {
    Errno::OPNOTSUPP.raw_os_error()
}

fn device_name(device: *mut sys::ibv_device) -> String {
    // SAFETY: an entry of a list that exists; its name is a C string inside of it.
    let name = unsafe { CStr::from_ptr(sys::ibv_get_device_name(device)) };
    name.to_string_lossy().into_owned()
}

fn device_file(device: *mut sys::ibv_device) -> String {
    // SAFETY: an entry of a list that exists; its array ends in a zero (verbs.h).
    let file = unsafe { CStr::from_ptr((*device).dev_name.as_ptr()) };
    file.to_string_lossy().into_owned()
}

/// Checks that as many descriptors are free as a list of devices takes, drivers and all.
fn has_descriptors_to_spare() -> Result<(), Errno> {
    let open = || eventfd(0, EventfdFlags::CLOEXEC);
    let spare: Result<Vec<_>, _> = iter::repeat_with(open).take(SPARE_DESCRIPTORS).collect();
    spare.map(drop)
}

fn tag_pointer(tag: u64) -> *mut c_void {
    ptr::without_provenance_mut(tag as usize)
}

fn count(signed: c_int) -> u32 {
    u32::try_from(signed).unwrap_or(0)
}

/// Converts the result of calls that return the errno. Some providers return its negative, some
/// -1.
fn status(returned: c_int) -> Result<(), Errno> {
    match returned {
        0 => Ok(()),
        -1 => Err(last_errno()),
        other => Err(Errno::from_raw_os_error(
            other.saturating_abs().clamp(1, 4095),
        )),
    }
}

/// Converts the result of calls that return -1 and set errno.
fn minus_one(returned: c_int) -> Result<(), Errno> {
    if returned == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

fn clear_errno() {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = 0 };
}

/// Returns the errno that a failed call has left; `EIO` if it has left none.
fn last_errno() -> Errno {
    match std::io::Error::last_os_error().raw_os_error() {
        Some(code @ 1..) => Errno::from_raw_os_error(code),
        _ => Errno::IO,
    }
}

/// Read while devices are listed, written while drivers are loaded.
static LISTS: RwLock<()> = RwLock::new(());
/// The descriptors that a list of devices takes. At most three are open at a time in rdma-core 60:
/// a directory, one in it, and a file.
const SPARE_DESCRIPTORS: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks what a user of this machine is told where there is no library, and where there is
    /// one and no device.
    #[test]
    fn this_machine_is_told_as_it_is() {
        let library = match Libibverbs::load() {
            Ok(library) => library,
            Err(error) => {
                let text = error.to_string();
                assert!(error.is_absence(), "{text}");
                assert!(
                    text.contains("libibverbs.so.1") && text.contains("install"),
                    "{text}"
                );
                return;
            }
        };
        match library.devices() {
            Ok(devices) => {
                assert!(devices.iter().all(|device| !device.name.is_empty()));
                let error = library.open("no such device").unwrap_err();
                assert!(matches!(error, VerbsError::NoSuchDevice { .. }), "{error}");
            }
            Err(error) => assert!(error.is_absence(), "{error}"),
        }
    }

    #[test]
    fn errors_are_read_from_wherever_a_provider_puts_them() {
        assert_eq!(status(0), Ok(()));
        assert_eq!(status(22), Err(Errno::INVAL));
        assert_eq!(status(-22), Err(Errno::INVAL));
        assert_eq!(status(c_int::MIN), Err(Errno::from_raw_os_error(4095)));
        clear_errno();
        assert_eq!(minus_one(-1), Err(Errno::IO));
    }
}
