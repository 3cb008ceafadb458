//! The functions of libibverbs, found when the library is loaded.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::transmute;
use std::ptr;
use std::sync::OnceLock;

use super::attributes::{
    ibv_ah_attr, ibv_async_event, ibv_device_attr, ibv_gid_entry, ibv_qp_attr, ibv_qp_init_attr,
    ibv_srq_attr, ibv_srq_init_attr,
};
use super::structures::{
    _compat_ibv_port_attr, ibv_ah, ibv_comp_channel, ibv_context, ibv_cq, ibv_device, ibv_gid,
    ibv_mr, ibv_pd, ibv_qp, ibv_srq,
};

pub(in super::super) fn is_loaded() -> bool {
    FUNCTIONS.get().is_some()
}

/// Loads the library, which stays loaded.
///
/// # Errors
/// What the dynamic linker says.
pub(in super::super) fn load() -> Result<(), String> {
    // SAFETY: a name that ends in a zero. The library is never closed, because drivers and callers
    // keep its functions.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_LAZY | libc::RTLD_LOCAL) };
    if library.is_null() {
        return Err(linker_reason());
    }
    // SAFETY: the library is loaded and stays so.
    let functions = unsafe { Functions::of(library) }?;
    // Another thread may have been first, with the same functions.
    let _ = FUNCTIONS.set(functions);
    Ok(())
}

/// Declares the functions; a call of one before [`load`] has succeeded panics. Errno is what the
/// function has set, and 0 if it has set none. `else` names what stands in for a function that old
/// libraries do not have.
macro_rules! functions {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $(, else $absent:expr)?;)*) => {
        #[derive(Debug)]
        struct Functions {
            $($name: unsafe extern "C" fn($($type),*) $(-> $result)?,)*
        }

        impl Functions {
            /// # Safety
            /// `library` is libibverbs, which is loaded for as long as the process lives.
            unsafe fn of(library: *mut c_void) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the caller's contract; a name that ends in a zero.
                        let address = unsafe { libc::dlsym(library, name.as_ptr().cast()) };
                        if address.is_null() {
                            functions!(@absent $name ($($type),*) $($result)?, $($absent)?)
                        } else {
                            // SAFETY: the function of this name has this type in
                            // infiniband/verbs.h.
                            unsafe {
                                transmute::<
                                    *mut c_void,
                                    unsafe extern "C" fn($($type),*) $(-> $result)?,
                                >(address)
                            }
                        }
                    },)*
                })
            }
        }

        $(
            /// # Safety
            /// The manual page of the function of this name.
            pub(in super::super) unsafe fn $name($($argument: $type),*) $(-> $result)? {
                super::clear_errno();
                // SAFETY: the caller's contract.
                unsafe { (functions().$name)($($argument),*) }
            }
        )*

        /// Returns each difference from the functions that `rdma-sys` declares.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(super) fn differences() -> Vec<String> {
            use super::compare::{Found, declared};

            let mut found = Found::default();
            $({
                type Ours = unsafe extern "C" fn($($type),*) $(-> $result)?;
                found.types(
                    stringify!($name),
                    "type",
                    std::any::type_name::<Ours>(),
                    declared::$name(),
                );
            })*
            found.differences()
        }
    };
    (@absent $name:ident ($($type:ty),*) $($result:ty)?,) => {
        return Err(format!("{LIBRARY:?} has no {}", stringify!($name)))
    };
    (@absent $name:ident ($($type:ty),*) $result:ty, $absent:expr) => {{
        /// # Safety
        /// None is needed.
        unsafe extern "C" fn $name($(_: $type),*) -> $result {
            // SAFETY: the address of this thread's errno.
            unsafe { *libc::__errno_location() = libc::EOPNOTSUPP };
            $absent
        }
        $name
    }};
}

