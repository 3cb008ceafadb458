//! How a node uses RDMA devices, checked when it is set.
#![forbid(unsafe_code)]

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use ibex_transport::rdma::SiteSettings;
#[cfg(feature = "fake-device")]
use ibex_verbs::provider::{Provider, fake::FakeProvider};
use ibex_verbs::{CompletionPolling, ConnectionSettings, Mtu, PartitionKey, VerbsError};

use crate::{
    environment::Site,
    setting::{SettingConflict, SettingError},
};

/// How a node uses RDMA devices: which one, and how much of it. Given to
/// [`NodeBuilder::rdma`](crate::NodeBuilder::rdma).
///
/// A node has one device port, from its first session over RDMA on. Locked in memory are
/// then `(receive_buffers + held_buffers) * receive_buffer_bytes`, by default 36 MiB, plus
/// 32 KiB for each session, the rings of its senders, and what holds messages longer than a
/// receive buffer while they are sent or, with [`trust_peers`](Self::trust_peers), until
/// they are released.
///
/// ```
/// use std::time::Duration;
/// use ibex::rdma::RdmaSettings;
///
/// let settings = RdmaSettings::new()
///     .device("mlx5_1")
///     .gid_index(3)
///     .receive_buffers(1024)
///     .timeout(Duration::from_millis(20));
/// let builder = ibex::Node::builder().rdma(settings);
/// ```
#[derive(Clone, Debug)]
#[must_use = "settings do nothing until they are given to a node"]
pub struct RdmaSettings {
    // The place.
    pub(super) device: Option<String>,
    pub(super) port: Option<u8>,
    pub(super) gid_index: Option<u32>,
    pub(super) partition_key: Option<PartitionKey>,
    /// Whose devices these are, if not this machine's.
    #[cfg(feature = "fake-device")]
    pub(super) provider: Option<Arc<dyn Provider>>,

    // What is set aside there.
    site: SiteSettings,
    connection: ConnectionSettings,
    /// Which peers are trusted, if not all or none are.
    trusted: Option<Trusted>,

    /// The first setting that was out of its range.
    error: Option<SettingError>,
}

/// Which peers are trusted, by their addresses.
#[derive(Clone)]
struct Trusted(Arc<dyn Fn(IpAddr) -> bool + Send + Sync>);

impl fmt::Debug for Trusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Trusted(..)")
    }
}

