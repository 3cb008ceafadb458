//! The calls behind the feature `all`.

use std::ffi::c_int;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::ptr;

use rustix::io::{self, Errno};

use super::{Libibverbs, control::registered, last_errno, pairs::address, status, sys};
use crate::provider::{
    AddressObject, BufferHandle, ContextHandle, DomainHandle, PairHandle, RegisteredRegion,
    XrcDomainHandle,
};
use crate::{AddressVector, Gid, QueuePairKind, abi::access_flags, provider::all::AllProvider};

impl AllProvider for Libibverbs {
    unsafe fn create_address(
        &self,
        domain: DomainHandle,
        vector: &AddressVector,
    ) -> io::Result<AddressObject> {
        let mut raw = address(vector);
        // SAFETY: the trait's contract.
        let made = unsafe { sys::ibv_create_ah(domain.as_ptr(), &raw mut raw) };
        AddressObject::new(made).ok_or_else(last_errno)
    }

    unsafe fn attach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> io::Result<()> {
        let group = sys::ibv_gid { raw: group.0 };
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_attach_mcast(pair.as_ptr(), &raw const group, lid) })
    }

    unsafe fn detach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> io::Result<()> {
        let group = sys::ibv_gid { raw: group.0 };
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_detach_mcast(pair.as_ptr(), &raw const group, lid) })
    }

    unsafe fn register_dmabuf(
        &self,
        domain: DomainHandle,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> io::Result<RegisteredRegion> {
        let (fd, access) = (buffer.as_raw_fd(), access as c_int);
        // SAFETY: the trait's contract.
        unsafe {
            registered(sys::ibv_reg_dmabuf_mr(
                domain.as_ptr(),
                offset,
                bytes,
                offset,
                fd,
                access,
            ))
        }
    }

    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        align_log: u32,
    ) -> io::Result<BufferHandle> {
        let mut attributes = sys::ibv_alloc_dm_attr {
            length: bytes,
            log_align_req: align_log,
            comp_mask: 0,
        };
        // SAFETY: the trait's contract.
        let made = unsafe { sys::ibv_alloc_dm(context.as_ptr(), &raw mut attributes) };
        BufferHandle::new(made).ok_or_else(last_errno)
    }

    unsafe fn write_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        from: &[u8],
    ) -> io::Result<()> {
        let raw: *mut sys::ibv_dm = buffer.as_ptr();
        // SAFETY: the trait's contract.
        unsafe {
            let call = (*raw).memcpy_to_dm.ok_or(Errno::OPNOTSUPP)?;
            status(call(raw, offset, from.as_ptr().cast(), from.len()))
        }
    }

    unsafe fn read_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<()> {
        let raw: *mut sys::ibv_dm = buffer.as_ptr();
        // SAFETY: the trait's contract.
        unsafe {
            let call = (*raw).memcpy_from_dm.ok_or(Errno::OPNOTSUPP)?;
            status(call(into.as_mut_ptr().cast(), raw, offset, into.len()))
        }
    }

    unsafe fn register_buffer(
        &self,
        domain: DomainHandle,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> io::Result<RegisteredRegion> {
        let access = access | access_flags::ZERO_BASED;
        // SAFETY: the trait's contract.
        unsafe {
            registered(sys::ibv_reg_dm_mr(
                domain.as_ptr(),
                buffer.as_ptr(),
                offset,
                bytes,
                access,
            ))
        }
    }

    unsafe fn open_xrc_domain(
        &self,
        context: ContextHandle,
        file: Option<RawFd>,
        flags: i32,
    ) -> io::Result<XrcDomainHandle> {
        let mut init = sys::ibv_xrcd_init_attr {
            comp_mask: sys::constants::IBV_XRCD_INIT_ATTR_FD
                | sys::constants::IBV_XRCD_INIT_ATTR_OFLAGS,
            fd: file.unwrap_or(-1),
            oflags: flags,
        };
        // SAFETY: the trait's contract.
        let made = unsafe { sys::ibv_open_xrcd(context.as_ptr(), &raw mut init) };
        XrcDomainHandle::new(made).ok_or_else(last_errno)
    }

    unsafe fn create_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
    ) -> io::Result<(PairHandle, u32)> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut init: sys::ibv_qp_init_attr_ex = unsafe { zeroed() };
        init.qp_type = QueuePairKind::XrcReceive.to_raw();
        init.comp_mask = sys::constants::IBV_QP_INIT_ATTR_XRCD;
        init.xrcd = domain.as_ptr();
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
    ) -> io::Result<PairHandle> {
        let mut open = sys::ibv_qp_open_attr {
            comp_mask: sys::constants::IBV_QP_OPEN_ATTR_NUM
                | sys::constants::IBV_QP_OPEN_ATTR_XRCD
                | sys::constants::IBV_QP_OPEN_ATTR_TYPE,
            qp_num: number,
            xrcd: domain.as_ptr(),
            qp_context: ptr::null_mut(),
            qp_type: QueuePairKind::XrcReceive.to_raw(),
        };
        // SAFETY: the trait's contract.
        let made = unsafe { sys::ibv_open_qp(context.as_ptr(), &raw mut open) };
        PairHandle::new(made).ok_or_else(last_errno)
    }
}
