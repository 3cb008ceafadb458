//! Control messages, which engines send to each other besides records.
//!
//! A control frame carries one message, little-endian, with every length bounded. Messages are
//! built from channel state when the frame is built, so a close never overtakes the data it closes.
//! Unknown message types are an error: the protocol version in the handshake settles which messages
//! a peer may send.
#![forbid(unsafe_code)]

mod ask;
mod channel_spec;
mod close_reason;
mod known_receiver;
mod reader;
mod role;
#[cfg(test)]
mod tests;
mod writer;

use std::sync::Arc;

pub use ask::{Ask, Questions};
pub use channel_spec::ChannelSpec;
pub use close_reason::CloseReason;
pub use known_receiver::KnownReceiver;
pub use role::Role;

use super::{
    eager_block_id::EagerBlockId, frame::HEAD_BYTES, message_version::MAX_OLDER_VERSIONS,
    remote_memory::RemoteMemory,
};
use crate::credit::session::CONTROL_RESERVE_BYTES;
use reader::ControlReader;
use writer::{Writer, cut};

/// A control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// An end of a channel was opened.
    Open {
        /// The id that the opener gave its end.
        end: u32,
        /// The role of the end that was opened.
        role: Role,
        /// The channel's name.
        name: Arc<str>,
        /// The end's terms for the channel.
        spec: Arc<ChannelSpec>,
    },
    /// An end of a channel was closed.
    Close {
        /// The id that its opener gave it.
        end: u32,
        /// The role of the end that was closed.
        role: Role,
        /// The reason of the close.
        reason: CloseReason,
        /// The sequence of a sender's last message.
        final_sequence: u64,
    },
    /// A sender waits.
    Ask {
        /// The sending end.
        channel: u32,
        /// The changes that the sender waits for.
        ask: Ask,
    },
    /// Memory for an announced large message is ready: for its beginning, or for more of it.
    Grant {
        /// The sending end.
        channel: u32,
        /// The message's sequence.
        sequence: u64,
        /// The number of its bytes that are granted, from the first on.
        bytes: u64,
    },
    /// Grants memory for a large message that the sender's device is to write.
    GrantMemory {
        /// The sending end.
        channel: u32,
        /// The message's sequence.
        sequence: u64,
        /// The granted memory.
        memory: RemoteMemory,
    },
    /// Offers the sender's memory of an announced large message, which the receiver's device is to
    /// read.
    Offer {
        /// The sending end.
        channel: u32,
        /// The message's sequence.
        sequence: u64,
        /// The memory; `None` if the message waits for a grant, as others do.
        memory: Option<RemoteMemory>,
    },
    /// The offered memory of a message may be read over a rail too.
    OfferRail {
        /// The sending end.
        channel: u32,
        /// The message's sequence.
        sequence: u64,
        /// The number of the rail, less than
        /// [`MOST_RAILS`](crate::transfer::rendezvous::MOST_RAILS).
        rail: u8,
        /// The key to the memory on that rail.
        key: u32,
    },
    /// The receiver has read an offered message.
    Taken {
        /// The sending end.
        channel: u32,
        /// The message's sequence.
        sequence: u64,
    },
    /// Memory of the receiving end's is there for medium-sized messages to come.
    GrantEagerBlock {
        /// The sending end.
        channel: u32,
        /// The block's number, and that of its first use.
        eager_block: EagerBlockId,
        /// The block's memory.
        memory: RemoteMemory,
    },
    /// The sending end no longer needs such memory, and nothing of it is under way.
    ReturnEagerBlock {
        /// The sending end.
        channel: u32,
        /// The block's number, and that of the use that will not come.
        eager_block: EagerBlockId,
    },
    /// The peer closes the session; nothing follows.
    Goodbye {
        /// The words of the peer's program, if it ended this session alone; `None` if its whole node
        /// closes.
        reason: Option<Arc<str>>,
    },
    /// The peer has no such session any more, no matter what was under way.
    Abandoned,
    /// The peer no longer begins calls that it serves.
    Draining {
        /// True if every call that it had begun is answered, and the answers have arrived.
        is_done: bool,
    },
    /// The peer waits for credit.
    Want {
        /// The total that was granted to this end, as far as it knows.
        granted: u64,
    },
    /// Credit is not lent again: use it or surrender it.
    Recall {
        /// The total credit.
        credit: u64,
        /// No credit is left: the peer gets more when it says [`Want`](Self::Want).
        must_ask: bool,
    },
    /// Credit goes back unused.
    Surrender {
        /// The total that was surrendered; it counts as used.
        credit: u64,
    },
    /// Over new wires: an end that the hearer opened is known.
    Known {
        /// The id that its opener gave it.
        end: u32,
        /// The end is known to be closed.
        received_close: bool,
        /// The state of the channel's receiving end, for a sending end whose records go over the
        /// wires and whose channel is open.
        receiver: Option<KnownReceiver>,
    },
    /// Ends the list of known ends: the session goes on.
    Resumed {
        /// The newest end that the hearer is known to have opened, or 0. Earlier ends that were not
        /// listed are forgotten.
        newest_end: u32,
    },
    /// Asks for any frame as an answer; the peer sends an empty one. Sent when a frame of the
    /// peer's stays cut.
    Query,
    /// Over new wires: bytes of the hearer's were damaged on their way over old ones.
    Damaged {
        /// The total number of times.
        times: u64,
    },
}

