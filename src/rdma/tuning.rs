//! Rare settings of RDMA, each of which has to be measured.
#![forbid(unsafe_code)]

use std::{ops::RangeInclusive, time::Duration};

use ibex_transport::rdma::PortSettings;
use ibex_verbs::{CompletionPolling, ConnectionSettings, Mtu, VerbsError};

use crate::setting::SettingError;

/// Rare settings of RDMA, whose defaults are right for nearly every site: queues, buffers,
/// completions and repair. Given to [`RdmaSettings::tuning`](super::RdmaSettings::tuning).
///
/// The documentation of each setting names its cost. Change a setting only if a measurement
/// supports it. `IBEX_RDMA_MTU` and `IBEX_RDMA_COMPLETIONS` override two of them.
///
/// ```
/// use std::time::Duration;
/// use ibex::rdma::{RdmaSettings, Tuning};
///
/// let tuning = Tuning::new().session_credit(256).timeout(Duration::from_millis(20));
/// let builder = ibex::Node::builder().rdma(RdmaSettings::new().tuning(tuning));
/// ```
///
/// | purpose | settings |
/// |---|---|
/// | receiving | [`shared_receives`](Self::shared_receives), [`receive_buffer_bytes`](Self::receive_buffer_bytes), [`session_credit`](Self::session_credit), [`landing_blocks`](Self::landing_blocks), [`immediate_data`](Self::immediate_data) |
/// | sending | [`send_requests`](Self::send_requests), [`send_entries`](Self::send_entries), [`inline_bytes`](Self::inline_bytes), [`relaxed_ordering`](Self::relaxed_ordering) |
/// | completions | [`completion_polling`](Self::completion_polling), [`completion_times`](Self::completion_times), [`completion_vector`](Self::completion_vector) |
/// | packets and repair | [`path_mtu`](Self::path_mtu), [`timeout`](Self::timeout), [`retry_count`](Self::retry_count), [`min_rnr_timer`](Self::min_rnr_timer) |
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "tuning does nothing until it is given to settings"]
pub struct Tuning {
    pub(super) resources: PortSettings,
    pub(super) connection: ConnectionSettings,
    /// The first setting that was out of its range.
    pub(super) error: Option<SettingError>,
}

impl Tuning {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes all sessions take their receives from one queue, if the device supports that. Default:
    /// true, with which many sessions need few buffers. With false, each session has a queue and
    /// `session_credit` + 18 of the receive buffers to itself. Choose this for a node with a
    /// handful of busy peers, on a device that takes longer over a shared queue (soft-RoCE does, by
    /// 4 of 46 µs for a small message). There are then `receive_buffers / (session_credit + 18)`
    /// places for sessions, 49 by default, and each session locks its buffers, and as many spare
    /// ones, when it begins.
    pub fn shared_receives(mut self, shared: bool) -> Self {
        self.resources.shared_receives = shared;
        self
    }

    /// Sets the number of blocks that all trusted peers together are granted ahead, for messages
    /// between a receive buffer and 64 KiB. Default: 1024. Range: 0 to 65536. A channel that has
    /// such messages has 8 blocks while it is used, and all channels of a session have at most 128.
    /// Each block takes 64 KiB and 192 bytes of locked memory. A message that finds no block waits
    /// for a round trip.
    pub fn landing_blocks(mut self, blocks: u32) -> Self {
        let (given, range) = (blocks.into(), 0..=1 << 16);
        self.note(SettingError::check_count("landing_blocks", given, range));
        self.resources.landing_blocks = blocks;
        self
    }

    /// Sets whether a write carries 32 bits of immediate data that announce it, which saves a
    /// request for a message that goes into a [block](Self::landing_blocks). Default: the result of
    /// a test of the device, which runs when peers are trusted. Without immediate data, such a
    /// message is a write and a frame behind it. On soft-RoCE, 8 KiB there and a small message back
    /// then take 1.15 times as long. With a setting, no test is made: a device that does not carry
    /// immediate data fails such messages and their queue pair, or leaves the messages unannounced.
    pub fn immediate_data(mut self, is_used: bool) -> Self {
        self.resources.immediate = Some(is_used);
        self
    }

