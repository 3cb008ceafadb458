//! Extended reliable connections.

use std::mem::zeroed;
use std::os::fd::RawFd;
use std::ptr;

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, sys};
use crate::{
    abi::queue_pair_kind::QueuePairKind,
    provider::{ContextHandle, PairHandle, XrcDomainHandle, xrc::XrcProvider},
};

impl XrcProvider for Libibverbs {
    unsafe fn open_xrc_domain(
        &self,
        context: ContextHandle,
        file: Option<RawFd>,
        flags: i32,
    ) -> Result<XrcDomainHandle, Errno> {
        let mut init = sys::ibv_xrcd_init_attr {
            comp_mask: sys::constants::IBV_XRCD_INIT_ATTR_FD
                | sys::constants::IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: file.unwrap_or(-1),
            oflags: flags,
        };
        clear_errno();
        // SAFETY: the trait's contract.
        let opened = unsafe { sys::ibv_open_xrcd(context.as_ptr(), &raw mut init) };
        XrcDomainHandle::new(opened).ok_or_else(last_errno)
    }

    unsafe fn create_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
    ) -> Result<(PairHandle, u32), Errno> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut init: sys::ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.qp_type = QueuePairKind::XrcReceive.to_raw();
        init.comp_mask = sys::constants::IBV_QP_INIT_ATTR_XRCD;
        init.xrcd = domain.as_ptr();
        clear_errno();
        // SAFETY: the trait's contract.
        let pair = unsafe { sys::ibv_create_qp_ex(context.as_ptr(), &raw mut init) };
        let handle = PairHandle::new(pair).ok_or_else(last_errno)?;
        // SAFETY: the queue pair exists.
        Ok((handle, unsafe { (*pair).qp_num }))
    }

    unsafe fn open_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
        number: u32,
    ) -> Result<PairHandle, Errno> {
        let mut open = sys::ibv_qp_open_attr {
            comp_mask: sys::constants::IBV_QP_OPEN_ATTR_NUM
                | sys::constants::IBV_QP_OPEN_ATTR_XRCD
                | sys::constants::IBV_QP_OPEN_ATTR_TYPE,
            qp_num: number,
            xrcd: domain.as_ptr(),
            qp_context: ptr::null_mut(),
            qp_type: QueuePairKind::XrcReceive.to_raw(),
        };
        clear_errno();
        // SAFETY: the trait's contract.
        let pair = unsafe { sys::ibv_open_qp(context.as_ptr(), &raw mut open) };
        PairHandle::new(pair).ok_or_else(last_errno)
    }
}
