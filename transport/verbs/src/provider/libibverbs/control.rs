//! The calls of the control path.

use std::ffi::{c_int, c_void};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};

use rustix::io::{self, Errno};

use super::{
    Libibverbs, count, device_name, drivers, extended_queue, has_descriptors_to_spare, hot_calls,
    last_errno, minus_one, pairs, queries, status, sys, tag_pointer,
};
use crate::provider::{
    AnyHandle, ChannelHandle, CompletionHandle, CompletionInit, ContextHandle, CreatedPair,
    CreatedSharedReceive, DeviceEntry, DomainHandle, ExtendedQueue, OpenedContext, PairHandle,
    Provider, QueuePairInit, RawEvent, RegionHandle, RegisteredRegion, SharedReceiveHandle,
    SharedReceiveInit, WindowHandle,
};
use crate::{
    AsyncEvent, DeviceAttributes, ForkStatus, GidEntry, PortAttributes, QueriedPair,
    SharedReceiveAttributes, VerbsError, WindowKind, abi::BindInfo,
    abi::attribute_mask::AttributeMask, abi::queue_pair_attributes::QueuePairAttributes,
};

#[cfg(not(feature = "all"))]
impl crate::provider::all::AllProvider for Libibverbs {}

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

    unsafe fn destroy(&self, handle: AnyHandle) -> io::Result<()> {
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

    unsafe fn query_device(&self, context: ContextHandle) -> io::Result<DeviceAttributes> {
        // SAFETY: the trait's contract.
        unsafe { queries::device(context) }
    }

    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> io::Result<PortAttributes> {
        // SAFETY: the trait's contract.
        unsafe { queries::port(context, port) }
    }

    unsafe fn query_gid(
        &self,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> io::Result<Option<GidEntry>> {
        // SAFETY: the trait's contract.
        unsafe { queries::gid(context, port, index) }
    }

    unsafe fn query_pkey(&self, context: ContextHandle, port: u8, index: u16) -> io::Result<u16> {
        let mut pkey = 0;
        // SAFETY: the trait's contract; `pkey` is written to.
        let asked =
            unsafe { sys::ibv_query_pkey(context.as_ptr(), port, index.into(), &raw mut pkey) };
        minus_one(asked)?;
        Ok(u16::from_be(pkey))
    }

    unsafe fn async_event(&self, context: ContextHandle) -> io::Result<Option<RawEvent>> {
        let mut raw = MaybeUninit::<sys::ibv_async_event>::zeroed();
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
            let element = match AsyncEvent::from_raw(event_type, 0) {
                AsyncEvent::QueuePair(..) => (*(*element).qp).qp_num.into(),
                AsyncEvent::CompletionQueueError(_) => (*(*element).cq).cq_context.addr() as u64,
                AsyncEvent::ReceiveQueueError(_) | AsyncEvent::ReceiveQueueLimit(_) => {
                    (*(*element).srq).srq_context.addr() as u64
                }
                AsyncEvent::Port(..) => (*element).port_num as u64,
                _ => 0,
            };
            sys::ibv_ack_async_event(raw.as_mut_ptr());
            Ok(Some(RawEvent {
                event_type,
                element,
            }))
        }
    }

    unsafe fn create_pair(&self, init: &QueuePairInit) -> io::Result<CreatedPair> {
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
        // SAFETY: the trait's contract.
        let pair = unsafe { sys::ibv_create_qp(init.domain.as_ptr(), &raw mut raw) };
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
    ) -> io::Result<()> {
        let mut raw = pairs::attributes(attributes);
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_modify_qp(pair.as_ptr(), &raw mut raw, mask.bits() as c_int) })
    }

    unsafe fn query_pair(&self, pair: PairHandle) -> io::Result<QueriedPair> {
        // SAFETY: the trait's contract.
        unsafe { pairs::query(pair) }
    }

    unsafe fn create_domain(&self, context: ContextHandle) -> io::Result<DomainHandle> {
        // SAFETY: the trait's contract.
        DomainHandle::new(unsafe { sys::ibv_alloc_pd(context.as_ptr()) }).ok_or_else(last_errno)
    }

    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> io::Result<RegisteredRegion> {
        let base: *mut c_void = base.as_ptr().cast();
        // As in the header's macro, only the call with an I/O address passes the optional flags on.
        let required = access & !OPTIONAL_ACCESS;
        let mut raw = ptr::null_mut();
        if access != required {
            let address = base.addr() as u64;
            // SAFETY: the trait's contract.
            raw = unsafe { sys::ibv_reg_mr_iova2(domain.as_ptr(), base, bytes, address, access) };
        }
        // The plain call serves without optional rights, and if the library does not know the call
        // for them (before rdma-core 28).
        if raw.is_null() && (access == required || last_errno() == Errno::OPNOTSUPP) {
            // SAFETY: the trait's contract.
            raw = unsafe { sys::ibv_reg_mr(domain.as_ptr(), base, bytes, required as c_int) };
        }
        // SAFETY: as the library has returned it.
        unsafe { registered(raw) }
    }

    unsafe fn create_window(
        &self,
        domain: DomainHandle,
        kind: WindowKind,
    ) -> io::Result<(WindowHandle, u32)> {
        let kind = match kind {
            WindowKind::One => sys::constants::IBV_MW_TYPE_1,
            WindowKind::Two => sys::constants::IBV_MW_TYPE_2,
        };
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_alloc_mw(domain.as_ptr(), kind) };
        let handle = WindowHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the window exists.
        Ok((handle, unsafe { (*raw).rkey }))
    }

    unsafe fn bind_window(
        &self,
        pair: PairHandle,
        window: WindowHandle,
        wr_id: u64,
        flags: u32,
        info: &BindInfo,
    ) -> io::Result<u32> {
        let mut request = sys::ibv_mw_bind {
            wr_id,
            send_flags: flags,
            bind_info: *info,
        };
        let window: *mut sys::ibv_mw = window.as_ptr();
        // SAFETY: the trait's contract.
        unsafe {
            status(sys::ibv_bind_mw(pair.as_ptr(), window, &raw mut request))?;
            Ok((*window).rkey)
        }
    }

    unsafe fn set_window_key(&self, window: WindowHandle, key: u32) {
        // SAFETY: the trait's contract; the field is the caller's to write (ibv_post_send(3), of a
        // binding), and its window's owner alone makes calls for it.
        unsafe { (*window.as_ptr::<sys::ibv_mw>()).rkey = key };
    }

    unsafe fn create_channel(&self, context: ContextHandle) -> io::Result<(ChannelHandle, RawFd)> {
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_create_comp_channel(context.as_ptr()) };
        let handle = ChannelHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the channel exists.
        Ok((handle, unsafe { (*raw).fd }))
    }

    unsafe fn channel_event(&self, channel: ChannelHandle) -> io::Result<Option<u64>> {
        let mut queue = ptr::null_mut();
        let mut tag = ptr::null_mut();
        // SAFETY: the trait's contract; both are written to.
        let asked =
            unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &raw mut queue, &raw mut tag) };
        match minus_one(asked) {
            Ok(()) => Ok(Some(tag.addr() as u64)),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    unsafe fn create_completion_queue(
        &self,
        init: &CompletionInit,
    ) -> io::Result<(CompletionHandle, u32)> {
        let entries = c_int::try_from(init.entries).map_err(|_| Errno::INVAL)?;
        let vector = c_int::try_from(init.vector).map_err(|_| Errno::INVAL)?;
        let tag = tag_pointer(init.tag);
        let channel = init.channel.map_or(ptr::null_mut(), ChannelHandle::as_ptr);
        // SAFETY: the trait's contract. The tag is never followed as a pointer.
        let raw =
            unsafe { sys::ibv_create_cq(init.context.as_ptr(), entries, tag, channel, vector) };
        let handle = CompletionHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the queue exists.
        Ok((handle, count(unsafe { (*raw).cqe })))
    }

    unsafe fn create_extended_queue(&self, init: &CompletionInit) -> io::Result<ExtendedQueue> {
        // SAFETY: the trait's contract.
        unsafe { extended_queue::create(init) }
    }

    unsafe fn read_clock(&self, context: ContextHandle) -> io::Result<u64> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_values_ex = unsafe { zeroed() };
        raw.comp_mask = sys::constants::IBV_VALUES_MASK_RAW_CLOCK;
        // SAFETY: the trait's contract; `raw` is written to.
        status(unsafe { sys::ibv_query_rt_values_ex(context.as_ptr(), &raw mut raw) })?;
        if raw.comp_mask & sys::constants::IBV_VALUES_MASK_RAW_CLOCK == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // The field holds ticks, despite its name.
        Ok(raw.raw_clock.tv_nsec as u64)
    }

    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32) {
        // SAFETY: the trait's contract.
        unsafe { sys::ibv_ack_cq_events(queue.as_ptr(), events) };
    }

    unsafe fn create_shared_receive(
        &self,
        init: &SharedReceiveInit,
    ) -> io::Result<CreatedSharedReceive> {
        // SAFETY: integers and pointers, for which zeros are a value.
        let mut raw: sys::ibv_srq_init_attr_ex = unsafe { zeroed() };
        raw.srq_context = tag_pointer(init.tag);
        raw.attr.max_wr = init.requests;
        raw.attr.max_sge = init.entries;
        let made = match init.xrc {
            // SAFETY: the trait's contract. The longer structure begins with the shorter one.
            None => unsafe { sys::ibv_create_srq(init.domain.as_ptr(), (&raw mut raw).cast()) },
            Some((xrc_domain, completions)) => {
                raw.comp_mask = sys::constants::IBV_SRQ_INIT_ATTR_TYPE
                    | sys::constants::IBV_SRQ_INIT_ATTR_PD
                    | sys::constants::IBV_SRQ_INIT_ATTR_XRCD
                    | sys::constants::IBV_SRQ_INIT_ATTR_CQ;
                raw.srq_type = sys::constants::IBV_SRQT_XRC;
                raw.pd = init.domain.as_ptr();
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
    ) -> io::Result<()> {
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
    ) -> io::Result<SharedReceiveAttributes> {
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

/// # Safety
/// A region of the library, or null.
pub(super) unsafe fn registered(raw: *mut sys::ibv_mr) -> io::Result<RegisteredRegion> {
    let handle = RegionHandle::new(raw).ok_or_else(last_errno)?;
    // SAFETY: the region exists.
    let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
    Ok(RegisteredRegion { handle, lkey, rkey })
}

/// From `IBV_ACCESS_OPTIONAL_FIRST` to the last bit reserved for optional rights.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;
