//! The calls that stand behind the feature `all`: datagrams, memory that has no address in this
//! process, and extended reliable connections (XRC).

#[cfg(feature = "all")]
use std::os::fd::{BorrowedFd, RawFd};

#[cfg(feature = "all")]
use rustix::io;

#[cfg(feature = "all")]
use super::{
    AddressObject, BufferHandle, ContextHandle, DomainHandle, PairHandle, RegisteredRegion,
    XrcDomainHandle,
};
#[cfg(feature = "all")]
use crate::abi::{gid::Gid, queue_pair_attributes::AddressVector};

/// The calls behind the feature `all`. Only this crate can name the trait, so nothing else is a
/// provider.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
#[cfg(feature = "all")]
pub trait AllProvider {
    /// [`ibv_create_ah(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html).
    unsafe fn create_address(
        &self,
        domain: DomainHandle,
        vector: &AddressVector,
    ) -> io::Result<AddressObject>;
    /// [`ibv_attach_mcast(3)`](https://man7.org/linux/man-pages/man3/ibv_attach_mcast.3.html).
    unsafe fn attach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> io::Result<()>;
    /// `ibv_detach_mcast`.
    unsafe fn detach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> io::Result<()>;

    /// `ibv_reg_dmabuf_mr`, on the page of
    /// [`ibv_reg_mr(3)`](https://man7.org/linux/man-pages/man3/ibv_reg_mr.3.html). The region's
    /// addresses begin at `offset`.
    unsafe fn register_dmabuf(
        &self,
        domain: DomainHandle,
        buffer: BorrowedFd<'_>,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> io::Result<RegisteredRegion>;
    /// [`ibv_alloc_dm(3)`](https://man7.org/linux/man-pages/man3/ibv_alloc_dm.3.html), aligned to
    /// this power of two.
    unsafe fn create_buffer(
        &self,
        context: ContextHandle,
        bytes: usize,
        align_log: u32,
    ) -> io::Result<BufferHandle>;
    /// `ibv_memcpy_to_dm`. The bytes are within the buffer.
    unsafe fn write_buffer(&self, buffer: BufferHandle, offset: u64, from: &[u8])
    -> io::Result<()>;
    /// `ibv_memcpy_from_dm`. The bytes are within the buffer.
    unsafe fn read_buffer(
        &self,
        buffer: BufferHandle,
        offset: u64,
        into: &mut [u8],
    ) -> io::Result<()>;
    /// `ibv_reg_dm_mr`. The region's addresses begin at 0.
    unsafe fn register_buffer(
        &self,
        domain: DomainHandle,
        buffer: BufferHandle,
        offset: u64,
        bytes: usize,
        access: u32,
    ) -> io::Result<RegisteredRegion>;

    /// [`ibv_open_xrcd(3)`](https://man7.org/linux/man-pages/man3/ibv_open_xrcd.3.html): the domain of
    /// a file, or one without a file. `flags` are `O_CREAT` and `O_EXCL`.
    unsafe fn open_xrc_domain(
        &self,
        context: ContextHandle,
        file: Option<RawFd>,
        flags: i32,
    ) -> io::Result<XrcDomainHandle>;
    /// [`ibv_create_qp_ex(3)`](https://man7.org/linux/man-pages/man3/ibv_create_qp_ex.3.html) of the
    /// type `IBV_QPT_XRC_RECV`; returns its number too.
    unsafe fn create_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
    ) -> io::Result<(PairHandle, u32)>;
    /// [`ibv_open_qp(3)`](https://man7.org/linux/man-pages/man3/ibv_open_qp.3.html).
    unsafe fn open_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
        number: u32,
    ) -> io::Result<PairHandle>;
}

/// The calls behind the feature `all`; without it there are none. Only this crate can name the trait,
/// so nothing else is a provider.
#[cfg(not(feature = "all"))]
pub trait AllProvider {}
