//! The system's libibverbs, by way of bindings that look for it when the program starts.
//!
//! Each method is one verb. The library's inline functions go through the context's table
//! of operations; for the data path that table's own entries are handed out, so that a
//! call costs one indirection less than through a wrapper.

mod drivers;
mod extended_queue;

use std::ffi::{CStr, c_int, c_void};
use std::iter;
use std::mem::{MaybeUninit, offset_of, size_of, transmute, zeroed};
use std::os::fd::RawFd;
use std::ptr::{self, NonNull};
use std::sync::{PoisonError, RwLock};

use ibex_base::fork;
use rdma_sys as sys;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;

use super::{
    ChannelHandle, ClockAttributes, CompletionHandle, ContextHandle, CreatedPair, DeviceAttributes,
    DeviceEntry, DomainHandle, ExtendedInit, ExtendedQueue, HotCalls, OpenedContext, PairHandle,
    Provider, QueuePairInit, QueuePairSizes, RawEvent, RegionHandle, RegisteredRegion,
    SharedReceiveHandle, Transport, sealed,
};
use crate::{
    abi::{
        PollAttributes, RecvWr, SendWr, Sge, Wc,
        gid::{Gid, GidEntry, GidType},
        port::{LinkLayer, Mtu, PortAttributes, PortState},
        queue_pair_state::{AddressVector, AttributeMask, QueuePairAttributes},
    },
    device::{async_event::EventElement, fork_report::ForkStatus},
    error::VerbsError,
};

/// The system's library.
#[derive(Debug)]
pub struct Libibverbs(());

impl Libibverbs {
    /// Finds the library.
    ///
    /// # Errors
    /// [`VerbsError::NoLibrary`], with what the dynamic linker says;
    /// [`VerbsError::UsedAfterFork`].
    pub fn load() -> Result<Self, VerbsError> {
        fork::check(|| "libibverbs, as it is loaded here,".to_owned())?;
        // SAFETY: the call takes a number and returns a static string, or null if the bindings
        // found no library to ask.
        let known = unsafe { sys::ibv_node_type_str(sys::ibv_node_type::IBV_NODE_CA) };
        if known.is_null() {
            return Err(VerbsError::NoLibrary {
                reason: linker_reason(),
            });
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

    fn fork_status(&self) -> ForkStatus {
        // SAFETY: the call takes nothing and returns a number. A library before rdma-core 35 does
        // not have it; the bindings then answer that fork support is not initialized.
        ForkStatus::from_raw(unsafe { sys::ibv_is_fork_initialized() } as u32)
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

    unsafe fn close(&self, context: ContextHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_close_device(context.as_ptr()) })
    }

    unsafe fn query_device(&self, context: ContextHandle) -> Result<DeviceAttributes, Errno> {
        // SAFETY: integers and byte arrays, for which zeros are a value.
        let mut raw: sys::ibv_device_attr = unsafe { zeroed() };
        // SAFETY: the trait's contract; `raw` is written to.
        status(unsafe { sys::ibv_query_device(context.as_ptr(), &raw mut raw) })?;
        let firmware: Vec<u8> = raw
            .fw_ver
            .iter()
            .map(|byte| *byte as u8)
            .take_while(|byte| *byte != 0)
            .collect();
        Ok(DeviceAttributes {
            firmware: String::from_utf8_lossy(&firmware).into_owned(),
            node_guid: u64::from_be(raw.node_guid),
            vendor_id: raw.vendor_id,
            vendor_part_id: raw.vendor_part_id,
            max_queue_pairs: count(raw.max_qp),
            max_queue_pair_requests: count(raw.max_qp_wr),
            max_entries: count(raw.max_sge),
            max_completion_queues: count(raw.max_cq),
            max_completions: count(raw.max_cqe),
            // SAFETY: the context is open (the trait's contract).
            completion_vectors: count(unsafe {
                (*context.as_ptr::<sys::ibv_context>()).num_comp_vectors
            }),
            max_memory_regions: count(raw.max_mr),
            max_memory_region_bytes: raw.max_mr_size,
            max_shared_receive_queues: count(raw.max_srq),
            max_shared_receive_requests: count(raw.max_srq_wr),
            max_shared_receive_entries: count(raw.max_srq_sge),
            max_responder_resources: count(raw.max_qp_rd_atom),
            max_initiator_depth: count(raw.max_qp_init_rd_atom),
            ports: raw.phys_port_cnt,
        })
    }

    unsafe fn query_port(&self, context: ContextHandle, port: u8) -> Result<PortAttributes, Errno> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_port_attr = unsafe { zeroed() };
        // SAFETY: the trait's contract; `raw` is written to.
        status(unsafe { sys::ibv_query_port(context.as_ptr(), port, &raw mut raw) })?;
        let link_layer = LinkLayer::from_raw(raw.link_layer);
        Ok(PortAttributes {
            state: PortState::from_raw(raw.state as u32),
            // A port that is down may have no MTU at all.
            max_mtu: Mtu::from_raw(raw.max_mtu as u32).unwrap_or(Mtu::Bytes256),
            active_mtu: Mtu::from_raw(raw.active_mtu as u32).unwrap_or(Mtu::Bytes256),
            gid_table_len: count(raw.gid_tbl_len),
            pkey_table_len: raw.pkey_tbl_len,
            lid: raw.lid,
            max_message_bytes: raw.max_msg_sz,
            link_layer,
            needs_global_route: link_layer != LinkLayer::InfiniBand
                || raw.flags & GRH_REQUIRED != 0,
        })
    }

