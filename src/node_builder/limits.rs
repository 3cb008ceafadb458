//! The settings of a node's limits, and the defaults of its channels.
#![forbid(unsafe_code)]

use std::time::Duration;

use super::NodeBuilder;
use crate::setting::settings;

settings! {
    /// What a node's peers may make it hold.
    pub(crate) struct LimitSettings in NodeBuilder, |self| self.settings.limits;

    /// Limits the channel ends that a session may have open at each of its nodes. The smaller value
    /// of both nodes holds.
    #[default(1024)] #[range(1..=16384)]
    ///
    /// An end costs some hundred bytes and, once it is used, its [window and more](Self#memory).
    /// Opening one more fails at either end with
    /// [`OpenErrorKind::TooMany`](crate::OpenErrorKind::TooMany), which has the limit. A peer that
    /// opens one more all the same loses its session. An end that was dropped counts until the peer
    /// has opened its own end, which is then told what was sent and that the channel has ended.
    pub fn max_channels(ends: u32);

    /// Limits the sessions that one peer may have with this node, whichever connected.
    #[default(1024)] #[range(1..=65536)]
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
    pub fn max_peer_sessions(sessions: u32);

    /// Limits all sessions of this node together.
    #[default(4096)] #[range(1..=65536)]
    /// The price of a session, and the fate of one more, are those of
    /// [`max_peer_sessions`](Self::max_peer_sessions). The process's limit on descriptors (`ulimit
    /// -n`) is often lower.
    ///
    /// Where peers have certificates, a new session may take the place of a suspended one that has
    /// been without a connection for longer than with one, and whose peer has at least two places
    /// more. That session ends with [`PeerGone`](crate::EndCause::PeerGone), whose text says so.
    pub fn max_node_sessions(sessions: u32);

    /// Limits the bytes that one TCP session lets its peer keep in flight.
    #[default(2 MiB)] #[range(512 KiB..=1 GiB)]
    /// A higher value lets one fast sender run further ahead of the network. Only bytes that
    /// arrived and were not read use memory. [`node_credit_bytes`](Self::node_credit_bytes) limits
    /// all sessions together, and if it is lower, it holds for one as well.
    pub fn session_credit_bytes(bytes: u64);

    /// Limits the bytes that all TCP sessions of the node together let their peers keep in flight.
    #[default(256 MiB)] #[range(512 KiB..=1 TiB)]
    /// The default suffices for 128 sessions with the default
    /// [`session_credit_bytes`](Self::session_credit_bytes).
    ///
    /// While the limit suffices, every session has its full credit. With more sessions, those that
    /// send share the limit equally. Sessions that send nothing keep little or none, so their next
    /// message waits for a round trip. Below 257 KiB for each session that sends, they take turns.
    ///
    /// A higher value takes more memory where many peers send faster than their messages are read:
    /// at worst this much, and a block of 1 MiB for each session.
    pub fn node_credit_bytes(bytes: u64);

    /// Limits the bytes of long messages that peers may make this process hold.
    #[default(None => "a quarter of what the process may have")] #[range(1 MiB..=64 TiB)]
    /// A process may have the least of the machine's memory, its control groups' limits, and
    /// RLIMIT_AS and RLIMIT_DATA where they are set.
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
    pub fn memory_limit(bytes: u64 as Option<u64>);
}

/// Writes the setters of the defaults of a node's channels.
macro_rules! defaults_of_channels {
    ($($name:ident($argument:ident: $type:ty);)+) => {
        impl NodeBuilder {
            $(
                #[doc = concat!(
                    "Sets the default of [`", stringify!($name), "`](crate::ChannelBuilder::",
                    stringify!($name), ") for the channels of this node."
                )]
                pub fn $name(mut self, $argument: $type) -> Self {
                    let checked = self.settings.channel.$name($argument);
                    self.note(checked);
                    self
                }
            )+
        }
    };
}

defaults_of_channels! {
    window_messages(messages: u64);
    window_bytes(bytes: u64);
    max_message_bytes(bytes: u64);
    max_unreleased_bytes(bytes: u64);
    open_timeout(timeout: Duration);
}