/// Longest channel name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest schema text that travels.
pub const MAX_SCHEMA_BYTES: usize = 1024;
/// The longest reason for which a program ends a session.
pub const MAX_REASON_BYTES: usize = 255;
/// The longest description of an older version's structure.
pub const MAX_OLDER_SCHEMA_BYTES: usize = 512;

// The longest open fits the longest control frame.
const _: () = {
    const VERSION: usize = 16 + 2 + 4;
    let newest = 1 + 4 + 1 + 2 + MAX_NAME_BYTES + VERSION + MAX_SCHEMA_BYTES + 4 * 8;
    let older = 1 + MAX_OLDER_VERSIONS * (VERSION + MAX_OLDER_SCHEMA_BYTES);
    let flags = 1;
    assert!((HEAD_BYTES + newest + older + flags) as u64 <= CONTROL_RESERVE_BYTES);
};

/// Bytes that are no control message. Always the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control message is malformed: {what}")]
pub struct MalformedControl {
    /// The defect of the message.
    pub what: &'static str,
}

const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const ASK: u8 = 3;
const GRANT: u8 = 4;
const GOODBYE: u8 = 5;
const WANT: u8 = 6;
const RECALL: u8 = 7;
const SURRENDER: u8 = 8;
const GRANT_MEMORY: u8 = 9;
const GRANT_EAGER_BLOCK: u8 = 10;
const RETURN_EAGER_BLOCK: u8 = 11;
const KNOWN: u8 = 12;
const RESUMED: u8 = 13;
const ABANDONED: u8 = 14;
const QUERY: u8 = 15;
const DAMAGED: u8 = 16;
const DRAINING: u8 = 17;
const ENDED: u8 = 18;
const OFFER: u8 = 19;
const NO_OFFER: u8 = 20;
const TAKEN: u8 = 21;
const OFFER_RAIL: u8 = 22;

