//! The calls for datagrams: address handles and multicast groups.

use rustix::io::Errno;

use super::{AddressObject, DomainHandle, PairHandle};
use crate::abi::{gid::Gid, queue_pair_attributes::AddressVector};

/// The part of [`Provider`](super::Provider) that is about datagrams.
///
/// # Safety
/// The contract of [`Provider`](super::Provider).
pub trait DatagramProvider {
    /// [`ibv_create_ah(3)`](https://man7.org/linux/man-pages/man3/ibv_create_ah.3.html).
    unsafe fn create_address(
        &self,
        domain: DomainHandle,
        vector: &AddressVector,
    ) -> Result<AddressObject, Errno>;
    /// [`ibv_attach_mcast(3)`](https://man7.org/linux/man-pages/man3/ibv_attach_mcast.3.html).
    unsafe fn attach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> Result<(), Errno>;
    /// `ibv_detach_mcast`.
    unsafe fn detach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> Result<(), Errno>;
}