impl RdmaSettings {
    /// All defaults.
    pub fn new() -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            partition_key: None,
            #[cfg(feature = "fake-device")]
            provider: None,
            site: SiteSettings::default(),
            connection: ConnectionSettings::default(),
            trusted: None,
            error: None,
        }
    }

    // ---- The place -------------------------------------------------------------------

    /// The device, such as `mlx5_0`. Default: the one that the route of a session's
    /// connection leads over (the network interface with the connection's own address,
    /// or what that stands on); for a connection over the loopback interface, any. A
    /// device named here is taken whatever the route says, so both ends of a session have
    /// to be on one RDMA network.
    pub fn device(mut self, name: impl Into<String>) -> Self {
        self.device = Some(name.into());
        self
    }

    /// The device's port. Default: the one of the route, else the first that is active.
    /// Range 1 to 255.
    pub fn port(mut self, number: u8) -> Self {
        self.note(SettingError::check_count("port", number.into(), 1..=255));
        self.port = Some(number);
        self
    }

    /// The place in the port's GID table. Default: that of the GID of the connection's own
    /// address, else the best: RoCE v2 before v1, IPv4 before IPv6, global before
    /// link-local. Range 0 to 255. Both ends have to use GIDs of one type, and places move
    /// when addresses change: set it where the default is wrong, and only there.
    pub fn gid_index(mut self, index: u32) -> Self {
        self.note(SettingError::check_count(
            "gid_index",
            index.into(),
            0..=255,
        ));
        self.gid_index = Some(index);
        self
    }

    /// The partition that the node's queue pairs are in, on InfiniBand, by its key, such as
    /// `0x8001`. Default: that of the network interface of the route, where that is an IPoIB
    /// interface or stands on one (`ib0.8001`), else that of the first key of the port's table.
    /// Range 0x0001 to 0xffff without 0x8000; the uppermost bit, which full members have, does
    /// not count. It costs nothing. Both ends have to be in one partition, and one of them as
    /// a full member; where the key stands in the port's table is looked up for each session.
    pub fn partition_key(mut self, key: u16) -> Self {
        let number = u64::from(key & 0x7fff);
        self.note(SettingError::check_count(
            "partition_key",
            number,
            1..=0x7fff,
        ));
        self.partition_key = PartitionKey::new(key);
        self
    }

    /// Takes these devices for those of the machine, and changes what is set aside on them.
    /// For this repository's tests.
    #[cfg(feature = "fake-device")]
    #[doc(hidden)]
    pub fn on_fake(mut self, fake: &FakeProvider, settings: fn(&mut SiteSettings)) -> Self {
        self.provider = Some(fake.provider());
        settings(&mut self.site);
        self
    }

    // ---- What is set aside -----------------------------------------------------------

    /// Buffers that are posted for what arrives, for all sessions together. Default: 4096,
    /// range 18 to 2^20, and `max_sessions` + 17 at least. With more, more sessions can have
    /// `session_credit` at a time; each costs `receive_buffer_bytes` of locked memory, and the
    /// device has a limit of its own. With fewer than `max_sessions` + 16 and one for each session
    /// that there is, sessions take turns at what is left. A peer that stands still (its process
    /// is stopped, or nobody turns its node) keeps what it was lent, up to 4 buffers in a turn,
    /// until it goes on or its session ends. The others take turns at the rest; where such peers
    /// have all that is left, everybody waits for one of them. Without
    /// [`shared_receives`](Self::shared_receives) each session takes `session_credit` + 18 of
    /// them, and so many are the least.
    pub fn receive_buffers(mut self, buffers: u32) -> Self {
        self.note(SettingError::check_count(
            "receive_buffers",
            buffers.into(),
            LEAST_BUFFERS..=SiteSettings::MOST_BUFFERS.into(),
        ));
        self.site.receive_buffers = buffers;
        self
    }

    /// Whether all sessions take their receives from one queue, where the device can.
    /// Default: true, which is what lets many sessions do with few buffers. With false each
    /// session has a queue and `session_credit` + 18 of the receive buffers to itself: for
    /// a node with a handful of busy peers, on a device that takes longer over a shared
    /// queue (soft-RoCE does, by 4 of 46 µs for a small message). There are then
    /// `receive_buffers / (session_credit + 18)` places for sessions, 49 by default, and
    /// each locks its buffers, and as many spare ones, when it comes.
    pub fn shared_receives(mut self, shared: bool) -> Self {
        self.site.shared_receives = shared;
        self
    }

    /// Sessions over RDMA that there may be at a time. Default: 256, range 1 to 65536.
    /// Those that this node dialed count as two, because two buffers are kept for them, and
    /// one for others. Each place takes a receive buffer and `send_requests` + 2 entries of
    /// a completion queue, of which a device has so many; where it has fewer, there are
    /// fewer places.
    pub fn max_sessions(mut self, sessions: u32) -> Self {
        let given = sessions.into();
        self.note(SettingError::check_count(
            "max_sessions",
            given,
            1..=1 << 16,
        ));
        self.site.max_sessions = sessions;
        self
    }

    /// Buffers beyond those, which stand in for what messages hold that were received and
    /// not released. Default: 4096, range 0 to 2^20. When all are held, what arrives is
    /// copied; each costs `receive_buffer_bytes` of locked memory.
    pub fn held_buffers(mut self, buffers: u32) -> Self {
        self.note(SettingError::check_count(
            "held_buffers",
            buffers.into(),
            0..=SiteSettings::MOST_BUFFERS.into(),
        ));
        self.site.held_buffers = buffers;
        self
    }

    /// Whether peers are trusted to write to memory of this node: large messages then arrive
    /// by RDMA writes where they are read, without a copy. Each is granted memory of its own,
    /// and none that holds anything else; but a peer keeps the key and could change a message
    /// while it is read, or one of another peer. Default: false, since nothing proves who a
    /// peer is; large messages then come in pieces that are copied once.
    ///
    /// Messages between a receive buffer and 64 KiB go, where a channel has some of them, into
    /// [blocks](Self::landing_blocks) that are granted before they are sent.
    pub fn trust_peers(mut self, trust: bool) -> Self {
        self.site.grants_memory = trust;
        self.trusted = None;
        self
    }

    /// The same for some peers: those whose address, as this node sees it when they meet,
    /// `is_trusted` says yes to. The others' queue pairs let no write in. An address is what
    /// the network makes of it: trust those that no stranger can have.
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
        self.site.grants_memory = true;
        self.trusted = Some(Trusted(Arc::new(is_trusted)));
        self
    }

    /// Blocks that trusted peers are granted ahead in all, for messages between a receive
    /// buffer and 64 KiB. Default: 1024, range 0 to 65536. A channel that has such messages
    /// has 8 as long as it is used, all channels of a session have 128 at most; each is 64 KiB
    /// and 192 bytes of locked memory. A message that finds none waits for a round trip.
    pub fn landing_blocks(mut self, blocks: u32) -> Self {
        let (given, range) = (blocks.into(), 0..=1 << 16);
        self.note(SettingError::check_count("landing_blocks", given, range));
        self.site.landing_blocks = blocks;
        self
    }

    /// Whether a write may carry 32 bits that tell of it, which spares a message of a
    /// [block](Self::landing_blocks) a request. Default: as a test says, which is made with
    /// the device when peers are trusted. Without them such a message is a write and a frame
    /// behind it: of 8 KiB there and a small one back that takes 1.15 times as long on
    /// soft-RoCE. Whoever asks for them is not tested: a device that does not carry them fails
    /// such messages, and their queue pair with them, or leaves them unannounced.
    pub fn immediate_data(mut self, is_used: bool) -> Self {
        self.site.immediate = Some(is_used);
        self
    }

    /// Whether a peer at that address may be granted memory.
    pub(super) fn trusts(&self, peer: IpAddr) -> bool {
        self.site.grants_memory
            && self
                .trusted
                .as_ref()
                .is_none_or(|Trusted(trusted)| trusted(peer.to_canonical()))
    }

    /// The length of a receive buffer. Default: 4.5 KiB, which holds a message of 4 KiB with
    /// some fields and what goes before it; range 4 KiB to 64 KiB, rounded up to a multiple
    /// of 64. Sessions send no longer pieces than the smaller of both ends'
    /// buffers; small messages that arrive alone take a whole one.
    pub fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        let range = 4 << 10..=64 << 10;
        self.note(SettingError::check_bytes(
            "receive_buffer_bytes",
            bytes.into(),
            range,
        ));
        // What is out of the range is an error anyhow.
        self.site.buffer_bytes = bytes.min(64 << 10).next_multiple_of(64);
        self
    }

    /// Receive buffers that one session's peer may fill at the most before it hears from
    /// this node; less when many want some. Default: 64, range 2 to 65536. More keeps a
    /// longer or faster link busy.
    pub fn session_credit(mut self, buffers: u32) -> Self {
        let given = buffers.into();
        self.note(SettingError::check_count(
            "session_credit",
            given,
            2..=1 << 16,
        ));
        self.site.session_credit = buffers;
        self
    }

    /// Sends that one session may have outstanding. Default: 128, range 64 to 32768. More
    /// keeps a longer or faster link busy; each takes some 100 bytes of the device's
    /// memory and an entry of its completion queue.
    pub fn send_requests(mut self, requests: u32) -> Self {
        let given = requests.into();
        self.note(SettingError::check_count(
            "send_requests",
            given,
            64..=1 << 15,
        ));
        self.site.send_requests = requests;
        self
    }

    /// Bytes that a send may carry inside its request. Default: 220, range 0 to 4 KiB; the
    /// device may give less. More spares the device a look at memory for longer messages,
    /// and makes every entry of the send queue longer.
    pub fn inline_bytes(mut self, bytes: u32) -> Self {
        let range = 0..=4 << 10;
        self.note(SettingError::check_bytes(
            "inline_bytes",
            bytes.into(),
            range,
        ));
        self.site.inline_bytes = bytes;
        self
    }

    /// How completions are polled. Default: on a device of hardware what its self-test
    /// says, else plain; [`NodeStats`](crate::NodeStats) and the log say which and why. One
    /// that is set here is taken without a test, and a device that does not have it gives
    /// an error: for a device on which the other is measured to be faster, and for tests.
    pub fn completion_polling(mut self, polling: CompletionPolling) -> Self {
        self.site.completion_polling = Some(polling);
        self
    }

    /// Whether messages have the time at which the device had them whole
    /// ([`Message::received_at`](crate::Message::received_at)), where it has a clock for
    /// that: soft-RoCE has none. Default: false. It takes an extended completion queue,
    /// a call per receive to read the clock's ticks, and a multiplication to turn them
    /// into time.
    pub fn completion_times(mut self, wanted: bool) -> Self {
        self.site.completion_times = wanted;
        self
    }

    /// The device's completion vector, that is the interrupt that wakes a thread which sleeps
    /// until something completes. Default: 0; range 0 to one less than the device has, which
    /// the example `devices` shows and which is checked when the device is opened. Nodes with
    /// vectors of their own share no interrupt, and `/proc/irq/N/smp_affinity` then chooses a
    /// core for each. It costs nothing, and means nothing to a thread that polls.
    pub fn completion_vector(mut self, vector: u32) -> Self {
        self.site.completion_vector = vector;
        self
    }

    /// Asks the device for PCIe relaxed ordering (`IBV_ACCESS_RELAXED_ORDERING`) in all memory
    /// that it uses for this node. Default: false. Some hosts write faster so, AMD EPYC and
    /// guests among them, and on others it makes no difference or is slower: set it where
    /// `ib_write_bw`, which asks for it, is faster than `ib_write_bw
    /// --disable_pcie_relaxed`. Messages stay in order and whole, as ibex reads memory only
    /// behind the completion that announces it. Devices, kernels and libraries without it
    /// ignore it.
    pub fn relaxed_ordering(mut self, relaxed: bool) -> Self {
        self.site.relaxed_ordering = relaxed;
        self
    }

    /// Pieces of memory that the device collects for one send. Default and most: 3, range
    /// 1 to 3; the device may take fewer. With fewer, what would be more is copied first:
    /// for a device that is slower with several, and for tests.
    pub fn send_entries(mut self, pieces: u32) -> Self {
        self.note(SettingError::check_count(
            "send_entries",
            pieces.into(),
            1..=3,
        ));
        self.site.send_entries = pieces;
        self
    }

    // ---- The connection --------------------------------------------------------------

    /// Bytes per packet. Default: the smaller of what both ports carry. A session whose
    /// ports carry less goes over another fabric; a smaller one costs throughput.
    pub fn path_mtu(mut self, mtu: Mtu) -> Self {
        self.connection = self.connection.path_mtu(mtu);
        self
    }

    /// How long an acknowledgement may take before a packet is sent again. Default: 67 ms,
    /// range 5 µs to 8796 s, rounded up to 4.096 µs times a power of two. Shorter repairs
    /// a loss sooner, and takes a busy peer for a lost one.
    pub fn timeout(self, timeout: Duration) -> Self {
        let range = Duration::from_micros(5)..=Duration::from_secs(8796);
        self.with_time("timeout", timeout, range, ConnectionSettings::timeout)
    }

    /// How often a packet is sent again before the queue pair fails and its session is
    /// suspended. Default and most: 6, range 0 to 6. With `timeout` it says when a peer that is
    /// gone is noticed: after `timeout * (retry_count + 1)`, by default 0.5 s, and up to four
    /// times that, since devices may wait for longer. Fewer gives up on a link that is merely bad.
    pub fn retry_count(mut self, tries: u8) -> Self {
        self.note(SettingError::check_count(
            "retry_count",
            tries.into(),
            0..=6,
        ));
        self.connection = self
            .connection
            .retry_count(tries)
            .unwrap_or(self.connection);
        self
    }

    /// How long a peer waits before it sends again what found no receive buffer. Default:
    /// 1.28 ms, range 10 µs to 655.36 ms, rounded up to one of 32 steps. Credits keep it
    /// from happening; shorter burdens the link where they fail.
    pub fn min_rnr_timer(self, timer: Duration) -> Self {
        let range = Duration::from_micros(10)..=Duration::from_micros(655_360);
        self.with_time(
            "min_rnr_timer",
            timer,
            range,
            ConnectionSettings::min_rnr_timer,
        )
    }

    /// The service level of packets, which InfiniBand maps to a lane. Default: 0, range 0
    /// to 15. What the levels mean is up to the network.
    pub fn service_level(mut self, level: u8) -> Self {
        self.note(SettingError::check_count(
            "service_level",
            level.into(),
            0..=15,
        ));
        self.connection = self
            .connection
            .service_level(level)
            .unwrap_or(self.connection);
        self
    }

    /// The traffic class of packets; on RoCE v2 the IP header's, whose upper six bits are
    /// the DSCP. Default: 0, range 0 to 255. A lossless network usually wants a certain
    /// one; what the classes mean is up to the network.
    pub fn traffic_class(mut self, class: u8) -> Self {
        self.connection = self.connection.traffic_class(class);
        self
    }

    // ---- For the node ----------------------------------------------------------------

    /// The first setting that is out of its range.
    pub(crate) fn error(&self) -> Option<SettingError> {
        self.error
    }

    /// How the settings go together.
    pub(crate) fn check_relations(&self) -> Result<(), SettingConflict> {
        if self.site.completion_times
            && self.site.completion_polling == Some(CompletionPolling::Plain)
        {
            return Err(SettingConflict {
                settings: ["completion_times", "completion_polling"],
                values: ["true".to_owned(), "plain".to_owned()],
                rule: "plain completions have no times; leave one of the two out".to_owned(),
            });
        }
        let (given, least) = (self.site.receive_buffers, self.site.least_receive_buffers());
        if given >= least {
            return Ok(());
        }
        let (other, value, why) = if self.site.shared_receives {
            let why = "each place for a session keeps one, and 17 are for all";
            ("max_sessions", self.site.max_sessions, why)
        } else {
            let why = "without shared_receives each session has so many and 18 to itself";
            ("session_credit", self.site.session_credit, why)
        };
        Err(SettingConflict {
            settings: ["receive_buffers", other],
            values: [given.to_string(), value.to_string()],
            rule: format!("{why}, so it has to be {least} or more; raise it or lower {other}"),
        })
    }

    /// Lets variables of the environment override what was set; their values are checked.
    pub(crate) fn apply(&mut self, variables: &Site) {
        let Site {
            device,
            port,
            gid_index,
            partition_key,
            mtu_bytes,
            completion_polling,
            ..
        } = variables;
        self.device = device.clone().or(self.device.take());
        self.port = port.or(self.port);
        self.gid_index = gid_index.or(self.gid_index);
        let partition_key = partition_key.and_then(PartitionKey::new);
        self.partition_key = partition_key.or(self.partition_key);
        self.site.completion_polling = completion_polling.or(self.site.completion_polling);
        if let Some(mtu) = mtu_bytes.and_then(Mtu::from_bytes) {
            self.connection = self.connection.path_mtu(mtu);
        }
    }

    /// As the site wants them.
    pub(super) fn site(&self) -> SiteSettings {
        SiteSettings {
            connection: self.connection,
            ..self.site
        }
    }

    fn with_time(
        mut self,
        setting: &'static str,
        time: Duration,
        range: RangeInclusive<Duration>,
        set: fn(ConnectionSettings, Duration) -> Result<ConnectionSettings, VerbsError>,
    ) -> Self {
        self.note(SettingError::check_time(setting, time, range));
        // Out of the range it is an error already, of this type.
        self.connection = set(self.connection, time).unwrap_or(self.connection);
        self
    }

    /// Keeps the first error for `build` to report.
    fn note(&mut self, checked: Result<(), SettingError>) {
        self.error = self.error.or(checked.err());
    }
}

