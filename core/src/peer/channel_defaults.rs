//! Settings of channels, and their defaults for the channels of a node.
#![forbid(unsafe_code)]

use std::time::Duration;

use ibex_protocol::format::channel_window::{ChannelWindow, HALF_WINDOW};
use ibex_ring::memory::{LARGEST_RING_BYTES, SMALLEST_RING_BYTES};

use crate::{ChannelBuilder, setting::settings};

settings! {
    /// The settings that a channel's builder starts with.
    pub(crate) struct ChannelDefaults;
    const SETTINGS in ChannelBuilder<C, At>, |self| self.template.defaults;

    /// Limits the messages that may be sent and not yet released.
    #[default(16384)] #[range(1..=1048576)]
    /// A larger window lets a sender run further ahead of its receiver. The receiver's end keeps 4
    /// bytes for each message, and over TCP and verbs 48 more once used.
    pub fn window_messages(messages: u64);

    /// Limits the bytes that may be sent and not yet released, and sets the size of the ring.
    #[default(2 MiB)] #[range(1 byte..=4 MiB)]
    /// The window is rounded up to a power of two from 64 KiB on.
    ///
    /// A message takes its bytes and 8 more. Messages that take more than half of the window get memory
    /// of their own, and count in
    /// [`max_unreleased_bytes`](Self::max_unreleased_bytes) instead. A larger window takes more
    /// [memory](crate::NodeBuilder#memory) at both ends, once used.
    pub fn window_bytes(bytes: u64);

    /// Limits the length of one message.
    #[default(16 MiB)] #[range(1 byte..=1 GiB)]
    /// The smaller value of both ends holds.
    ///
    /// The value of a receiving end is lowered to its node's
    /// [`memory_limit`](crate::NodeBuilder::memory_limit). A longer message is
    /// [`SendErrorKind::TooLong`](crate::SendErrorKind::TooLong). If
    /// [`max_unreleased_bytes`](Self::max_unreleased_bytes) is not set, a higher limit also lets
    /// more be sent and not released.
    pub fn max_message_bytes(bytes: u64);

    /// Limits the payload bytes that may be sent and not yet released by the receiving application.
    #[default(None => "`window_bytes` and twice `max_message_bytes`")] #[range(1 byte..=1 TiB)]
    /// The smaller value of both ends holds.
    ///
    /// The limit has two parts. Messages in the ring have `window_bytes`. Messages with memory of
    /// their own have the rest, but never less than `window_bytes`, and one of them may always be
    /// out. So the true maximum is twice `window_bytes`, or `window_bytes` and one message, if that
    /// is more than the setting.
    ///
    /// Over every fabric, a message that takes more than half of `window_bytes` has memory of its own.
    /// Shorter ones have it over TCP above 128 KiB, and over verbs above a receive buffer. A
    /// setting below `window_bytes` lowers the window too, to a power of two that is at least 64
    /// KiB. Over shared memory, at most 64 messages with memory of their own may be out, whatever
    /// is set. A higher setting lets a receiver that takes nothing hold more memory.
    pub fn max_unreleased_bytes(bytes: u64 as Option<u64>);

    /// Limits how long a blocking call waits for the peer to open its end.
    #[default(10 s)] #[range(0 s..)]
    /// The time is for each call until the peer has opened it; [`Duration::MAX`] is for ever.
    ///
    /// A call with a shorter time-out of its own waits no longer than that. The end stays open when
    /// the time is up. A longer time-out tolerates slower peers, and reports later a name that the
    /// peer never opens.
    pub fn open_timeout(timeout: Duration);

    /// Sets, at a receiving end, the number of acknowledged or released messages after which its
    /// sender learns of them at the latest.
    #[default(HALF_WINDOW => "half a window, and whenever the sender waits")] #[range(1..=1048576)]
    /// Half the window is the maximum.
    ///
    /// A smaller number helps a sender that reads [`acked`](crate::Sender::acked) without waiting,
    /// or that waits for several receivers. Each notice costs a small frame if no other frame goes
    /// that way, some 2 µs at both ends together over TCP. Over shared memory it costs the receiver
    /// a check of what was acknowledged.
    ///
    /// The receiver counts acknowledgements, and tells the sender, when it is next asked for a
    /// message; while the sender waits, at once.
    pub fn ack_every(messages: u64);

    /// Limits the calls of one caller that may be under way. Only callers and services have this
    /// limit.
    #[default(1024)] #[range(1..=65536)]
    /// Calls beyond the caller's own limit wait, and calls beyond the service's are
    /// refused. A higher limit lets more requests and
    /// replies take room in the window.
    pub fn max_in_flight(calls: u64);

    /// Sets whether messages of the channel carry the trace context in which they were sent.
    #[default(false)]
    /// They do if both ends ask for it and the sending node [knows its
    /// trace](crate::NodeBuilder::trace_context); the channel opens in any case. [`Message::trace_context`](crate::Message::trace_context) reads it.
    ///
    /// A message with it is 29 bytes longer, and takes a longer way through the code at both ends. [Loans](crate::Sender::loan) and messages of a
    /// [`Group`](crate::group::Group) carry none. Calls carry theirs without this setting.
    ///
    /// ```
    /// # #[cfg(feature = "rkyv")]
    /// # fn open(peer: &ibex::Peer) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut orders = peer.channel("orders").trace_context(true).receiver::<String>()?;
    /// while let Some(order) = orders.next()? {
    ///     if let Some(context) = order.trace_context() {
    ///         println!("taken in within {}", context.to_traceparent());
    ///     }
    ///     order.ack();
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn trace_context(is_carried: bool);
}

const _: () = assert!(LARGEST_RING_BYTES == 4 << 20, "the range of window_bytes");

impl ChannelDefaults {
    /// Bytes that may be sent and not yet released.
    pub(crate) fn unreleased_bytes(&self) -> u64 {
        let default = self.ring_window().bytes + 2 * self.max_message_bytes;
        self.max_unreleased_bytes.unwrap_or(default)
    }

    /// The window with its bytes rounded up to a ring's size.
    pub(crate) fn ring_window(&self) -> ChannelWindow {
        let smallest = SMALLEST_RING_BYTES as u64;
        let bytes = self.window_bytes.max(smallest).next_power_of_two();
        // The bound on unreleased bytes bounds the window too.
        let most = self.max_unreleased_bytes.unwrap_or(u64::MAX);
        let most = 1 << most.max(smallest).ilog2();
        ChannelWindow {
            messages: self.window_messages,
            bytes: bytes.min(most),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::template::ChannelTemplate;

    #[test]
    fn max_unreleased_bytes_bounds_the_window_and_follows_from_it() {
        let template = ChannelTemplate::with(ChannelDefaults::default(), "log");
        let channel = ChannelBuilder::new((), template);
        let channel = channel.window_bytes(100_000).max_message_bytes(1 << 20);
        let defaults = channel.template.defaults;
        assert_eq!(defaults.ring_window().bytes, 128 << 10);
        assert_eq!(defaults.unreleased_bytes(), (128 << 10) + (2 << 20));
        let channel = channel.max_unreleased_bytes(100_000);
        let defaults = channel.template.defaults;
        assert_eq!(defaults.ring_window().bytes, 64 << 10);
        assert_eq!(defaults.unreleased_bytes(), 100_000);
        assert!(channel.template.refused.is_none());
        let channel = channel.max_unreleased_bytes(0);
        assert!(channel.template.refused.is_some());
        assert_eq!(channel.template.defaults.ring_window().bytes, 64 << 10);
    }
}
