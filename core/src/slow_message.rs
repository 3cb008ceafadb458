//! Messages that took long, and where their time went.
#![forbid(unsafe_code)]

use std::{fmt, time::Instant};

use ibex_base::{Address, Rounded, fork};
use ibex_transport::node::{self, MessageStages};

use crate::{Node, PeerId, PeerNames, Role};

/// A message that took long at one of its ends, returned by
/// [`Node::slow_messages`](crate::Node::slow_messages).
///
/// Its `Display` is a line for people.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SlowMessage {
    /// The peer at the other end.
    pub peer: PeerId,
    /// The peer's address.
    pub address: Address,
    /// The peer's names.
    pub names: PeerNames,
    /// The channel's name.
    pub channel: String,
    /// The end that this node has.
    pub end: Role,
    /// The message's place in its channel; the first message has 1. A call as a whole has 0, and
    /// `channel` is the name of its service.
    pub sequence: u64,
    /// The time at which the last known stage was over.
    pub at: Instant,
    /// Where its time went.
    pub stages: MessageStages,
}

impl Node {
    /// Returns the slowest messages of the last minute, at most 32 with the slowest first, and where
    /// their time went. There are none unless the node was built with
    /// [`inspect`](crate::NodeBuilder::inspect): only such a node takes times, and each message costs it
    /// two to four looks at the clock.
    ///
    /// Each end has its own account of a message, by its own clock: the sending end of the way into
    /// the wire and of the answer, the receiving end of its queue and its program.
    /// [`MessageStages`](crate::stats::MessageStages) says which stage begins and ends where. Of more than
    /// 1024 messages of an end that are in one stage together, some are not timed.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let node = ibex::Node::builder().inspect().build()?;
    /// for message in node.slow_messages() {
    ///     // message 17 of channel "wal" to 10.0.0.2:7000 (named "replica-2"): 12.1ms, room 12ms,
    ///     // credit 0ns, frame 100us
    ///     println!("{message}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn slow_messages(&self) -> Vec<SlowMessage> {
        if fork::is_child() {
            return Vec::new();
        }
        let slowest = self.runtime().state().slow_messages().into_iter();
        slowest.map(SlowMessage::from).collect()
    }
}

impl From<node::SlowMessageFacts> for SlowMessage {
    fn from(message: node::SlowMessageFacts) -> Self {
        Self {
            peer: PeerId::of(&message.peer),
            address: message.peer.address,
            names: message.peer.names,
            channel: message.channel.to_string(),
            end: message.end,
            sequence: message.sequence,
            at: message.at,
            stages: message.stages,
        }
    }
}

impl fmt::Display for SlowMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            address,
            names,
            channel,
            end,
            sequence,
            stages,
            ..
        } = self;
        let way = match end {
            Role::Sender => "to",
            Role::Receiver => "from",
        };
        let total = Rounded(stages.total());
        match *sequence {
            node::SlowMessageFacts::A_CALL => write!(f, "call of service")?,
            sequence => write!(f, "message {sequence} of channel")?,
        }
        write!(f, " \"{channel}\" {way} {address}{names}: {total}")?;
        let known = stages.named().into_iter();
        known
            .filter_map(|(name, time)| Some((name, time?)))
            .try_for_each(|(name, time)| write!(f, ", {name} {}", Rounded(time)))
    }
}