/// What one place for a session takes.
const LEAST_BUFFERS: u64 = 18;

impl Default for RdmaSettings {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn peers_are_trusted_one_by_one_or_all_or_none() {
        let [near, far]: [IpAddr; 2] = [[10, 1, 7, 9].into(), [10, 1, 8, 9].into()];
        let trusts = |settings: &RdmaSettings| [near, far].map(|peer| settings.trusts(peer));
        let nobody = RdmaSettings::new();
        assert_eq!(trusts(&nobody), [false, false]);
        assert_eq!(trusts(&nobody.trust_peers(true)), [true, true]);
        let some = RdmaSettings::new().trust_peers_at(move |peer| peer == near);
        assert_eq!(trusts(&some), [true, false]);
        let mapped = Ipv4Addr::new(10, 1, 7, 9).to_ipv6_mapped();
        assert!(some.trusts(mapped.into()));
        assert_eq!(trusts(&some.trust_peers(false)), [false, false]);
    }

    #[test]
    fn the_defaults_are_within_their_ranges() {
        let settings = RdmaSettings::new();
        assert_eq!(
            (settings.error(), settings.check_relations()),
            (None, Ok(()))
        );
        let site = settings.site();
        let again = RdmaSettings::new()
            .receive_buffers(site.receive_buffers)
            .held_buffers(site.held_buffers)
            .receive_buffer_bytes(site.buffer_bytes)
            .max_sessions(site.max_sessions)
            .session_credit(site.session_credit)
            .send_requests(site.send_requests)
            .inline_bytes(site.inline_bytes)
            .shared_receives(site.shared_receives)
            .timeout(site.connection.actual_timeout())
            .min_rnr_timer(site.connection.actual_rnr_timer())
            .retry_count(6);
        assert_eq!((again.error(), again.check_relations()), (None, Ok(())));
        assert_eq!(again.site(), site);
    }

