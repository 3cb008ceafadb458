//! The part of libibverbs' interface that ibex uses, as rdma-core's `infiniband/verbs.h` declares
//! it: structures, constants, functions, and the functions that are inline there.
//!
//! No C compiler and no header is needed to build it. With the feature `rdma-sys`, a test compares
//! every declaration with those that `rdma-mummy-sys` generates from the header.
#![allow(
    non_camel_case_types,
    non_snake_case,
    dead_code,
    reason = "the names are the header's, and structures have all of their fields"
)]

#[macro_use]
mod structures;

mod attributes;
#[cfg(all(test, feature = "rdma-sys"))]
mod compare;
pub(super) mod constants;
mod functions;

use std::ffi::{c_int, c_uint};
use std::mem::{offset_of, size_of};
use std::ptr;

pub(super) use attributes::*;
pub(super) use functions::*;
pub(super) use structures::*;

/// Returns the extended part of a context that has the call at `offset`, as `verbs_get_ctx_op` does:
/// the part lies before the context, and a library that is older than the call has a shorter one.
///
/// # Safety
/// The context is open.
unsafe fn extended(context: *mut ibv_context, offset: usize) -> Option<*const verbs_context> {
    // SAFETY: the caller's contract; the mark says that the context lies within a `verbs_context`,
    // whose end is fixed, and whose size the library has written.
    unsafe {
        if (*context).abi_compat.addr() != IS_EXTENDED {
            return None;
        }
        let whole = context
            .byte_sub(offset_of!(verbs_context, context))
            .cast::<verbs_context>();
        let size = (&raw const (*whole).sz).read();
        (size >= size_of::<verbs_context>() - offset).then_some(whole.cast_const())
    }
}

/// Reads a call of the extended part; `None` if the library or the driver has none.
macro_rules! extended_call {
    ($context:expr, $call:ident) => {
        match extended($context, offset_of!(verbs_context, $call)) {
            Some(whole) => (&raw const (*whole).$call).read(),
            None => None,
        }
    };
}

/// # Safety
/// [`ibv_query_port(3)`](https://man7.org/linux/man-pages/man3/ibv_query_port.3.html).
pub(super) unsafe fn query_port(
    context: *mut ibv_context,
    port: u8,
    attributes: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller's contract. The older call writes less.
    unsafe {
        match extended_call!(context, query_port) {
            Some(call) => call(context, port, attributes, size_of::<ibv_port_attr>()),
            None => ibv_query_port(context, port, attributes.cast()),
        }
    }
}

/// # Safety
/// `ibv_query_gid_ex(3)`.
pub(super) unsafe fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    entry: *mut ibv_gid_entry,
    flags: u32,
) -> c_int {
    let bytes = size_of::<ibv_gid_entry>();
    // SAFETY: the caller's contract.
    unsafe { _ibv_query_gid_ex(context, port, index, entry, flags, bytes) }
}

/// # Safety
/// [`ibv_query_device_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_device_ex.3.html).
pub(super) unsafe fn ibv_query_device_ex(
    context: *mut ibv_context,
    attributes: *mut ibv_device_attr_ex,
) -> c_int {
    // SAFETY: the caller's contract. The input may be null.
    unsafe {
        match extended_call!(context, query_device_ex) {
            Some(call) => call(
                context,
                ptr::null(),
                attributes,
                size_of::<ibv_device_attr_ex>(),
            ),
            None => libc::EOPNOTSUPP,
        }
    }
}

/// Lets the next failure of the library be told from an earlier one.
pub(super) fn clear_errno() {
    // SAFETY: the address of this thread's errno.
    unsafe { *libc::__errno_location() = 0 };
}

/// Declares inline functions that go through the context's table. Errno is as behind the others.
macro_rules! inline_functions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $result:ty
        = $call:expr, else $absent:expr;)*) => {$(
        $(#[$doc])*
        pub(super) unsafe fn $name($($argument: $type),*) -> $result {
            clear_errno();
            // SAFETY: the caller's contract; the address of this thread's errno.
            unsafe {
                match $call {
                    Some(call) => call($($argument),*),
                    None => {
                        *libc::__errno_location() = libc::EOPNOTSUPP;
                        $absent
                    }
                }
            }
        }
    )*};
}