    unsafe fn query_gid(
        &self,
        context: ContextHandle,
        port: u8,
        index: u32,
    ) -> Result<Option<GidEntry>, Errno> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_gid_entry = unsafe { zeroed() };
        // SAFETY: the trait's contract; `raw` is written to.
        let asked =
            unsafe { sys::ibv_query_gid_ex(context.as_ptr(), port.into(), index, &raw mut raw, 0) };
        match status(asked) {
            Ok(()) => {}
            // The answers of the kernel and of older libraries for an empty slot.
            Err(Errno::NODATA | Errno::INVAL | Errno::NOENT) => return Ok(None),
            // The answers of a library or kernel that is older than the call (rdma-core 32).
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                // SAFETY: the trait's contract.
                return unsafe { query_gid_in_parts(context, port, index) };
            }
            Err(errno) => return Err(errno),
        }
        // SAFETY: every bit pattern is a value of both fields of the union.
        let gid = Gid(unsafe { raw.gid.raw });
        Ok((!gid.is_empty()).then(|| GidEntry {
            index,
            gid,
            gid_type: GidType::from_raw(raw.gid_type),
            interface_index: raw.ndev_ifindex,
        }))
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
        // SAFETY:
        // 1. The kind is read as a number: the bindings declare a Rust enumeration, and a
        //    kernel may know kinds that it does not.
        // 2. The kind determines which element is set. The object that it points to exists until
        //    the event is acknowledged, below.
        unsafe {
            let event_type = (&raw const (*raw.as_ptr()).event_type).cast::<u32>().read();
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

    unsafe fn create_domain(&self, context: ContextHandle) -> Result<DomainHandle, Errno> {
        clear_errno();
        // SAFETY: the trait's contract.
        DomainHandle::new(unsafe { sys::ibv_alloc_pd(context.as_ptr()) }).ok_or_else(last_errno)
    }

    unsafe fn destroy_domain(&self, domain: DomainHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_dealloc_pd(domain.as_ptr()) })
    }

    unsafe fn register(
        &self,
        domain: DomainHandle,
        base: NonNull<u8>,
        bytes: usize,
        access: u32,
    ) -> Result<RegisteredRegion, Errno> {
        let base: *mut c_void = base.as_ptr().cast();
        clear_errno();
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
            clear_errno();
            // SAFETY: the trait's contract.
            raw = unsafe { sys::ibv_reg_mr(domain.as_ptr(), base, bytes, required as c_int) };
        }
        let handle = RegionHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the region exists.
        let (lkey, rkey) = unsafe { ((*raw).lkey, (*raw).rkey) };
        Ok(RegisteredRegion { handle, lkey, rkey })
    }

    unsafe fn deregister(&self, region: RegionHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_dereg_mr(region.as_ptr()) })
    }

    unsafe fn create_channel(
        &self,
        context: ContextHandle,
    ) -> Result<(ChannelHandle, RawFd), Errno> {
        clear_errno();
        // SAFETY: the trait's contract.
        let raw = unsafe { sys::ibv_create_comp_channel(context.as_ptr()) };
        let handle = ChannelHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the channel exists.
        Ok((handle, unsafe { (*raw).fd }))
    }

    unsafe fn destroy_channel(&self, channel: ChannelHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_destroy_comp_channel(channel.as_ptr()) })
    }

    unsafe fn channel_event(&self, channel: ChannelHandle) -> Result<bool, Errno> {
        let mut queue = ptr::null_mut();
        let mut tag = ptr::null_mut();
        clear_errno();
        // SAFETY: the trait's contract; both are written to.
        let asked =
            unsafe { sys::ibv_get_cq_event(channel.as_ptr(), &raw mut queue, &raw mut tag) };
        match minus_one(asked) {
            Ok(()) => Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    unsafe fn create_completion_queue(
        &self,
        context: ContextHandle,
        entries: u32,
        channel: Option<ChannelHandle>,
        vector: u32,
        tag: u64,
    ) -> Result<(CompletionHandle, u32), Errno> {
        let entries = c_int::try_from(entries).map_err(|_| Errno::INVAL)?;
        let vector = c_int::try_from(vector).map_err(|_| Errno::INVAL)?;
        let tag = tag_pointer(tag);
        let channel = channel.map_or(ptr::null_mut(), ChannelHandle::as_ptr);
        clear_errno();
        // SAFETY: the trait's contract. The tag is never followed as a pointer.
        let raw = unsafe { sys::ibv_create_cq(context.as_ptr(), entries, tag, channel, vector) };
        let handle = CompletionHandle::new(raw).ok_or_else(last_errno)?;
        // SAFETY: the queue exists.
        Ok((handle, count(unsafe { (*raw).cqe })))
    }

    unsafe fn create_extended_queue(
        &self,
        context: ContextHandle,
        init: &ExtendedInit,
    ) -> Result<ExtendedQueue, Errno> {
        // SAFETY: the trait's contract.
        unsafe { extended_queue::create(context, init) }
    }

    unsafe fn query_clock(&self, context: ContextHandle) -> Result<Option<ClockAttributes>, Errno> {
        // SAFETY: integers and byte arrays, for which zeros are a value.
        let mut raw: sys::ibv_device_attr_ex = unsafe { zeroed() };
        // SAFETY: the trait's contract; `raw` is written to, and the input may be null.
        status(unsafe { sys::ibv_query_device_ex(context.as_ptr(), ptr::null(), &raw mut raw) })?;
        let clock = ClockAttributes {
            kilohertz: raw.hca_core_clock,
            mask: raw.completion_timestamp_mask,
        };
        Ok((clock.kilohertz != 0 && clock.mask != 0).then_some(clock))
    }

    unsafe fn read_clock(&self, context: ContextHandle) -> Result<u64, Errno> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_values_ex = unsafe { zeroed() };
        raw.comp_mask = sys::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
        // SAFETY: the trait's contract; `raw` is written to.
        status(unsafe { sys::ibv_query_rt_values_ex(context.as_ptr(), &raw mut raw) })?;
        if raw.comp_mask & sys::ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0 == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        // The field holds ticks, despite its name.
        Ok(raw.raw_clock.tv_nsec as u64)
    }

    unsafe fn acknowledge(&self, queue: CompletionHandle, events: u32) {
        // SAFETY: the trait's contract.
        unsafe { sys::ibv_ack_cq_events(queue.as_ptr(), events) };
    }

    unsafe fn destroy_completion_queue(&self, queue: CompletionHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_destroy_cq(queue.as_ptr()) })
    }

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
        let mask = sys::ibv_srq_attr_mask::IBV_SRQ_LIMIT.0 as c_int;
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_modify_srq(queue.as_ptr(), &raw mut attributes, mask) })
    }

    unsafe fn destroy_shared_receive(&self, queue: SharedReceiveHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_destroy_srq(queue.as_ptr()) })
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
        raw.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        clear_errno();
        // SAFETY: the trait's contract.
        let pair = unsafe { sys::ibv_create_qp(domain.as_ptr(), &raw mut raw) };
        let handle = PairHandle::new(pair).ok_or_else(last_errno)?;
        Ok(CreatedPair {
            handle,
            // SAFETY: the queue pair exists.
            number: unsafe { (*pair).qp_num },
            sizes: QueuePairSizes {
                send_requests: raw.cap.max_send_wr,
                receive_requests: raw.cap.max_recv_wr,
                send_entries: raw.cap.max_send_sge,
                receive_entries: raw.cap.max_recv_sge,
                inline_bytes: raw.cap.max_inline_data,
            },
        })
    }

    unsafe fn modify_pair(
        &self,
        pair: PairHandle,
        attributes: &QueuePairAttributes,
        mask: AttributeMask,
    ) -> Result<(), Errno> {
        // SAFETY: integers, for which zeros are a value.
        let mut raw: sys::ibv_qp_attr = unsafe { zeroed() };
        raw.qp_state = attributes.state.to_raw() as _;
        raw.path_mtu = attributes.path_mtu.to_raw() as _;
        raw.rq_psn = attributes.receive_sequence;
        raw.sq_psn = attributes.send_sequence;
        raw.dest_qp_num = attributes.destination;
        raw.qp_access_flags = attributes.access_flags;
        raw.ah_attr = address(&attributes.address);
        raw.pkey_index = attributes.pkey_index;
        raw.max_rd_atomic = attributes.initiator_depth;
        raw.max_dest_rd_atomic = attributes.responder_resources;
        raw.min_rnr_timer = attributes.min_rnr_timer;
        raw.port_num = attributes.port;
        raw.timeout = attributes.timeout;
        raw.retry_cnt = attributes.retry_count;
        raw.rnr_retry = attributes.rnr_retry;
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_modify_qp(pair.as_ptr(), &raw mut raw, mask.bits() as c_int) })
    }

    unsafe fn destroy_pair(&self, pair: PairHandle) -> Result<(), Errno> {
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_destroy_qp(pair.as_ptr()) })
    }
}

