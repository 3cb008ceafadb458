//! The specification with which an end of a channel is opened.
#![forbid(unsafe_code)]

use crate::format::{channel_window::ChannelWindow, message_version::MessageVersion};

/// The terms under which an end opens a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// The message type, of several versions the newest.
    pub newest: MessageVersion,
    /// The older versions that the end knows, newest first: at most
    /// [`MAX_OLDER_VERSIONS`](crate::format::message_version::MAX_OLDER_VERSIONS). Only for a peer
    /// that can read such a list.
    pub older: Vec<MessageVersion>,
    /// The window that this end asks for.
    pub window: ChannelWindow,
    /// The longest message that this end accepts.
    pub max_message_bytes: u64,
    /// Payload bytes that may be out and not yet released, as this end asks.
    pub max_unreleased_bytes: u64,
    /// The end wants messages to carry trace context.
    pub is_traced: bool,
}

impl ChannelSpec {
    /// Returns all versions that the end knows, the newest first.
    pub fn versions(&self) -> impl Iterator<Item = &MessageVersion> {
        std::iter::once(&self.newest).chain(&self.older)
    }

    /// Returns the memory that the specification takes, with its texts.
    #[must_use]
    pub fn memory_bytes(&self) -> usize {
        let texts = self.versions().map(|version| version.schema.len());
        size_of::<Self>() + self.older.len() * size_of::<MessageVersion>() + texts.sum::<usize>()
    }
}
