//! Settings of a node's RDMA device, checked when they are set.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use ibex_transport::rdma::{MOST_RAILS, PortSettings};
use ibex_verbs::{
    CompletionPolling, ConnectionSettings, PartitionKey,
    discovery::{DeviceKind, Sysfs},
    provider::Provider,
};

use super::Tuning;
use crate::setting::{SettingConflict, SettingError, settings, within};

/// Settings of a node's RDMA device, for [`NodeBuilder::rdma`](crate::NodeBuilder::rdma).
///
/// Each engine of a node ([`io_threads`](crate::NodeBuilder::io_threads)) opens each device port
/// that one of its sessions goes over, and has queues and buffers of its own there. Counts of
/// buffers and sessions are for one engine and port. Each engine and port locks `(receive_buffers +
/// held_buffers) * receive_buffer_bytes` of memory, by default 36 MiB. In addition come 32 KiB for
/// each session, the rings of its senders, and messages longer than a receive buffer. These are
/// locked while they are sent or, with [`trust_peers`](Self::trust_peers), until they are released.
///
/// ```
/// use ibex::rdma::RdmaSettings;
///
/// let settings = RdmaSettings::new()
///     .device("mlx5_1")
///     .gid_index(3)
///     .receive_buffers(1024)
///     .traffic_class(106);
/// let builder = ibex::Node::builder().rdma(settings);
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "settings do nothing until they are given to a node"]
pub struct RdmaSettings {
    // Choice of the device.
    pub(crate) device: Option<String>,
    pub(crate) port: Option<u8>,
    pub(crate) gid_index: Option<u32>,
    pub(crate) partition_key: Option<PartitionKey>,
    /// `None` stands for the default, which depends on the device.
    pub(crate) max_rails: Option<u8>,
    /// The devices to use in place of this machine's.
    pub(super) provider: Option<Arc<dyn Provider>>,
    /// The kernel's files about them, in place of this machine's.
    pub(super) sysfs: Option<Sysfs>,

    // Resources of each RDMA port.
    pub(crate) resources: PortSettings,
    pub(crate) connection: ConnectionSettings,
    service_level: u8,
    traffic_class: u8,
    /// Choice of trusted peers, unless all or none are trusted.
    trusted: Option<Trusted>,

    /// The first setting that was out of its range.
    error: Option<SettingError>,
}

/// A choice of trusted peers, by their addresses.
#[derive(Clone)]
struct Trusted(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl fmt::Debug for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trusted(..)")
    }
}

impl RdmaSettings {
    /// Makes settings with all defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses these devices in place of the machine's, and changes the resources that are set aside
    /// on them. For this repository's tests.
    #[doc(hidden)]
    pub fn on_devices(
        mut self,
        devices: Arc<dyn Provider>,
        settings: fn(&mut PortSettings),
    ) -> Self {
        self.provider = Some(devices);
        settings(&mut self.resources);
        self
    }

    /// Uses these files in place of the kernel's about devices. For this repository's tests.
    #[doc(hidden)]
    pub fn on_sysfs(mut self, sysfs: Sysfs) -> Self {
        self.sysfs = Some(sysfs);
        self
    }

    /// Trusts those peers for whose address `is_trusted` returns true, as
    /// [`trust_peers`](Self::trust_peers) does for all. The address is the one that this node sees
    /// when they meet. The queue pairs of other peers let no write in. The network decides who has
    /// an address, so trust only addresses that no stranger can have.
    ///
    /// ```
    /// use std::net::IpAddr;
    ///
    /// let rack = [10, 1, 7];
    /// let settings = ibex::rdma::RdmaSettings::new().trust_peers_at(move |peer| match peer {
    ///     IpAddr::V4(peer) => peer.octets().starts_with(&rack),
    ///     IpAddr::V6(_) => false,
    /// });
    /// ```
    pub fn trust_peers_at(
        mut self,
        is_trusted: impl Fn(IpAddr) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.resources.grants_memory = true;
        self.trusted = Some(Trusted(Arc::new(is_trusted)));
        self
    }