/// `IBV_QPF_GRH_REQUIRED`.
const GRH_REQUIRED: u8 = 1;
/// From `IBV_ACCESS_OPTIONAL_FIRST` to the last bit reserved for optional rights.
const OPTIONAL_ACCESS: u32 = 0x3ff0_0000;

/// Reads a slot in the way of libraries before rdma-core 32: the value, then its type. These
/// libraries do not tell which interface the GID belongs to.
///
/// # Safety
/// The contract of `Provider::query_gid`.
unsafe fn query_gid_in_parts(
    context: ContextHandle,
    port: u8,
    index: u32,
) -> Result<Option<GidEntry>, Errno> {
    let place = c_int::try_from(index).map_err(|_| Errno::INVAL)?;
    let mut raw = sys::ibv_gid { raw: [0; 16] };
    clear_errno();
    // SAFETY: the caller's contract; `raw` is written to.
    minus_one(unsafe { sys::ibv_query_gid(context.as_ptr(), port, place, &raw mut raw) })?;
    // SAFETY: every bit pattern is a value of both fields of the union.
    let gid = Gid(unsafe { raw.raw });
    let mut version = 0;
    // SAFETY: the caller's contract; `version` is written to.
    let asked = unsafe { sys::ibv_query_gid_type(context.as_ptr(), port, index, &raw mut version) };
    let gid_type = match (asked, version) {
        (0, sys::IBV_GID_TYPE_SYSFS_ROCE_V2) => GidType::RoceV2,
        (0, _) => GidType::RoceV1,
        _ => GidType::Unknown(u32::MAX),
    };
    Ok((!gid.is_empty()).then_some(GidEntry {
        index,
        gid,
        gid_type,
        interface_index: 0,
    }))
}

