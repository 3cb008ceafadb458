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

/// Memory that a peer may write messages to.
#[derive(Debug)]
pub(crate) enum GrantedMemory {}

/// A place for a block that a port may grant.
#[derive(Debug)]
pub(crate) enum EagerBlockPlace {}

/// Gives a type without values methods, which are never called.
macro_rules! never_called {
    ($type:ident: $(fn $name:ident(&self $(, $argument:ty)*) -> $output:ty;)*) => {
        impl $type {
            $(pub(crate) fn $name(&self $(, _: $argument)*) -> $output {
                match *self {}
            })*
        }
    };
}

never_called! { RdmaPort:
    fn engine(&self) -> usize;
    fn device(&self) -> &str;
    fn port(&self) -> u8;
    fn polling(&self) -> &str;
    fn counts(&self) -> PortCounts;
    fn is_lost(&self) -> bool;
    fn is_listed(&self) -> bool;
    fn has_eager_block_places(&self) -> bool;
    fn register_ring(&self, &mut RingLease) -> Result<(), MemoryError>;
    fn register_message(&self, &mut LargeLease, usize) -> Result<(), MemoryError>;
    fn register_grant(&self, &mut LargeLease, usize) -> Result<(), MemoryError>;
    fn granted_memory(&self, &LargeLease, usize) -> Option<RemoteMemory>;
    fn registered_ring(&self, &RingLease) -> Option<Arc<RegisteredRing>>;
    fn register_mapped(&self, &MappedBytes) -> Result<Option<Arc<RegisteredMessage>>, MemoryError>;
    fn grant_mapped(&self, &MappedBytes, usize) -> Result<Option<GrantedMemory>, MemoryError>;
    fn registers_mapped(&self, &MappedBytes, bool) -> bool;
    fn registered_mapped(&self, &MappedBytes, Option<&Arc<RegisteredMessage>>) -> Option<Arc<RegisteredMessage>>;
    fn message_target(&self, &LargeLease, usize) -> Option<Arc<RegisteredMessage>>;
    fn registered_message(&self, &LargeLease) -> Option<Arc<RegisteredMessage>>;
    fn ring_to_send(&self, &RingLease, Option<&Arc<RegisteredRing>>) -> Result<Arc<RegisteredRing>, MemoryError>;
    fn message_to_send(&self, &LargeLease, usize, Option<&Arc<RegisteredMessage>>) -> Result<Arc<RegisteredMessage>, MemoryError>;
}

never_called! { PreparedPair:
    fn rdma_port(&self) -> &Arc<RdmaPort>;
    fn carriage(&self) -> Carriage;
    fn grants_memory(&self) -> bool;
    fn ticket(&self) -> u64;
    fn dialed(&self) -> bool;
    fn rail_ports(&self) -> Vec<Arc<RdmaPort>>;
}

never_called! { GrantedMemory:
    fn end(&self) -> bool;
    fn granted_at(&self, &RdmaPort, usize) -> Option<RemoteMemory>;
}

never_called! { EagerBlockPlace:
    fn register(&self, &mut LargeLease, usize) -> Result<RemoteMemory, MemoryError>;
    fn is_of(&self, &Arc<RdmaPort>) -> bool;
}

impl EagerBlockPlace {
    pub(crate) fn take(rdma_port: &Arc<RdmaPort>) -> Option<Self> {
        match **rdma_port {}
    }
}
