//! Shared receive queues.

use std::ffi::c_int;
use std::mem::zeroed;

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, status, sys, tag_pointer};
use crate::provider::{
    DomainHandle, SharedReceiveAttributes, SharedReceiveHandle, SharedReceiveProvider,
};

impl SharedReceiveProvider for Libibverbs {
    unsafe fn create_shared_receive(
        &self,
        domain: DomainHandle,
        requests: u32,
        entries: u32,
        tag: u64,
    ) -> Result<(SharedReceiveHandle, u32, u32), Errno> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut init: sys::ibv_srq_init_attr = unsafe { zeroed() };
        init.srq_context = tag_pointer(tag);
        init.attr.max_wr = requests;
        init.attr.max_sge = entries;
        clear_errno();
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_create_srq(domain.as_ptr(), &raw mut init) };
        let handle = SharedReceiveHandle::new(raw).ok_or_else(last_errno)?;
        Ok((handle, init.attr.max_wr, init.attr.max_sge))
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
