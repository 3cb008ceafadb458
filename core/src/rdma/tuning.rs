//! Rare settings of RDMA, each of which has to be measured.
#![forbid(unsafe_code)]

use std::time::Duration;

use ibex_transport::rdma::PortSettings;
use ibex_verbs::{CompletionPolling, ConnectionSettings, Mtu};

use crate::setting::{SettingError, settings};

/// Rare settings of RDMA, whose defaults are right for nearly every network: queues, buffers,
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
/// | receiving | [`shared_receives`](Self::shared_receives), [`receive_buffer_bytes`](Self::receive_buffer_bytes), [`session_credit`](Self::session_credit), [`eager_blocks`](Self::eager_blocks), [`immediate_data`](Self::immediate_data) |
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

    fn note(&mut self, checked: Result<(), SettingError>) {
        self.error = self.error.or(checked.err());
    }
}

// What the transport refuses has been noted as an error already.
settings! {
    const TABLE in Tuning, |self| self.resources;

    /// Makes all sessions take their receives from one queue, if the device supports that.
    #[default(true)]
    /// Many sessions then need few buffers. With false, each session has a queue and
    /// `session_credit` + 18 of the receive buffers to itself. Choose this for a node with a
    /// handful of busy peers, on a device that takes longer over a shared queue (soft-RoCE does, by
    /// 4 of 46 µs for a small message). There are then `receive_buffers / (session_credit + 18)`
    /// places for sessions, 49 by default, and each session locks its buffers, and as many spare
    /// ones, when it begins.
    pub fn shared_receives(shared: bool);

    /// Sets the number of blocks that all trusted peers together are granted ahead, for messages
    /// between a receive buffer and 64 KiB.
    #[default(1024)] #[range(0..=65536)]
    /// A channel that has such messages has 8 blocks while it is used, and all channels of a
    /// session have at most 128. Each block takes 64 KiB and 192 bytes of locked memory. A message
    /// that finds no block waits for a round trip.
    pub fn eager_blocks(blocks: u32);

    /// Sets whether a write carries 32 bits of immediate data that announce it, which saves a
    /// request for a message that goes into a [block](Self::eager_blocks).
    #[default("the result of a test of the device")]
    /// The test runs when peers are trusted. Without immediate data, such a message is a write and
    /// a frame behind it. On soft-RoCE, 8 KiB there and a small message back then take 1.15 times
    /// as long. With a setting, no test is made: a device that does not carry immediate data fails
    /// such messages and their queue pair, or leaves the messages unannounced.
    pub fn immediate_data(mut self, is_used: bool) -> Self {
        self.resources.immediate = Some(is_used);
        self
    }

    /// Sets the length of a receive buffer.
    #[default("4.5 KiB")] #[range(4 KiB..=64 KiB)]
    /// The default holds a message of 4 KiB with some fields and its headers. The length is rounded
    /// up to a multiple of 64. A session's pieces are no longer than the smaller of both ends'
    /// buffers. A small message that arrives alone takes a whole buffer.
    pub fn receive_buffer_bytes(mut self, bytes: u64) -> Self {
        // A value out of the range is an error in any case.
        self.resources.buffer_bytes = (bytes.min(64 << 10) as u32).next_multiple_of(64);
        self
    }

    /// Sets the most receive buffers that one session's peer may fill before it receives from this
    /// node. The number is lower when many peers want buffers.
    #[default(64)] #[range(2..=65536)]
    /// A higher number keeps a longer or faster link busy.
    pub fn session_credit(buffers: u32);

    /// Sets the most sends that one session may have outstanding at a time.
    #[default(128)] #[range(64..=32768)]
    /// A higher number keeps a longer or faster link busy. Each send takes some 100 bytes of the
    /// device's memory and an entry of its completion queue.
    pub fn send_requests(requests: u32);

    /// Sets the number of bytes that a send may carry inside its request.
    #[default(220)] #[range(0 bytes..=4 KiB)]
    /// The device may give less. With a higher number, the device need not read memory for longer
    /// messages, but every entry of the send queue is longer.
    pub fn inline_bytes(mut self, bytes: u64) -> Self {
        self.resources.inline_bytes = bytes.min(4 << 10) as u32;
        self
    }

    /// Sets the way in which completions are polled.
    #[default("on a hardware device the result of its self-test, else plain")]
    /// [`NodeStats`](crate::stats::NodeStats) and the log tell which and why. A way that is set here is
    /// taken without a test, and a device that does not support it gives an error. Use this for a
    /// device on which the other way is measured to be faster, and for tests.
    pub fn completion_polling(polling: CompletionPolling);

    /// Gives messages the time at which the device had them whole
    /// ([`Message::received_at`](crate::Message::received_at)), if the device has a clock for that;
    /// soft-RoCE has none.
    #[default(false)]
    /// The times require an extended completion queue. Each receive costs a call to read the
    /// clock's ticks, and a multiplication to turn them into time.
    pub fn completion_times(wanted: bool);

    /// Sets the device's completion vector, which is the interrupt that wakes a thread that sleeps
    /// until a request completes.
    #[default(0)] #[range("0 to one less than the device has")]
    /// The example `devices` shows that number, and ibex checks the range when it opens the device.
    /// Nodes with vectors of their own share no interrupt, and `/proc/irq/N/smp_affinity` then
    /// chooses a core for each. A vector costs nothing, and has no effect on a thread that polls.
    pub fn completion_vector(vector: u32);

    /// Asks the device for PCIe relaxed ordering (`IBV_ACCESS_RELAXED_ORDERING`) in all memory that
    /// it uses for this node.
    #[default(false)]
    /// On some hosts, such as AMD EPYC and virtual machines, writes are then faster. On others the
    /// setting makes no difference or is slower. Set it if `ib_write_bw`, which asks for relaxed
    /// ordering, is faster than `ib_write_bw --disable_pcie_relaxed`. Messages stay in order and
    /// whole, because ibex reads memory only after the completion that announces it. Devices,
    /// kernels and libraries without relaxed ordering ignore the setting.
    pub fn relaxed_ordering(relaxed: bool);

    /// Sets the number of pieces of memory that the device collects for one send.
    #[default(3)] #[range(1..=3)]
    /// The device may take fewer. Pieces beyond that number are copied first. Use this for a device
    /// that is slower with several pieces, and for tests.
    pub fn send_entries(pieces: u32);

    /// Sets the payload bytes of a packet.
    #[default("the smaller of what both ports carry")] #[range(256..=4096)]
    /// The number is rounded down to a power of two. A session whose ports carry less goes over
    /// another fabric. Smaller packets cost throughput.
    pub fn path_mtu(mut self, bytes: u64) -> Self {
        let rounded = bytes
            .min(4 << 10)
            .checked_ilog2()
            .and_then(|power| Mtu::from_bytes(1 << power));
        if let Some(mtu) = rounded {
            self.connection = self.connection.path_mtu(mtu);
        }
        self
    }

    /// Sets how long an acknowledgement may take before a packet is sent again.
    #[default("67 ms")] #[range(5 us..=8796 s)]
    /// The time is rounded up to 4.096 µs times a power of two. A shorter time repairs a loss
    /// sooner, but takes a busy peer for a lost one.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.connection = self.connection.timeout(timeout).unwrap_or(self.connection);
        self
    }

    /// Sets how often a packet is sent again before the queue pair fails and its session is
    /// suspended.
    #[default(6)] #[range(0..=6)]
    /// Together with `timeout`, the number determines when the loss of a peer is noticed: after
    /// `timeout * (retry_count + 1)`, by default 0.5 s, and up to four times that, since devices
    /// may wait for longer. A lower number gives up on a link that is merely bad.
    pub fn retry_count(mut self, tries: u8) -> Self {
        self.connection = self.connection.retry_count(tries).unwrap_or(self.connection);
        self
    }

    /// Sets how long a peer waits before it repeats a send that found no receive buffer.
    #[default("1.28 ms")] #[range(10 us..=655360 us)]
    /// The time is rounded up to one of 32 steps. Credits prevent such sends. If they fail, a shorter
    /// time burdens the link.
    pub fn min_rnr_timer(mut self, timer: Duration) -> Self {
        self.connection = self.connection.min_rnr_timer(timer).unwrap_or(self.connection);
        self
    }
}
