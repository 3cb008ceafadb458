//! The limits of a node, and the defaults of its channels.

use std::time::Duration;

use super::NodeBuilder;
use crate::{node_settings::LEAST_MEMORY_LIMIT, setting::SettingError};

impl NodeBuilder {
    /// Limits the channel ends that a session may have open at each of its nodes. The smaller value
    /// of both nodes holds. Default: 1024. Range: 1 to 16384.
    ///
    /// An end costs some hundred bytes and, once it is used, its [window and more](Self#memory).
    /// Opening one more fails at either end with
    /// [`OpenErrorKind::TooMany`](crate::OpenErrorKind::TooMany), which has the limit. A peer that
    /// opens one more all the same loses its session. An end that was dropped counts until the peer
    /// has opened its own end, which is then told what was sent and that the channel has ended.
    pub fn max_channels(mut self, ends: u32) -> Self {
        let given = u64::from(ends);
        self.note(SettingError::check_count("max_channels", given, 1..=16384));
        self.settings.max_channels = ends;
        self
    }

    /// Limits the sessions that one peer may have with this node, whichever connected. Default:
    /// 1024. Range: 1 to 65536.
    ///
    /// A session costs a descriptor (five over shared memory), and [memory](Self#memory). One more
    /// is refused: both ends hear the limit and whose it is, and `connect` fails as
    /// [`ConnectErrorKind::Refused`](crate::ConnectErrorKind::Refused). A session counts until its
    /// end is noticed here; a session of a node with itself counts twice.
    ///
    /// Peers with certificates are told apart by the names that they prove: all processes with one
    /// certificate share its places. Other peers are told apart by their [`identity`](Self::identity),
    /// and sessions of an earlier run do not keep the next run out. The limit keeps a faulty peer from
    /// taking all places. Strangers can make identities up, so against them there is
    /// [`max_node_sessions`](Self::max_node_sessions).
    pub fn max_peer_sessions(mut self, sessions: u32) -> Self {
        let given = u64::from(sessions);
        let range = 1..=MOST_SESSIONS;
        self.note(SettingError::check_count("max_peer_sessions", given, range));
        self.settings.max_peer_sessions = sessions;
        self
    }

    /// Limits all sessions of this node together. Default: 4096. Range: 1 to 65536. The price of a
    /// session, and the fate of one more, are those of
    /// [`max_peer_sessions`](Self::max_peer_sessions). The process's limit on descriptors (`ulimit
    /// -n`) is often lower.
    ///
    /// Where peers have certificates, a new session may take the place of a suspended one that has
    /// been without a connection for longer than with one, and whose peer has at least two places
    /// more. That session ends with [`PeerGone`](crate::EndCause::PeerGone), whose text says so.
    pub fn max_node_sessions(mut self, sessions: u32) -> Self {
        let given = u64::from(sessions);
        let range = 1..=MOST_SESSIONS;
        self.note(SettingError::check_count("max_node_sessions", given, range));
        self.settings.max_node_sessions = sessions;
        self
    }

    /// Limits the bytes that one TCP session lets its peer keep in flight. Default: 2 MiB. Range:
    /// 512 KiB to 1 GiB. A higher value lets one fast sender run further ahead of the network. Only
    /// bytes that arrived and were not read use memory.
    /// [`node_credit_bytes`](Self::node_credit_bytes) limits all sessions together, and if it is
    /// lower, it holds for one as well.
    pub fn session_credit_bytes(mut self, bytes: u64) -> Self {
        let range = 512 << 10..=1 << 30;
        self.note(SettingError::check_bytes(
            "session_credit_bytes",
            bytes,
            range,
        ));
        self.settings.session_credit_bytes = bytes;
        self
    }