    #[test]
    fn times_and_plain_completions_do_not_go_together() {
        let plain = RdmaSettings::new().completion_polling(CompletionPolling::Plain);
        assert_eq!(plain.check_relations(), Ok(()));
        let conflict = plain.completion_times(true).check_relations().unwrap_err();
        assert!(conflict.to_string().contains("have no times"), "{conflict}");
    }

    #[test]
    fn each_setting_out_of_its_range_says_so() {
        let second = Duration::from_secs(1);
        let cases = [
            (RdmaSettings::new().port(0), "port is 0; it may be 1 to 255"),
            (
                RdmaSettings::new().gid_index(256),
                "gid_index is 256; it may be 0 to 255",
            ),
            (
                RdmaSettings::new().partition_key(0x8000),
                "partition_key is 0; it may be 1 to 32767",
            ),
            (
                RdmaSettings::new().held_buffers((1 << 20) + 1),
                "held_buffers is 1048577; it may be 0 to 1048576",
            ),
            (
                RdmaSettings::new().receive_buffer_bytes(u32::MAX),
                "receive_buffer_bytes is 4294967295 bytes; it may be 4 KiB to 64 KiB",
            ),
            (
                RdmaSettings::new().session_credit(1),
                "session_credit is 1; it may be 2 to 65536",
            ),
            (
                RdmaSettings::new().max_sessions(0),
                "max_sessions is 0; it may be 1 to 65536",
            ),
            (
                RdmaSettings::new().send_requests(63),
                "send_requests is 63; it may be 64 to 32768",
            ),
            (
                RdmaSettings::new().inline_bytes(4097),
                "inline_bytes is 4097 bytes; it may be 0 bytes to 4 KiB",
            ),
            (
                RdmaSettings::new().timeout(Duration::ZERO),
                "timeout is 0ns; it may be 5µs to 8796s",
            ),
            (
                RdmaSettings::new().retry_count(7),
                "retry_count is 7; it may be 0 to 6",
            ),
            (
                RdmaSettings::new().min_rnr_timer(second),
                "min_rnr_timer is 1s; it may be 10µs to 655.36ms",
            ),
            (
                RdmaSettings::new().service_level(16),
                "service_level is 16; it may be 0 to 15",
            ),
            (
                RdmaSettings::new().landing_blocks((1 << 16) + 1),
                "landing_blocks is 65537; it may be 0 to 65536",
            ),
            (
                RdmaSettings::new().send_entries(0),
                "send_entries is 0; it may be 1 to 3",
            ),
            (
                RdmaSettings::new().send_entries(4),
                "send_entries is 4; it may be 1 to 3",
            ),
            (
                RdmaSettings::new().receive_buffers(17),
                "receive_buffers is 17; it may be 18 to 1048576",
            ),
            (
                RdmaSettings::new().receive_buffers((1 << 20) + 1),
                "receive_buffers is 1048577; it may be 18 to 1048576",
            ),
        ];
        for (settings, says) in cases {
            assert_eq!(settings.error().unwrap().to_string(), says);
        }
    }