fn hot_calls(ops: &sys::ibv_context_ops) -> Option<HotCalls> {
    // SAFETY: each pair of types is the same C function type: thin pointers to structures
    // whose layouts are equal (asserted below), and plain integers. A device without
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

fn address(vector: &AddressVector) -> sys::ibv_ah_attr {
    // SAFETY: integers, for which zeros are a value.
    let mut raw: sys::ibv_ah_attr = unsafe { zeroed() };
    raw.dlid = vector.lid;
    raw.sl = vector.service_level;
    raw.port_num = vector.port;
    if let Some(route) = &vector.route {
        raw.is_global = 1;
        raw.grh.dgid = sys::ibv_gid {
            raw: route.destination.0,
        };
        raw.grh.sgid_index = route.source_index;
        raw.grh.hop_limit = route.hop_limit;
        raw.grh.traffic_class = route.traffic_class;
    }
    raw
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

fn linker_reason() -> String {
    // SAFETY: loads the library that the bindings would have loaded, with the same flags,
    // to hear why they could not; the text is copied before another call can change it.
    unsafe {
        let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL;
        if !libc::dlopen(c"libibverbs.so.1".as_ptr(), flags).is_null() {
            return "it was installed after this program started".to_owned();
        }
        let reason = libc::dlerror();
        if reason.is_null() {
            return "the dynamic linker does not say why".to_owned();
        }
        CStr::from_ptr(reason).to_string_lossy().into_owned()
    }
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

macro_rules! same_layout {
    ($ours:ty, $theirs:ty { $($field:ident = $their_field:ident),* $(,)? }) => {
        const _: () = {
            assert!(size_of::<$ours>() == size_of::<$theirs>());
            assert!(align_of::<$ours>() == align_of::<$theirs>());
            $(assert!(offset_of!($ours, $field) == offset_of!($theirs, $their_field));)*
        };
    };
}

same_layout!(Sge, sys::ibv_sge { addr = addr, length = length, lkey = lkey });
same_layout!(SendWr, sys::ibv_send_wr {
    wr_id = wr_id,
    next = next,
    sg_list = sg_list,
    num_sge = num_sge,
    opcode = opcode,
    send_flags = send_flags,
    imm_data = imm_data_invalidated_rkey_union,
    remote_addr = wr,
});
const _: () = assert!(
    offset_of!(SendWr, rkey) == offset_of!(sys::ibv_send_wr, wr) + offset_of!(sys::rdma_t, rkey)
);
same_layout!(RecvWr, sys::ibv_recv_wr {
    wr_id = wr_id,
    next = next,
    sg_list = sg_list,
    num_sge = num_sge,
});
same_layout!(Wc, sys::ibv_wc {
    wr_id = wr_id,
    status = status,
    opcode = opcode,
    vendor_err = vendor_err,
    byte_len = byte_len,
    imm_data = imm_data_invalidated_rkey_union,
    qp_num = qp_num,
    src_qp = src_qp,
    wc_flags = wc_flags,
    pkey_index = pkey_index,
    slid = slid,
    sl = sl,
    dlid_path_bits = dlid_path_bits,
});

same_layout!(PollAttributes, sys::ibv_poll_cq_attr { comp_mask = comp_mask });
const _: () = assert!(size_of::<sys::ibv_wc_status::Type>() == size_of::<u32>());

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