    /// Sets the length of a receive buffer. Default: 4.5 KiB, which holds a message of 4 KiB with
    /// some fields and its headers. Range: 4 KiB to 64 KiB, rounded up to a multiple of 64. A
    /// session's pieces are no longer than the smaller of both ends' buffers. A small message that
    /// arrives alone takes a whole buffer.
    pub fn receive_buffer_bytes(mut self, bytes: u32) -> Self {
        let range = 4 << 10..=64 << 10;
        self.note(SettingError::check_bytes(
            "receive_buffer_bytes",
            bytes.into(),
            range,
        ));
        // A value out of the range is an error in any case.
        self.resources.buffer_bytes = bytes.min(64 << 10).next_multiple_of(64);
        self
    }

    /// Sets the most receive buffers that one session's peer may fill before it hears from this
    /// node. The number is lower when many peers want buffers. Default: 64. Range: 2 to 65536. A
    /// higher number keeps a longer or faster link busy.
    pub fn session_credit(mut self, buffers: u32) -> Self {
        let given = buffers.into();
        self.note(SettingError::check_count(
            "session_credit",
            given,
            2..=1 << 16,
        ));
        self.resources.session_credit = buffers;
        self
    }

    /// Sets the most sends that one session may have outstanding at a time. Default: 128. Range: 64
    /// to 32768. A higher number keeps a longer or faster link busy. Each send takes some 100 bytes
    /// of the device's memory and an entry of its completion queue.
    pub fn send_requests(mut self, requests: u32) -> Self {
        let given = requests.into();
        self.note(SettingError::check_count(
            "send_requests",
            given,
            64..=1 << 15,
        ));
        self.resources.send_requests = requests;
        self
    }

    /// Sets the number of bytes that a send may carry inside its request. Default: 220. Range: 0 to
    /// 4 KiB; the device may give less. With a higher number, the device need not read memory for
    /// longer messages, but every entry of the send queue is longer.
    pub fn inline_bytes(mut self, bytes: u32) -> Self {
        let range = 0..=4 << 10;
        self.note(SettingError::check_bytes(
            "inline_bytes",
            bytes.into(),
            range,
        ));
        self.resources.inline_bytes = bytes;
        self
    }

    /// Sets the way in which completions are polled. Default: on a hardware device the result of
    /// its self-test, else plain; [`NodeStats`](crate::NodeStats) and the log tell which and why. A
    /// way that is set here is taken without a test, and a device that does not support it gives an
    /// error. Use this for a device on which the other way is measured to be faster, and for tests.
    pub fn completion_polling(mut self, polling: CompletionPolling) -> Self {
        self.resources.completion_polling = Some(polling);
        self
    }

    /// Gives messages the time at which the device had them whole
    /// ([`Message::received_at`](crate::Message::received_at)), if the device has a clock for that;
    /// soft-RoCE has none. Default: false. The times require an extended completion queue. Each
    /// receive costs a call to read the clock's ticks, and a multiplication to turn them into time.
    pub fn completion_times(mut self, wanted: bool) -> Self {
        self.resources.completion_times = wanted;
        self
    }

    /// Sets the device's completion vector, which is the interrupt that wakes a thread that sleeps
    /// until a request completes. Default: 0. Range: 0 to one less than the device has. The example
    /// `devices` shows that number, and ibex checks the range when it opens the device. Nodes with
    /// vectors of their own share no interrupt, and `/proc/irq/N/smp_affinity` then chooses a core
    /// for each. A vector costs nothing, and has no effect on a thread that polls.
    pub fn completion_vector(mut self, vector: u32) -> Self {
        self.resources.completion_vector = vector;
        self
    }