    /// Returns whether a peer at that address may be granted memory.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.resources.grants_memory
            && self
                .trusted
                .as_ref()
                .is_none_or(|Trusted(trusted)| trusted(peer.to_canonical()))
    }

    /// Returns the most rails of a session whose own port is on a device of this kind.
    pub(super) fn rails_beside(&self, kind: DeviceKind) -> usize {
        let by_default = match (kind, &self.device) {
            (DeviceKind::Hardware, None) => 1,
            _ => 0,
        };
        self.max_rails.map_or(by_default, usize::from)
    }

    /// Returns the first setting that is out of its range.
    pub(crate) fn error(&self) -> Option<SettingError> {
        self.error
    }

    /// Checks settings that exclude each other.
    pub(crate) fn check_relations(&self) -> Result<(), SettingConflict> {
        if self.resources.completion_times
            && self.resources.completion_polling == Some(CompletionPolling::Plain)
        {
            return Err(SettingConflict {
                settings: ["completion_times", "completion_polling"],
                values: ["true".to_owned(), "plain".to_owned()],
                rule: "plain completions have no times; leave one of the two out".to_owned(),
            });
        }
        let (given, least) = (
            self.resources.receive_buffers,
            self.resources.least_receive_buffers(),
        );
        if given >= least {
            return Ok(());
        }
        let (other, value, why) = if self.resources.shared_receives {
            let why = "each place for a session keeps two, and 17 are for all";
            ("max_sessions", self.resources.max_sessions, why)
        } else {
            let why = "without shared_receives each session has so many and 18 to itself";
            ("session_credit", self.resources.session_credit, why)
        };
        Err(SettingConflict {
            settings: ["receive_buffers", other],
            values: [given.to_string(), value.to_string()],
            rule: format!("{why}, so it has to be {least} or more; raise it or lower {other}"),
        })
    }

    /// Returns the settings of an engine's RDMA ports.
    pub(crate) fn resources(&self, engine: usize) -> PortSettings {
        let connection = self.connection.traffic_class(self.traffic_class);
        PortSettings {
            // A service level out of its range has been noted as an error already, of this type.
            connection: connection
                .service_level(self.service_level)
                .unwrap_or(connection),
            engine,
            ..self.resources
        }
    }

    /// Keeps the first error for `build` to report.
    fn note(&mut self, checked: Result<(), SettingError>) {
        self.error = self.error.or(checked.err());
    }
}

const _: () = assert!(
    PortSettings::MOST_BUFFERS == 1_048_576,
    "the range of buffers"
);
const _: () = assert!(MOST_RAILS == 3, "the range of rails");

