//! The system's libibverbs, which is looked for when a program first asks for it.
//!
//! Each method is one verb. The library's inline functions go through the context's table
//! of operations; for the data path that table's own entries are handed out, so that a
//! call costs one indirection less than through a wrapper.

#[cfg(feature = "all")]
mod all;
mod control;
mod drivers;
mod extended_queue;
mod pairs;
mod queries;
mod sys;

use std::ffi::{CStr, c_int, c_void};
use std::iter;
use std::mem::transmute;
use std::ptr;
use std::sync::{PoisonError, RwLock};

use ibex_base::fork;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{self, Errno};

use super::{DeviceEntry, HotCalls, PollQueue, PostReceive, PostSend, RequestNotify, Transport};
use crate::{NodeType, VerbsError, abi::RecvWr};

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
    fn load_drivers() -> io::Result<bool> {
        let _no_list = LISTS.write().unwrap_or_else(PoisonError::into_inner);
        drivers::load_missing()
    }

    /// Calls `found` with the devices while the list of them exists.
    fn with_devices<R>(found: impl FnOnce(&[*mut sys::ibv_device]) -> R) -> Result<R, VerbsError> {
        let _no_driver_comes = LISTS.read().unwrap_or_else(PoisonError::into_inner);
        let mut count: c_int = 0;
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

fn hot_calls(ops: &sys::ibv_context_ops) -> Option<HotCalls> {
    // SAFETY: each pair of types is the same C function type: thin pointers to structures
    // and plain integers. A device without
    // shared receive queues may have no call for them; then it cannot make one either,
    // and the entry is never reached.
    unsafe {
        let receive = |call: *const c_void| transmute::<*const c_void, PostReceive>(call);
        Some(HotCalls {
            post_send: transmute::<*const c_void, PostSend>(ops.post_send? as *const c_void),
            post_receive: receive(ops.post_recv? as *const c_void),
            post_shared_receive: match ops.post_srq_recv {
                Some(call) => receive(call as *const c_void),
                None => no_shared_receives,
            },
            poll_queue: transmute::<*const c_void, PollQueue>(ops.poll_cq? as *const c_void),
            request_notify: transmute::<*const c_void, RequestNotify>(
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
fn has_descriptors_to_spare() -> io::Result<()> {
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
fn status(returned: c_int) -> io::Result<()> {
    match returned {
        0 => Ok(()),
        -1 => Err(last_errno()),
        other => Err(Errno::from_raw_os_error(
            other.saturating_abs().clamp(1, 4095),
        )),
    }
}

/// Converts the result of calls that return -1 and set errno.
fn minus_one(returned: c_int) -> io::Result<()> {
    if returned == 0 {
        Ok(())
    } else {
        Err(last_errno())
    }
}

/// Returns the errno that a failed call of the library has left; `EIO` if it has left none.
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
    use super::{super::Provider as _, *};

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
        sys::clear_errno();
        assert_eq!(minus_one(-1), Err(Errno::IO));
    }
}
