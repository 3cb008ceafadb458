//! What the channels of a node are opened with, where they say nothing else.

use std::time::Duration;

use ibex_transport::{
    engine::channel_window::ChannelWindow,
    memory::{LARGEST_RING_BYTES, SMALLEST_RING_BYTES},
};

use crate::SettingError;

/// What a channel's builder starts with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ChannelDefaults {
    pub(crate) window: ChannelWindow,
    pub(crate) max_message_bytes: u64,
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

    pub(crate) fn set_ack_every(&mut self, messages: u64) -> Result<(), SettingError> {
        self.ack_every = messages;
        SettingError::check_count("ack_every", messages, 1..=1 << 20)
    }

    /// The window with its bytes rounded up to a ring's size.
    pub(crate) fn ring_window(&self) -> ChannelWindow {
        let bytes = self
            .window
            .bytes
            .max(SMALLEST_RING_BYTES as u64)
            .next_power_of_two();
        ChannelWindow {
            bytes,
            ..self.window
        }
    }
}
