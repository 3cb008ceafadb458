//! Messages that took long, and where their time went.
#![forbid(unsafe_code)]

use std::{fmt, time::Instant};

use ibex_base::{Address, Rounded};
use ibex_transport::node::{self, MessageStages};

use crate::{PeerId, PeerNames, Role};

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
