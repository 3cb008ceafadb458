//! The specification with which an end of a channel is opened.
#![forbid(unsafe_code)]

use ibex_base::field::ListOf;

use super::{MAX_OLDER_SCHEMA_BYTES, MAX_SCHEMA_BYTES};
use crate::format::{
    channel_window::ChannelWindow,
    message_version::{MAX_OLDER_VERSIONS, MessageVersion, SchemaWithin},
};

ibex_base::wire_structs! {
    /// The terms under which an end opens a channel.
    pub struct ChannelSpec {
        /// The message type, of several versions the newest.
        pub newest: MessageVersion = "version" [SchemaWithin(MAX_SCHEMA_BYTES)],
        /// The window that this end asks for.
        pub window: ChannelWindow = "window",
        /// The longest message that this end accepts.
        pub max_message_bytes: u64 = "longest message",
        /// Payload bytes that may be out and not yet released, as this end asks.
        pub max_unreleased_bytes: u64 = "unreleased bytes",
        /// The older versions that the end knows, newest first: at most
        /// [`MAX_OLDER_VERSIONS`](crate::format::message_version::MAX_OLDER_VERSIONS). Only for a peer
        /// that can read such a list.
        pub older: Vec<MessageVersion> = "list of older versions"
            [ListOf(MAX_OLDER_VERSIONS, SchemaWithin(MAX_OLDER_SCHEMA_BYTES))],
        /// The end wants messages to carry trace context.
        pub is_traced: bool = "flags of a channel",
    }
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