settings! {
    const TABLE in RdmaSettings, |self| self;

    /// Names the device, such as `mlx5_0`, or gives its GUID, which stays when the kernel renames
    /// the device, as in `guid:0002:c903:0000:0001`.
    #[default("the device on the route of a session's connection")]
    /// That is the network interface with the connection's own address, or the one below it. For a
    /// connection over the loopback interface, any device will do. A named device is taken
    /// independent of the route, so both ends of a session have to be on one RDMA network.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// Chooses the device's port.
    #[default("that of the route, or else the first that is active")] #[range(1..=255)]
    pub fn port(number: u8);

    /// Chooses the place in the port's GID table.
    #[default("the GID of the connection's own address, or else the best")] #[range(0..=255)]
    /// RoCE v2 is better than v1, IPv4 than IPv6, and a global GID than a link-local one.
    ///
    /// Both ends have to use GIDs of one type. Places move when addresses change, so set this only
    /// where the default is wrong.
    pub fn gid_index(index: u32);

    /// Chooses the partition of the node's queue pairs on InfiniBand, by its key, such as `0x8001`
    /// ([InfiniBand Architecture Specification](https://www.infinibandta.org/ibta-specification/),
    /// volume 1, section 10.9).
    #[default("the partition of the route's network interface")]
    #[range("0x0001 to 0xffff, except 0x8000")]
    /// The interface is an IPoIB interface or stands on one (`ib0.8001`); without one, the
    /// partition is that of the first key in the port's table. The uppermost bit, which full
    /// members have, does not count.
    ///
    /// Both ends have to be in one partition, and one of them as a full member. Each session looks
    /// up where the key stands in the port's table.
    pub fn partition_key(mut self, key: u16) -> Self {
        self.note(within!("partition_key", key & 0x7fff, 1..=0x7fff));
        self.partition_key = PartitionKey::new(key);
        self
    }

    /// Limits the number of further device ports, *rails*, over which the large messages of a session
    /// are read as well.
    #[default("1 on hardware; 0 with a `device` and on soft-RoCE")]
    #[range(0..=3)]
    /// A session has one port of its own, for everything else and for small messages. With rails, its
    /// large messages use the bandwidth of several ports. Both ends need rails: a port here is
    /// paired with one at the peer's in the same network, and ports without a counterpart are not
    /// used. A rail that fails loses nothing: its messages go over the other ports.
    ///
    /// The memory of each large message is registered with each of the ports. A session has a queue
    /// pair on each, which counts there in [`max_sessions`](Self::max_sessions). Each port of an engine
    /// locks as much memory as the [first](RdmaSettings).
    ///
    /// Rails are ports of the same kind of device, hardware or software, in the partition of the
    /// session's own port, and with at least half of its speed. A port that cannot carry rails is passed over, and is tried again when the
    /// node lists the devices again, as it does when a port fails. [`port`](Self::port) and
    /// [`gid_index`](Self::gid_index) only concern the session's own port.
    ///
    /// Two ports that are bonded (RoCE LAG) are one device, which uses both without rails. With 0
    /// there are no rails.
    pub fn max_rails(rails: u8);

    /// Sets whether peers are trusted to write to memory of this node. If they are, large messages
    /// arrive by RDMA writes where they are read, without a copy. Each message is granted memory of
    /// its own, which holds nothing else. But a peer keeps the key, and could change a message
    /// while it is read, or a message of another peer.
    #[default(false)]
    /// Nothing proves who a peer is, so large messages are then read from the peer's memory, by this
    /// node's device, on hardware with memory windows. Others come in pieces that are copied once. In
    /// neither way the peer writes to memory of this node. Over several ports
    /// ([`max_rails`](Self::max_rails)) messages of trusted peers are read too.
    ///
    /// The peer in turn may read a large message that is sent to it, and nothing else: its key ends
    /// when it has the message, and with the channel or the session.
    ///
    /// If a channel has messages between a receive buffer and 64 KiB, they go into
    /// [blocks](Tuning::eager_blocks) that are granted before the messages are sent.
    pub fn trust_peers(mut self, trust: bool) -> Self {
        self.resources.grants_memory = trust;
        self.trusted = None;
        self
    }

    /// Sets the service level of packets, which InfiniBand maps to a lane.
    #[default(0)] #[range(0..=15)]
    /// The network decides what the levels mean.
    pub fn service_level(level: u8);

    /// Sets the traffic class of packets. On RoCE v2 it is the IP header's, whose upper six bits
    /// are the DSCP ([RFC 2474](https://www.rfc-editor.org/rfc/rfc2474)).
    #[default(0)] #[range(0..=255)]
    /// A lossless network usually wants a certain class; the network decides what the classes mean.
    pub fn traffic_class(class: u8);

    /// Rare settings, each of which has to be measured.
    #[default("those of [`Tuning::new`]")]
    pub fn tuning(mut self, tuning: Tuning) -> Self {
        self.note(tuning.error.map_or(Ok(()), Err));
        self.resources = PortSettings {
            receive_buffers: self.resources.receive_buffers,
            held_buffers: self.resources.held_buffers,
            max_sessions: self.resources.max_sessions,
            grants_memory: self.resources.grants_memory,
            ..tuning.resources
        };
        self.connection = tuning.connection;
        self
    }
}

settings! {
    const BUFFERS in RdmaSettings, |self| self.resources;

    /// Sets the number of receive buffers that are posted for all sessions together.
    #[default(4096)] #[range(19..=1048576)]
    /// There have to be 2 * `max_sessions` + 17 at least: for each session one for what it says of
    /// its credit, and one that its peer can use whatever others hold. All sessions share the rest.
    ///
    /// With more buffers, more sessions can have `session_credit` at a time. Each costs
    /// `receive_buffer_bytes` of locked memory, and the device has a limit of its own. With fewer
    /// than 2 * `max_sessions` + 16 and one for each present session, sessions take turns at those
    /// that they share.
    ///
    /// A peer that stands still, because its process is stopped or its node is not turned, keeps
    /// its lent buffers, up to 4 in a turn, until it goes on or its session is suspended or over. The
    /// others share the rest. If such peers have all that is shared, every other session goes on with
    /// the one buffer that is kept for it, a new one too: one frame is under way at a time.
    ///
    /// Without [`shared_receives`](Tuning::shared_receives) each session takes `session_credit` + 18
    /// buffers, and that is the minimum.
    pub fn receive_buffers(buffers: u32);

    /// Sets the maximum number of simultaneous sessions over RDMA.
    #[default(256)] #[range(1..=65536)]
    /// A session that this node dialed counts as two, because two buffers are kept for what it says
    /// of its credit, and one for others. Each place takes two receive buffers and
    /// `send_requests` + 2 entries of a completion queue. A device limits these entries; if it has
    /// fewer, there are fewer places.
    pub fn max_sessions(sessions: u32);

    /// Sets the number of spare buffers, which replace those of messages that were received and not
    /// released.
    #[default(4096)] #[range(0..=1048576)]
    /// When all are in use, arriving messages are copied. Each costs `receive_buffer_bytes` of
    /// locked memory.
    pub fn held_buffers(buffers: u32);
}

#[cfg(test)]
mod tests;
