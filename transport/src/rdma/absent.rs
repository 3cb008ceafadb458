//! The types of a build without RDMA. They have no values, so none of this is ever called, and other
//! modules need no conditions.

#[path = "port_counters.rs"]
mod port_counters;

use std::sync::Arc;

use ibex_protocol::{framing::Carriage, transfer::rendezvous::RemoteMemory};
use ibex_ring::memory::{LargeLease, MappedBytes, MemoryError, RingLease};

pub(crate) use port_counters::PortCounts;

/// A node's objects on a device port.
#[derive(Debug)]
pub enum RdmaPort {}

/// A queue pair for a session.
#[derive(Debug)]
pub enum PreparedPair {}

/// A ring that a device sends from.
#[derive(Debug)]
pub enum RegisteredRing {}

/// A message that a device sends from.
#[derive(Debug)]
pub enum RegisteredMessage {}

/// A place for a block that a port may grant.
#[derive(Debug)]
pub(crate) enum LandingPlace {}

impl RdmaPort {
    pub(crate) fn engine(&self) -> usize {
        match *self {}
    }

    pub(crate) fn device(&self) -> &str {
        match *self {}
    }

    pub(crate) fn port(&self) -> u8 {
        match *self {}
    }

    pub(crate) fn polling(&self) -> &str {
        match *self {}
    }

    pub(crate) fn counts(&self) -> PortCounts {
        match *self {}
    }

    pub(crate) fn is_lost(&self) -> bool {
        match *self {}
    }

    pub(crate) fn is_listed(&self) -> bool {
        match *self {}
    }

    pub(crate) fn has_landing_places(&self) -> bool {
        match *self {}
    }

    pub(crate) fn register_ring(&self, _: &mut RingLease) -> Result<(), MemoryError> {
        match *self {}
    }

    pub(crate) fn register_message(&self, _: &mut LargeLease, _: usize) -> Result<(), MemoryError> {
        match *self {}
    }

    pub(crate) fn register_grant(&self, _: &mut LargeLease, _: usize) -> Result<(), MemoryError> {
        match *self {}
    }

    pub(crate) fn granted_memory(&self, _: &LargeLease, _: usize) -> Option<RemoteMemory> {
        match *self {}
    }

    pub(crate) fn registered_ring(&self, _: &RingLease) -> Option<Arc<RegisteredRing>> {
        match *self {}
    }

    pub(crate) fn register_file(
        &self,
        _: &MappedBytes,
    ) -> Result<Arc<RegisteredMessage>, MemoryError> {
        match *self {}
    }

    pub(crate) fn file_to_send(
        &self,
        _: &MappedBytes,
        _: Option<Arc<RegisteredMessage>>,
    ) -> Option<Arc<RegisteredMessage>> {
        match *self {}
    }

    pub(crate) fn registered_message(&self, _: &LargeLease) -> Option<Arc<RegisteredMessage>> {
        match *self {}
    }

    pub(crate) fn ring_to_send(
        &self,
        _: &RingLease,
        _: Option<Arc<RegisteredRing>>,
    ) -> Result<Arc<RegisteredRing>, MemoryError> {
        match *self {}
    }

    pub(crate) fn message_to_send(
        &self,
        _: &LargeLease,
        _: usize,
        _: Option<Arc<RegisteredMessage>>,
    ) -> Result<Arc<RegisteredMessage>, MemoryError> {
        match *self {}
    }
}

impl PreparedPair {
    pub(crate) fn rdma_port(&self) -> &Arc<RdmaPort> {
        match *self {}
    }

    pub(crate) fn carriage(&self) -> Carriage {
        match *self {}
    }

    pub(crate) fn grants_memory(&self) -> bool {
        match *self {}
    }

    pub(crate) fn ticket(&self) -> u64 {
        match *self {}
    }

    pub(crate) fn dialed(&self) -> bool {
        match *self {}
    }
}

impl LandingPlace {
    pub(crate) fn take(rdma_port: &Arc<RdmaPort>) -> Option<Self> {
        match **rdma_port {}
    }

    pub(crate) fn register(
        &self,
        _: &mut LargeLease,
        _: usize,
    ) -> Result<RemoteMemory, MemoryError> {
        match *self {}
    }

    pub(crate) fn is_of(&self, _: &Arc<RdmaPort>) -> bool {
        match *self {}
    }
}