    /// Limits the bytes that all TCP sessions of the node together let their peers keep in flight.
    /// Default: 256 MiB, enough for 128 sessions with the default
    /// [`session_credit_bytes`](Self::session_credit_bytes). Range: 512 KiB to 1 TiB.
    ///
    /// While the limit suffices, every session has its full credit. With more sessions, those that
    /// send share the limit equally. Sessions that send nothing keep little or none, so their next
    /// message waits for a round trip. Below 257 KiB for each session that sends, they take turns.
    ///
    /// A higher value takes more memory where many peers send faster than their messages are read:
    /// at worst this much, and a block of 1 MiB for each session.
    pub fn node_credit_bytes(mut self, bytes: u64) -> Self {
        let range = 512 << 10..=1 << 40;
        self.note(SettingError::check_bytes("node_credit_bytes", bytes, range));
        self.settings.node_credit_bytes = bytes;
        self
    }

    /// Limits the bytes of long messages that peers may make this process hold. Default: a quarter
    /// of what the process may have, which is the least of the machine's memory, its control
    /// groups' limits, and RLIMIT_AS and RLIMIT_DATA where they are set. Range: 1 MiB to 64 TiB.
    ///
    /// Short messages do not count, nor does the first MiB of each of four messages that begin in a
    /// session; the [sum](NodeBuilder#memory) has everything. A message counts from the arrival of
    /// its first bytes until the application has released it. Memory that is kept of it for the
    /// next message counts too.
    ///
    /// Over TCP and verbs a message is charged as it comes. Over shared memory the charge is the
    /// sender's memory that is mapped for it. A message for which there is no room waits, and its
    /// sender with it: nothing that was sent is lost. The oldest message that has begun to come
    /// always has room to become whole, once earlier ones are released.
    ///
    /// A receiver whose program holds everything that fits waits for its own program;
    /// [`Event::Stalled`](crate::Event::Stalled) says so.
    /// [`max_message_bytes`](crate::ChannelBuilder::max_message_bytes) of a receiving end is
    /// lowered to `memory_limit`; a longer message is
    /// [`SendErrorKind::TooLong`](crate::SendErrorKind::TooLong).
    ///
    /// All nodes of a process are charged together. If their limits differ, each takes in more only
    /// while the sum is below its own limit.
    ///
    /// A higher limit lets more or longer messages wait here for a slow program; a lower limit
    /// keeps them at their senders.
    pub fn memory_limit(mut self, bytes: u64) -> Self {
        let range = LEAST_MEMORY_LIMIT..=1 << 46;
        self.note(SettingError::check_bytes("memory_limit", bytes, range));
        self.settings.memory_limit = Some(bytes);
        self
    }

    /// Sets the default window in messages of this node's channels; see
    /// [`ChannelBuilder::window_messages`](crate::ChannelBuilder::window_messages).
    pub fn window_messages(mut self, messages: u64) -> Self {
        let checked = self.settings.channel.set_window_messages(messages);
        self.note(checked);
        self
    }

    /// Sets the default window in bytes of this node's channels; see
    /// [`ChannelBuilder::window_bytes`](crate::ChannelBuilder::window_bytes).
    pub fn window_bytes(mut self, bytes: u64) -> Self {
        let checked = self.settings.channel.set_window_bytes(bytes);
        self.note(checked);
        self
    }

    /// Sets the default limit of a message in this node's channels; see
    /// [`ChannelBuilder::max_message_bytes`](crate::ChannelBuilder::max_message_bytes).
    pub fn max_message_bytes(mut self, bytes: u64) -> Self {
        let checked = self.settings.channel.set_max_message_bytes(bytes);
        self.note(checked);
        self
    }

    /// Sets the default limit of unreleased bytes in this node's channels; see
    /// [`ChannelBuilder::max_unreleased_bytes`](crate::ChannelBuilder::max_unreleased_bytes).
    pub fn max_unreleased_bytes(mut self, bytes: u64) -> Self {
        let checked = self.settings.channel.set_max_unreleased_bytes(bytes);
        self.note(checked);
        self
    }

    /// Sets the default `open_timeout` of this node's channels; see
    /// [`ChannelBuilder::open_timeout`](crate::ChannelBuilder::open_timeout).
    pub fn open_timeout(mut self, timeout: Duration) -> Self {
        self.settings.channel.open_timeout = timeout;
        self
    }
}

/// A bound far above any limit on descriptors.
const MOST_SESSIONS: u64 = 1 << 16;
