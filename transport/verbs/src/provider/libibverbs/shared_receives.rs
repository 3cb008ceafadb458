//! Shared receive queues.

use std::ffi::c_int;
use std::mem::zeroed;

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, status, sys, tag_pointer};
use crate::provider::{
    CreatedSharedReceive, DomainHandle, SharedReceiveAttributes, SharedReceiveHandle,
    SharedReceiveInit, SharedReceiveProvider,
};

impl SharedReceiveProvider for Libibverbs {
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        init: &SharedReceiveInit,
    ) -> Result<CreatedSharedReceive, Errno> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut raw: sys::ibv_srq_init_attr_ex = unsafe { zeroed() };
        raw.srq_context = tag_pointer(init.tag);
        raw.attr.max_wr = init.requests;
        raw.attr.max_sge = init.entries;
        clear_errno();
        let made = match init.xrc {
            // SAFETY: the trait's contract. The longer structure begins with the shorter one.
            None => unsafe { sys::ibv_create_srq(domain.as_ptr(), (&raw mut raw).cast()) },
            Some((xrc_domain, completions)) => {
                raw.comp_mask = sys::constants::IBV_SRQ_INIT_ATTR_TYPE
                    | sys::constants::IBV_SRQ_INIT_ATTR_PD
                    | sys::constants::IBV_SRQ_INIT_ATTR_XRCD
                    | sys::constants::IBV_SRQ_INIT_ATTR_CQ;
                raw.srq_type = sys::constants::IBV_SRQT_XRC;
                raw.pd = domain.as_ptr();
                raw.xrcd = xrc_domain.as_ptr();
                raw.cq = completions.as_ptr();
                // SAFETY: the trait's contract.
                unsafe { sys::ibv_create_srq_ex((*raw.pd).context, &raw mut raw) }
            }
        };
        let handle = SharedReceiveHandle::new(made).ok_or_else(last_errno)?;
        let mut number = 0;
        if init.xrc.is_some() {
            // SAFETY: the queue exists; its number is written to.
            if let Err(errno) = status(unsafe { sys::ibv_get_srq_num(made, &raw mut number) }) {
                // SAFETY: nothing uses the queue.
                unsafe { sys::ibv_destroy_srq(made) };
                return Err(errno);
            }
        }
        Ok(CreatedSharedReceive {
            handle,
            number,
            requests: raw.attr.max_wr,
            entries: raw.attr.max_sge,
        })
    }

    unsafe fn arm_shared_receive_limit(
        &self,
        queue: SharedReceiveHandle,
        limit: u32,
    ) -> Result<(), Errno> {
        let mut attributes = sys::ibv_srq_attr {
            max_wr: 0,
            max_sge: 0,
            srq_limit: limit,
        };
        let mask = sys::constants::IBV_SRQ_LIMIT as c_int;
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_modify_srq(queue.as_ptr(), &raw mut attributes, mask) })
    }

    unsafe fn query_shared_receive(
        &self,
        queue: SharedReceiveHandle,
    ) -> Result<SharedReceiveAttributes, Errno> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_srq_attr = unsafe { zeroed() };
        // SAFETY: the trait's contract; `raw` is written to.
        status(unsafe { sys::ibv_query_srq(queue.as_ptr(), &raw mut raw) })?;
        Ok(SharedReceiveAttributes {
            requests: raw.max_wr,
            entries: raw.max_sge,
            limit: raw.srq_limit,
        })
    }
}