functions! {
    fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(list: *mut *mut ibv_device);
    fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;
    fn ibv_get_device_guid(device: *mut ibv_device) -> u64;
    fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(context: *mut ibv_context) -> c_int;
    fn ibv_is_fork_initialized() -> c_uint, else 0;
    fn ibv_query_device(context: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int;
    // The header declares the last argument as a structure without fields.
    fn ibv_query_port(
        context: *mut ibv_context,
        port: u8,
        attributes: *mut _compat_ibv_port_attr,
    ) -> c_int;
    fn ibv_query_gid(context: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int;
    fn _ibv_query_gid_ex(
        context: *mut ibv_context,
        port: u32,
        index: u32,
        entry: *mut ibv_gid_entry,
        flags: u32,
        bytes: usize,
    ) -> c_int, else libc::EOPNOTSUPP;
    fn ibv_query_gid_type(
        context: *mut ibv_context,
        port: u8,
        index: c_uint,
        gid_type: *mut c_uint,
    ) -> c_int, else libc::EOPNOTSUPP;
    fn ibv_query_pkey(context: *mut ibv_context, port: u8, index: c_int, pkey: *mut u16) -> c_int;
    fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;
    fn ibv_ack_async_event(event: *mut ibv_async_event);
    fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(domain: *mut ibv_pd) -> c_int;
    fn ibv_reg_mr(
        domain: *mut ibv_pd,
        address: *mut c_void,
        bytes: usize,
        access: c_int,
    ) -> *mut ibv_mr;
    fn ibv_reg_mr_iova2(
        domain: *mut ibv_pd,
        address: *mut c_void,
        bytes: usize,
        iova: u64,
        access: c_uint,
    ) -> *mut ibv_mr, else ptr::null_mut();
    fn ibv_reg_dmabuf_mr(
        domain: *mut ibv_pd,
        offset: u64,
        bytes: usize,
        iova: u64,
        fd: c_int,
        access: c_int,
    ) -> *mut ibv_mr, else ptr::null_mut();
    fn ibv_dereg_mr(region: *mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;
    fn ibv_get_cq_event(
        channel: *mut ibv_comp_channel,
        queue: *mut *mut ibv_cq,
        tag: *mut *mut c_void,
    ) -> c_int;
    fn ibv_ack_cq_events(queue: *mut ibv_cq, events: c_uint);
    fn ibv_create_cq(
        context: *mut ibv_context,
        entries: c_int,
        tag: *mut c_void,
        channel: *mut ibv_comp_channel,
        vector: c_int,
    ) -> *mut ibv_cq;
    fn ibv_destroy_cq(queue: *mut ibv_cq) -> c_int;
    fn ibv_create_srq(domain: *mut ibv_pd, init: *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_modify_srq(queue: *mut ibv_srq, attributes: *mut ibv_srq_attr, mask: c_int) -> c_int;
    fn ibv_query_srq(queue: *mut ibv_srq, attributes: *mut ibv_srq_attr) -> c_int;
    fn ibv_destroy_srq(queue: *mut ibv_srq) -> c_int;
    fn ibv_create_qp(domain: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(pair: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int;
    fn ibv_query_qp(
        pair: *mut ibv_qp,
        attributes: *mut ibv_qp_attr,
        mask: c_int,
        init: *mut ibv_qp_init_attr,
    ) -> c_int;
    fn ibv_destroy_qp(pair: *mut ibv_qp) -> c_int;
    fn ibv_create_ah(domain: *mut ibv_pd, attributes: *mut ibv_ah_attr) -> *mut ibv_ah;
    fn ibv_destroy_ah(address: *mut ibv_ah) -> c_int;
    fn ibv_attach_mcast(pair: *mut ibv_qp, group: *const ibv_gid, lid: u16) -> c_int;
    fn ibv_detach_mcast(pair: *mut ibv_qp, group: *const ibv_gid, lid: u16) -> c_int;
}

fn functions() -> &'static Functions {
    FUNCTIONS
        .get()
        .expect("a provider exists only if the library is loaded")
}

fn linker_reason() -> String {
    // SAFETY: the text is copied before another call of this thread can change it.
    unsafe {
        let reason = libc::dlerror();
        if reason.is_null() {
            return "the dynamic linker does not say why".to_owned();
        }
        CStr::from_ptr(reason).to_string_lossy().into_owned()
    }
}

const LIBRARY: &CStr = c"libibverbs.so.1";

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();
