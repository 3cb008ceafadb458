//! Errors of RDMA on a machine, each told as a diagnosis.
//!
//! The errno of a verb tells little: `ENOMEM` is a limit on locked memory far more often than a
//! lack of memory, and a device answers `EINVAL` to any size that it does not support. So each
//! refusal is turned into a diagnosis while the request and the device's limits are at hand, and
//! tells an operator what to do. The errno stands in the text, so `source()` does not give it once
//! more (`r#source`).
#![forbid(unsafe_code)]

mod diagnosis;

use std::sync::Arc;

use ibex_base::fork::UsedAfterFork;
use rustix::io::Errno;

pub(crate) use self::diagnosis::consequence;
use self::diagnosis::{different_partitions, list, list_step, open_step};
use super::{
    abi::{
        gid::{Gid, GidEntry, GidType},
        partition::PartitionKey,
        port::PortState,
        transport::Transport,
    },
    state_change_error::StateChangeError,
};

/// RDMA cannot be used, or one object of it cannot be had.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// The process is a fork of one that has made a node: the library's locks may be held.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
    /// The library is not installed, or cannot be loaded.
    #[error(
        "RDMA cannot be used: libibverbs.so.1 cannot be loaded ({reason}); install rdma-core's \
         libraries (Debian: libibverbs1 ibverbs-providers; Fedora: libibverbs) and start again"
    )]
    NoLibrary {
        /// The dynamic linker's message.
        reason: String,
    },
    /// The kernel has no verbs.
    #[error(
        "RDMA cannot be used: the kernel offers no verbs ({source}); {}",
        hidden.as_deref().unwrap_or(
            "`modprobe ib_uverbs`, or, inside a container, have the host do so"
        )
    )]
    NoKernelSupport {
        /// The library's error.
        r#source: Errno,
        /// The reason why this process does not see them, if the kernel may have them.
        hidden: Option<String>,
    },
    /// There are no devices.
    #[error(
        "RDMA cannot be used: this machine has no RDMA device; {}",
        hidden.as_deref().unwrap_or(
            "`rdma link` lists them; without hardware, `rdma link add rxe0 type rxe netdev <netdev>` \
             makes a software device"
        )
    )]
    NoDevice {
        /// The reason why this process does not see devices, if there may be some.
        hidden: Option<String>,
    },
    /// The list of devices was refused.
    #[error(
        "RDMA cannot be used: the list of devices was refused: ibv_get_device_list: {source}{}",
        list_step(*source)
    )]
    DeviceList {
        /// The library's error.
        r#source: Errno,
    },
    /// There are devices, but none of that name.
    #[error("there is no RDMA device {name:?}; there are: {}", list(present))]
    NoSuchDevice {
        /// The name asked for.
        name: String,
        /// The names there are.
        present: Vec<String>,
    },
    /// A device is there and cannot be opened.
    #[error("RDMA device {device} cannot be opened: {source}; {}", open_step(*source))]
    Open {
        /// The device.
        device: String,
        /// The library's error.
        r#source: Errno,
    },
    /// The inventory has the device, with the obstacle to its use.
    #[error(transparent)]
    Unusable {
        /// The error that names the obstacle.
        source: Arc<VerbsError>,
    },
    /// A device speaks another protocol.
    #[error(
        "RDMA device {device} speaks {transport}; this library needs reliable connections over \
         InfiniBand or RoCE; choose another device or another fabric"
    )]
    WrongTransport {
        /// The device.
        device: String,
        /// The transport that the device speaks.
        transport: Transport,
    },
    /// A port number that the device does not have.
    #[error("RDMA device {device} has no port {port}: it has ports 1 to {ports}")]
    NoSuchPort {
        /// The device.
        device: String,
        /// The number asked for.
        port: u8,
        /// The number of ports.
        ports: u8,
    },
    /// A port carries no traffic.
    #[error(
        "RDMA device {device} port {port} is {state}, not ACTIVE; {}",
        state.next_step()
    )]
    PortNotActive {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The port's state.
        state: PortState,
    },
    /// No entry of a port's GID table is usable.
    #[error(
        "RDMA device {device} port {port} has no GID that can be used{}: its table has {}; give \
         its network interface an address (`ip addr add`)",
        netdev.as_ref().map(|netdev| format!(" on {netdev}")).unwrap_or_default(),
        list(present)
    )]
    NoUsableGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The network interface that it had to belong to.
        netdev: Option<String>,
        /// The entries of the table.
        present: Vec<GidEntry>,
    },
    /// A connection would be given a GID that its peer may be unable to reach.
    #[error(
        "RDMA device {device} port {port} has only link-local GIDs on {netdev} ({}), which no \
         router passes on, and the connection runs from {address}; give {netdev} an address (`ip \
         addr add`), or, where all peers are on its link, name the device in the settings",
        list(present)
    )]
    OnlyLinkLocal {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The network interface.
        netdev: String,
        /// Our address of the connection.
        address: std::net::IpAddr,
        /// The entries of the table.
        present: Vec<GidEntry>,
    },
    /// A GID index with nothing usable behind it.
    #[error(
        "RDMA device {device} port {port} has no usable GID at index {index}; its table has {}",
        list(present)
    )]
    NoSuchGid {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The index asked for.
        index: u32,
        /// The entries of the table.
        present: Vec<GidEntry>,
    },
    /// No device belongs to a network interface.
    #[error(
        "no RDMA device belongs to the network interface {netdev}{}; devices are at: {}",
        if parents.is_empty() { String::new() } else { format!(" or what is below it ({})", list(parents)) },
        list(present)
    )]
    NoDeviceForNetdev {
        /// The interface asked for.
        netdev: String,
        /// The interfaces that it stands on.
        parents: Vec<String>,
        /// The devices there are, with their interfaces.
        present: Vec<String>,
    },
    /// There is no network interface of that name.
    #[error(
        "this machine has no network interface {netdev}; there are: {}; RDMA devices are at: {}",
        list(present),
        list(devices)
    )]
    NoSuchNetdev {
        /// The interface asked for.
        netdev: String,
        /// The interfaces there are.
        present: Vec<String>,
        /// The devices there are, with their interfaces.
        devices: Vec<String>,
    },
    /// No network interface has an address.
    #[error("no network interface of this machine has the address {address}")]
    NoSuchAddress {
        /// The address.
        address: std::net::IpAddr,
    },
    /// The two ends use different kinds of GID.
    #[error(
        "the two ends speak different versions: ours is {ours}, the peer's {theirs}; choose a GID \
         of the same type at both ends"
    )]
    DifferentGidTypes {
        /// The type of our GID.
        ours: GidType,
        /// The type of the peer's GID.
        theirs: GidType,
    },
    /// The port is not in the partition that is wanted.
    #[error(
        "RDMA device {device} port {port} is not in partition {key}: its table of partition keys has \
         {}; have the subnet manager add it (opensm: partitions.conf), or name another by \
         partition_key or IBEX_RDMA_PARTITION_KEY",
        list(present)
    )]
    NoSuchPartition {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The key that is wanted, by the settings or by the network interface of the route.
        key: PartitionKey,
        /// The keys in the port's table.
        present: Vec<PartitionKey>,
    },
    /// The port's table of partition keys has no such place.
    #[error(
        "RDMA device {device} port {port}: its table of partition keys has {keys} places, and \
         {index} is asked for; name one by `Device::partition`"
    )]
    NoSuchPartitionIndex {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// The place that is asked for, from 0.
        index: u16,
        /// The number of places.
        keys: u16,
    },
    /// The two ends' ports take no packets of each other's partition.
    #[error("{}", different_partitions(*ours, *theirs))]
    DifferentPartitions {
        /// Our port's key.
        ours: PartitionKey,
        /// The peer's port's key.
        theirs: PartitionKey,
    },
    /// The peer is in another InfiniBand subnet, and no route leads there.
    #[error(
        "the peer's port has the GID {theirs} and is in another InfiniBand subnet than ours ({ours}), \
         and its GID names no LID of a router; have the subnet managers give the subnets site-local \
         prefixes with floating LIDs (fec0:0:FLID::), or use another fabric"
    )]
    OtherSubnet {
        /// The GID of our port.
        ours: Gid,
        /// The peer's port's.
        theirs: Gid,
    },
    /// A datagram cannot be answered.
    #[error(
        "a datagram at port {port} of RDMA device {device} tells no way back: {reason}; have the \
         sender tell its address in the datagram"
    )]
    NoReturnAddress {
        /// The device.
        device: String,
        /// The port.
        port: u8,
        /// What is missing.
        reason: &'static str,
    },
    /// The limit on locked memory is too small.
    #[error(
        "cannot register {bytes} bytes with RDMA device {device}: {already} bytes are pinned \
         already and the limit on locked memory is {limit} bytes, so at least {} are needed \
         ({source}); raise it with `ulimit -l`, LimitMEMLOCK=infinity (systemd), --ulimit \
         memlock=-1 (docker) or /etc/security/limits.conf, or lower receive_buffers or held_buffers",
        already.saturating_add(*bytes)
    )]
    MemoryLock {
        /// The device.
        device: String,
        /// The bytes that were to be locked.
        bytes: u64,
        /// The bytes that devices have pinned for this process so far.
        already: u64,
        /// The soft limit.
        limit: u64,
        /// The library's error.
        r#source: Errno,
    },
    /// A queue could not be made, within all limits that are known of it.
    #[error(
        "RDMA device {device}: {call} failed: {source}; the device has no room for it, or the \
         limit on locked memory is too small: of {limit} bytes {already} are pinned already, and \
         the receive buffers of a node take 36 MiB by default; raise it with `ulimit -l`, \
         LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 (docker) or \
         /etc/security/limits.conf"
    )]
    QueueMemory {
        /// The device.
        device: String,
        /// The verb.
        call: &'static str,
        /// The bytes that devices have pinned for this process so far.
        already: u64,
        /// The soft limit.
        limit: u64,
        /// The library's error.
        r#source: Errno,
    },
    /// A size or number beyond what the device has.
    #[error(
        "RDMA device {device} cannot make {what}: {asked} were asked for and its limit is {limit}; \
         lower {setting}"
    )]
    Limit {
        /// The device.
        device: String,
        /// The object that was to be made.
        what: &'static str,
        /// The number or size that was requested.
        asked: u64,
        /// The largest number or size.
        limit: u64,
        /// The setting that asks for less.
        setting: &'static str,
    },
    /// An object of another device, or of this device opened once more, was to be part of a queue
    /// pair.
    #[error(
        "the {object} belongs to RDMA device {other}, and the protection domain to {device}: make \
         all objects of a queue pair from one open device"
    )]
    OtherDevice {
        /// The object.
        object: &'static str,
        /// The device of the protection domain.
        device: String,
        /// The device of the object.
        other: String,
    },
    /// The device was closed while it was in use.
    #[error(
        "RDMA device {device} was closed, as it failed or was removed; sessions of before are over"
    )]
    Closed {
        /// The device.
        device: String,
    },
    /// Memory that a device was to use cannot be had, or a rule of the layer above these verbs does
    /// not hold. The inner error, of a type of that layer, tells which. For
    /// [`AnonymousMemory`](crate::AnonymousMemory) it is an [`io::Error`](std::io::Error).
    #[error(transparent)]
    Other(Box<dyn std::error::Error + Send + Sync>),
    /// The device, its driver or the library does not have a verb.
    #[error("RDMA device {device} has no {what}: {call} failed: {source}; {instead}")]
    Unsupported {
        /// The device.
        device: String,
        /// The ability that the device lacks.
        what: &'static str,
        /// The verb.
        call: &'static str,
        /// The library's error.
        r#source: Errno,
        /// The next step, without the verb.
        instead: &'static str,
    },
    /// A verb failed in another way.
    #[error("RDMA device {device}: {call} failed: {source}; {consequence}")]
    Call {
        /// The device.
        device: String,
        /// The verb.
        call: &'static str,
        /// The library's error.
        r#source: Errno,
        /// The consequence for the caller.
        consequence: &'static str,
    },
    /// A queue pair could not be brought to another state.
    #[error(transparent)]
    Connect(#[from] Box<StateChangeError>),
    /// A setting is outside its range.
    #[error("{setting} is {given}, and can be {allowed}")]
    Setting {
        /// The setting's name.
        setting: &'static str,
        /// The value that was given.
        given: String,
        /// The values that are allowed.
        allowed: String,
    },
}

impl VerbsError {
    /// Returns whether the error is a fact about this machine, so that another attempt does not
    /// help until an operator changes the machine.
    #[must_use]
    pub fn is_absence(&self) -> bool {
        matches!(
            self,
            Self::NoLibrary { .. } | Self::NoKernelSupport { .. } | Self::NoDevice { .. }
        )
    }
}

ibex_base::debug_as_display!(VerbsError);

#[cfg(test)]
mod tests;