impl Control {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let writer = Writer::new(out);
        match self {
            Control::Open {
                end,
                role,
                name,
                spec,
            } => {
                let mut writer = writer.begin(OPEN);
                writer.end(*end, *role);
                writer.name(name);
                writer.spec(spec);
            }
            Control::Close {
                end,
                role,
                reason,
                final_sequence,
            } => {
                let mut writer = writer.begin(CLOSE);
                writer.end(*end, *role);
                writer.reason(*reason);
                writer.u64s([*final_sequence]);
            }
            Control::Ask { channel, ask } => {
                let mut writer = writer.begin(ASK);
                writer.u32(*channel);
                writer.u64s([ask.received, ask.released, ask.acknowledged]);
            }
            Control::Grant {
                channel,
                sequence,
                bytes,
            } => {
                let mut writer = writer.begin(GRANT);
                writer.u32(*channel);
                writer.u64s([*sequence, *bytes]);
            }
            Control::GrantMemory {
                channel,
                sequence,
                memory,
            } => {
                let mut writer = writer.begin(GRANT_MEMORY);
                writer.u32(*channel);
                writer.u64s([*sequence]);
                writer.memory(memory);
            }
            Control::Offer {
                channel,
                sequence,
                memory,
            } => {
                let mut writer = writer.begin(memory.map_or(NO_OFFER, |_| OFFER));
                writer.u32(*channel);
                writer.u64s([*sequence]);
                if let Some(memory) = memory {
                    writer.memory(memory);
                }
            }
            Control::OfferRail {
                channel,
                sequence,
                rail,
                key,
            } => {
                let mut writer = writer.begin(OFFER_RAIL);
                writer.u32(*channel);
                writer.u64s([*sequence]);
                writer.byte(*rail);
                writer.u32(*key);
            }
            Control::Taken { channel, sequence } => {
                let mut writer = writer.begin(TAKEN);
                writer.u32(*channel);
                writer.u64s([*sequence]);
            }
            Control::GrantEagerBlock {
                channel,
                eager_block,
                memory,
            } => {
                let mut writer = writer.begin(GRANT_EAGER_BLOCK);
                writer.u32(*channel);
                writer.u32(eager_block.to_word());
                writer.memory(memory);
            }
            Control::ReturnEagerBlock {
                channel,
                eager_block,
            } => {
                let mut writer = writer.begin(RETURN_EAGER_BLOCK);
                writer.u32(*channel);
                writer.u32(eager_block.to_word());
            }
            Control::Goodbye { reason: None } => {
                writer.begin(GOODBYE);
            }
            Control::Goodbye {
                reason: Some(reason),
            } => writer.begin(ENDED).text(reason, MAX_REASON_BYTES),
            Control::Abandoned => {
                writer.begin(ABANDONED);
            }
            Control::Query => {
                writer.begin(QUERY);
            }
            Control::Draining { is_done } => writer.begin(DRAINING).byte(u8::from(*is_done)),
            Control::Damaged { times } => writer.begin(DAMAGED).u64s([*times]),
            Control::Want { granted } => writer.begin(WANT).u64s([*granted]),
            Control::Recall { credit, must_ask } => {
                let mut writer = writer.begin(RECALL);
                writer.u64s([*credit]);
                writer.byte(u8::from(*must_ask));
            }
            Control::Surrender { credit } => writer.begin(SURRENDER).u64s([*credit]),
            Control::Known {
                end,
                received_close,
                receiver,
            } => {
                let mut writer = writer.begin(KNOWN);
                writer.u32(*end);
                writer.known(*received_close, receiver.as_ref());
            }
            Control::Resumed { newest_end } => writer.begin(RESUMED).u32(*newest_end),
        }
    }

    /// Returns whether the message is talk about credit, which must be possible without any
    /// credit. A surrender is not: it has what it surrenders.
    #[must_use]
    pub fn needs_no_credit(&self) -> bool {
        matches!(self, Control::Want { .. } | Control::Recall { .. })
    }

    /// Reads one message; trailing bytes are an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut reader = ControlReader::new(bytes);
        let message = match reader.byte()? {
            OPEN => Control::Open {
                end: reader.end()?,
                role: reader.role()?,
                name: reader.name()?.into(),
                spec: reader.spec()?.into(),
            },
            CLOSE => Control::Close {
                end: reader.end()?,
                role: reader.role()?,
                reason: reader.reason()?,
                final_sequence: reader.u64()?,
            },
            ASK => Control::Ask {
                channel: reader.end()?,
                ask: Ask {
                    received: reader.u64()?,
                    released: reader.u64()?,
                    acknowledged: reader.u64()?,
                },
            },
            GRANT => Control::Grant {
                channel: reader.end()?,
                sequence: reader.u64()?,
                bytes: reader.u64()?,
            },
            GRANT_MEMORY => Control::GrantMemory {
                channel: reader.end()?,
                sequence: reader.u64()?,
                memory: reader.memory()?,
            },
            OFFER => Control::Offer {
                channel: reader.end()?,
                sequence: reader.u64()?,
                memory: Some(reader.memory()?),
            },
            NO_OFFER => Control::Offer {
                channel: reader.end()?,
                sequence: reader.u64()?,
                memory: None,
            },
            OFFER_RAIL => Control::OfferRail {
                channel: reader.end()?,
                sequence: reader.u64()?,
                rail: reader.rail()?,
                key: reader.u32()?,
            },
            TAKEN => Control::Taken {
                channel: reader.end()?,
                sequence: reader.u64()?,
            },
            GRANT_EAGER_BLOCK => Control::GrantEagerBlock {
                channel: reader.end()?,
                eager_block: EagerBlockId::from_word(reader.u32()?),
                memory: reader.memory()?,
            },
            RETURN_EAGER_BLOCK => Control::ReturnEagerBlock {
                channel: reader.end()?,
                eager_block: EagerBlockId::from_word(reader.u32()?),
            },
            GOODBYE => Control::Goodbye { reason: None },
            ENDED => Control::Goodbye {
                reason: Some(reader.text(MAX_REASON_BYTES)?.into()),
            },
            QUERY => Control::Query,
            DAMAGED => Control::Damaged {
                times: reader.u64()?,
            },
            ABANDONED => Control::Abandoned,
            DRAINING => Control::Draining {
                is_done: reader.flag("a drain is neither under way nor done")?,
            },
            WANT => Control::Want {
                granted: reader.u64()?,
            },
            RECALL => Control::Recall {
                credit: reader.u64()?,
                must_ask: reader.flag("a recall is neither of all nor of a part")?,
            },
            SURRENDER => Control::Surrender {
                credit: reader.u64()?,
            },
            KNOWN => reader.known()?,
            RESUMED => Control::Resumed {
                newest_end: reader.u32()?,
            },
            _ => {
                return Err(MalformedControl {
                    what: "unknown type",
                });
            }
        };
        if !reader.is_empty() {
            return Err(MalformedControl {
                what: "bytes behind its end",
            });
        }
        Ok(message)
    }
}

/// Returns the part of a program's reason to end a session that the peer receives.
#[must_use]
pub fn received_reason(reason: &str) -> &str {
    cut(reason, MAX_REASON_BYTES)
}