    #[test]
    fn buffers_that_do_not_cover_the_sessions_are_told_with_both_settings() {
        let cases = [
            (
                RdmaSettings::new().receive_buffers(272),
                "receive_buffers is 272 and max_sessions is 256: each place for a session keeps \
                 one, and 17 are for all, so it has to be 273 or more; raise it or lower \
                 max_sessions",
            ),
            (
                RdmaSettings::new()
                    .receive_buffers(81)
                    .shared_receives(false),
                "receive_buffers is 81 and session_credit is 64: without shared_receives each \
                 session has so many and 18 to itself, so it has to be 82 or more; raise it or \
                 lower session_credit",
            ),
            (
                RdmaSettings::new()
                    .shared_receives(false)
                    .session_credit(5000),
                "receive_buffers is 4096 and session_credit is 5000: without shared_receives each \
                 session has so many and 18 to itself, so it has to be 5018 or more; raise it or \
                 lower session_credit",
            ),
        ];
        for (settings, says) in cases {
            assert_eq!(settings.error(), None);
            assert_eq!(settings.check_relations().unwrap_err().to_string(), says);
        }
        let few = RdmaSettings::new().max_sessions(1).receive_buffers(18);
        assert_eq!((few.error(), few.check_relations()), (None, Ok(())));
        let for_one = RdmaSettings::new()
            .receive_buffers(82)
            .shared_receives(false);
        assert_eq!((for_one.error(), for_one.check_relations()), (None, Ok(())));
    }

    #[test]
    fn variables_override_what_they_name_and_nothing_else() {
        let mut settings = RdmaSettings::new().device("mlx5_0").gid_index(3);
        settings.apply(&Site::default());
        assert_eq!(settings.device.as_deref(), Some("mlx5_0"));
        settings.apply(&Site {
            device: Some("rxe0".to_owned()),
            port: Some(2),
            partition_key: Some(0x8001),
            mtu_bytes: Some(1024),
            ..Site::default()
        });
        assert_eq!(settings.device.as_deref(), Some("rxe0"));
        assert_eq!((settings.port, settings.gid_index), (Some(2), Some(3)));
        assert_eq!(settings.partition_key, PartitionKey::new(0x8001));
        let expected = RdmaSettings::new().path_mtu(Mtu::from_bytes(1024).unwrap());
        assert_eq!(settings.site(), expected.site());
    }

    #[test]
    fn buffers_are_rounded_up_to_whole_lines() {
        let site = RdmaSettings::new().receive_buffer_bytes(5000).site();
        assert_eq!(site.buffer_bytes, 5056);
    }
}