    /// Asks the device for PCIe relaxed ordering (`IBV_ACCESS_RELAXED_ORDERING`) in all memory that
    /// it uses for this node. Default: false. On some hosts, such as AMD EPYC and virtual machines,
    /// writes are then faster. On others the setting makes no difference or is slower. Set it if
    /// `ib_write_bw`, which asks for relaxed ordering, is faster than `ib_write_bw
    /// --disable_pcie_relaxed`. Messages stay in order and whole, because ibex reads memory only
    /// after the completion that announces it. Devices, kernels and libraries without relaxed
    /// ordering ignore the setting.
    pub fn relaxed_ordering(mut self, relaxed: bool) -> Self {
        self.resources.relaxed_ordering = relaxed;
        self
    }

    /// Sets the number of pieces of memory that the device collects for one send. Default: 3.
    /// Range: 1 to 3; the device may take fewer. Pieces beyond that number are copied first. Use
    /// this for a device that is slower with several pieces, and for tests.
    pub fn send_entries(mut self, pieces: u32) -> Self {
        self.note(SettingError::check_count(
            "send_entries",
            pieces.into(),
            1..=3,
        ));
        self.resources.send_entries = pieces;
        self
    }

    /// Sets the payload bytes of a packet. Default: the smaller of what both ports carry. Range:
    /// 256 to 4096, rounded down to a power of two. A session whose ports carry less goes over
    /// another fabric. Smaller packets cost throughput.
    pub fn path_mtu(mut self, bytes: u32) -> Self {
        self.note(SettingError::check_count(
            "path_mtu",
            bytes.into(),
            256..=4096,
        ));
        let rounded = bytes
            .checked_ilog2()
            .and_then(|power| Mtu::from_bytes(1 << power));
        if let Some(mtu) = rounded {
            self.connection = self.connection.path_mtu(mtu);
        }
        self
    }

    /// Sets how long an acknowledgement may take before a packet is sent again. Default: 67 ms.
    /// Range: 5 µs to 8796 s, rounded up to 4.096 µs times a power of two. A shorter time repairs a
    /// loss sooner, but takes a busy peer for a lost one.
    pub fn timeout(self, timeout: Duration) -> Self {
        let range = Duration::from_micros(5)..=Duration::from_secs(8796);
        self.with_time("timeout", timeout, range, ConnectionSettings::timeout)
    }

    /// Sets how often a packet is sent again before the queue pair fails and its session is
    /// suspended. Default: 6. Range: 0 to 6. Together with `timeout`, the number determines when
    /// the loss of a peer is noticed: after `timeout * (retry_count + 1)`, by default 0.5 s, and up
    /// to four times that, since devices may wait for longer. A lower number gives up on a link
    /// that is merely bad.
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

    /// Sets how long a peer waits before it repeats a send that found no receive buffer. Default:
    /// 1.28 ms. Range: 10 µs to 655.36 ms, rounded up to one of 32 steps. Credits prevent such
    /// sends. If they fail, a shorter time burdens the link.
    pub fn min_rnr_timer(self, timer: Duration) -> Self {
        let range = Duration::from_micros(10)..=Duration::from_micros(655_360);
        self.with_time(
            "min_rnr_timer",
            timer,
            range,
            ConnectionSettings::min_rnr_timer,
        )
    }

    fn with_time(
        mut self,
        setting: &'static str,
        time: Duration,
        range: RangeInclusive<Duration>,
        set: fn(ConnectionSettings, Duration) -> Result<ConnectionSettings, VerbsError>,
    ) -> Self {
        self.note(SettingError::check_time(setting, time, range));
        // A time out of the range has been noted as an error already, of this type.
        self.connection = set(self.connection, time).unwrap_or(self.connection);
        self
    }

    fn note(&mut self, checked: Result<(), SettingError>) {
        self.error = self.error.or(checked.err());
    }
}
