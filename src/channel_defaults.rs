//! Defaults of a node's channels.

use std::time::Duration;

use ibex_protocol::format::channel_window::ChannelWindow;
use ibex_ring::memory::{LARGEST_RING_BYTES, SMALLEST_RING_BYTES};

use crate::setting::SettingError;

/// The settings that a channel's builder starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelDefaults {
    pub(crate) window: ChannelWindow,
    pub(crate) max_message_bytes: u64,
    /// The bound; `None` if it follows from the window and the longest message.
    pub(crate) max_unreleased_bytes: Option<u64>,
    pub(crate) open_timeout: Duration,
    pub(crate) ack_every: u64,
}

impl ChannelDefaults {
    pub(crate) fn set_window_messages(&mut self, messages: u64) -> Result<(), SettingError> {
        self.window.messages = messages;
        SettingError::check_count("window_messages", messages, 1..=1 << 20)
    }

    pub(crate) fn set_window_bytes(&mut self, bytes: u64) -> Result<(), SettingError> {
        self.window.bytes = bytes;
        SettingError::check_bytes("window_bytes", bytes, 1..=LARGEST_RING_BYTES as u64)
    }

    pub(crate) fn set_max_message_bytes(&mut self, bytes: u64) -> Result<(), SettingError> {
        self.max_message_bytes = bytes;
        SettingError::check_bytes("max_message_bytes", bytes, 1..=1 << 30)
    }

    pub(crate) fn set_max_unreleased_bytes(&mut self, bytes: u64) -> Result<(), SettingError> {
        self.max_unreleased_bytes = Some(bytes);
        SettingError::check_bytes("max_unreleased_bytes", bytes, 1..=1 << 40)
    }

    /// Bytes that may be sent and not yet released.
    pub(crate) fn unreleased_bytes(&self) -> u64 {
        let default = self.ring_window().bytes + 2 * self.max_message_bytes;
        self.max_unreleased_bytes.unwrap_or(default)
    }

    pub(crate) fn set_ack_every(&mut self, messages: u64) -> Result<(), SettingError> {
        self.ack_every = messages;
        SettingError::check_count("ack_every", messages, 1..=1 << 20)
    }

    /// The window with its bytes rounded up to a ring's size.
    pub(crate) fn ring_window(&self) -> ChannelWindow {
        let smallest = SMALLEST_RING_BYTES as u64;
        let bytes = self.window.bytes.max(smallest).next_power_of_two();
        // The bound on unreleased bytes bounds the window too.
        let most = self.max_unreleased_bytes.unwrap_or(u64::MAX);
        let most = 1 << most.max(smallest).ilog2();
        ChannelWindow {
            bytes: bytes.min(most),
            ..self.window
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn max_unreleased_bytes_bounds_the_window_and_follows_from_it() {
        let mut channel = ChannelDefaults {
            window: ChannelWindow {
                messages: 10,
                bytes: 100_000,
            },
            max_message_bytes: 1 << 20,
            max_unreleased_bytes: None,
            open_timeout: Duration::ZERO,
            ack_every: 1,
        };
        assert_eq!(channel.ring_window().bytes, 128 << 10);
        assert_eq!(channel.unreleased_bytes(), (128 << 10) + (2 << 20));
        channel.set_max_unreleased_bytes(100_000).expect("in range");
        assert_eq!(channel.ring_window().bytes, 64 << 10);
        assert_eq!(channel.unreleased_bytes(), 100_000);
        assert!(channel.set_max_unreleased_bytes(0).is_err());
        assert_eq!(channel.ring_window().bytes, 64 << 10);
    }
}