inline_functions! {
    /// # Safety
    /// [`ibv_alloc_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_mw.3.html).
    fn ibv_alloc_mw(domain: *mut ibv_pd, kind: c_uint) -> *mut ibv_mw
        = (*(*domain).context).ops.alloc_mw, else ptr::null_mut();
    /// # Safety
    /// `ibv_dealloc_mw`, on the page of [`ibv_alloc_mw`].
    fn ibv_dealloc_mw(window: *mut ibv_mw) -> c_int
        = (*(*window).context).ops.dealloc_mw, else libc::EOPNOTSUPP;
    /// # Safety
    /// [`ibv_bind_mw(3)`](https://man7.org/linux/man-pages/man3/ibv_bind_mw.3.html), for a window of
    /// type 1.
    fn ibv_bind_mw(pair: *mut ibv_qp, window: *mut ibv_mw, request: *mut ibv_mw_bind) -> c_int
        = (*(*window).context).ops.bind_mw, else libc::EOPNOTSUPP;
    /// # Safety
    /// [`ibv_query_rt_values_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_query_rt_values_ex.3.html).
    fn ibv_query_rt_values_ex(context: *mut ibv_context, values: *mut ibv_values_ex) -> c_int
        = extended_call!(context, query_rt_values), else libc::EOPNOTSUPP;
    /// # Safety
    /// [`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html).
    fn ibv_alloc_dm(context: *mut ibv_context, attributes: *mut ibv_alloc_dm_attr) -> *mut ibv_dm
        = extended_call!(context, alloc_dm), else ptr::null_mut();
    /// # Safety
    /// `ibv_free_dm`, on the page of [`ibv_alloc_dm`].
    fn ibv_free_dm(buffer: *mut ibv_dm) -> c_int
        = extended_call!((*buffer).context, free_dm), else libc::EOPNOTSUPP;
    /// # Safety
    /// `ibv_reg_dm_mr`, on the page of [`ibv_alloc_dm`].
    fn ibv_reg_dm_mr(domain: *mut ibv_pd, buffer: *mut ibv_dm, offset: u64, bytes: usize, access: c_uint)
        -> *mut ibv_mr = extended_call!((*domain).context, reg_dm_mr), else ptr::null_mut();
    /// # Safety
    /// [`ibv_create_cq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_cq_ex.3.html).
    fn ibv_create_cq_ex(context: *mut ibv_context, init: *mut ibv_cq_init_attr_ex) -> *mut ibv_cq_ex
        = extended_call!(context, create_cq_ex), else ptr::null_mut();
    /// # Safety
    /// [`ibv_open_xrcd(3)`](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html).
    fn ibv_open_xrcd(context: *mut ibv_context, init: *mut ibv_xrcd_init_attr) -> *mut ibv_xrcd
        = extended_call!(context, open_xrcd), else ptr::null_mut();
    /// # Safety
    /// `ibv_close_xrcd`, on the page of [`ibv_open_xrcd`].
    fn ibv_close_xrcd(domain: *mut ibv_xrcd) -> c_int
        = extended_call!((*domain).context, close_xrcd), else libc::EOPNOTSUPP;
    /// # Safety
    /// [`ibv_create_srq_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_srq_ex.3.html), not
    /// for a plain queue.
    fn ibv_create_srq_ex(context: *mut ibv_context, init: *mut ibv_srq_init_attr_ex) -> *mut ibv_srq
        = extended_call!(context, create_srq_ex), else ptr::null_mut();
    /// # Safety
    /// [`ibv_get_srq_num(3)`](https://man7.org/linux/man-pages/man3/ibv_get_srq_num.3.html).
    fn ibv_get_srq_num(queue: *mut ibv_srq, number: *mut u32) -> c_int
        = extended_call!((*queue).context, get_srq_num), else libc::EOPNOTSUPP;
    /// # Safety
    /// [`ibv_create_qp_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html), with
    /// more than a protection domain.
    fn ibv_create_qp_ex(context: *mut ibv_context, init: *mut ibv_qp_init_attr_ex) -> *mut ibv_qp
        = extended_call!(context, create_qp_ex), else ptr::null_mut();
    /// # Safety
    /// [`ibv_open_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_open_qp.3.html).
    fn ibv_open_qp(context: *mut ibv_context, open: *mut ibv_qp_open_attr) -> *mut ibv_qp
        = extended_call!(context, open_qp), else ptr::null_mut();
}

/// `__VERBS_ABI_IS_EXTENDED`.
const IS_EXTENDED: usize = usize::MAX;
