//! Address handles and multicast groups.

use rustix::io::Errno;

use super::{Libibverbs, clear_errno, last_errno, pairs::address, status, sys};
use crate::{
    abi::{gid::Gid, queue_pair_attributes::AddressVector},
    provider::{AddressObject, DomainHandle, PairHandle, datagram::DatagramProvider},
};

impl DatagramProvider for Libibverbs {
    unsafe fn create_address(
        &self,
        domain: DomainHandle,
        vector: &AddressVector,
    ) -> Result<AddressObject, Errno> {
        let mut raw = address(vector);
        clear_errno();
        // SAFETY: the trait's contract.
        let made = unsafe { sys::ibv_create_ah(domain.as_ptr(), &raw mut raw) };
        AddressObject::new(made).ok_or_else(last_errno)
    }

    unsafe fn attach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> Result<(), Errno> {
        let group = sys::ibv_gid { raw: group.0 };
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_attach_mcast(pair.as_ptr(), &raw const group, lid) })
    }

    unsafe fn detach_multicast(&self, pair: PairHandle, group: Gid, lid: u16) -> Result<(), Errno> {
        let group = sys::ibv_gid { raw: group.0 };
        // SAFETY: the trait's contract.
        status(unsafe { sys::ibv_detach_mcast(pair.as_ptr(), &raw const group, lid) })
    }
}
