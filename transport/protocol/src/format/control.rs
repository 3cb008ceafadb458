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
mod role;
#[cfg(test)]
mod tests;

use std::{ops::RangeInclusive, sync::Arc};

use ibex_base::field::{AsItself, AtMost, FieldCodec, FieldError, FieldReader, WireField, cut};

pub use ask::{Ask, Questions};
pub use channel_spec::ChannelSpec;
pub use close_reason::CloseReason;
pub use known_receiver::{KnownEnd, KnownReceiver};
pub use role::Role;

use super::{
    eager_block_id::EagerBlockId,
    frame::HEAD_BYTES,
    message_version::MAX_OLDER_VERSIONS,
    remote_memory::{MOST_RAILS, RemoteMemory},
};
use crate::credit::session::CONTROL_RESERVE_BYTES;

/// Defines the messages: each with its number, and its fields in their order, as in
/// [`wire_structs!`](ibex_base::wire_structs!). A message may have a second number, with which the
/// field behind it is there.
macro_rules! control_messages {
    (@codec) => { AsItself };
    (@codec $codec:expr) => { $codec };
    ($(#[$meta:meta])* $name:ident {$(
        $(#[$doc:meta])*
        $variant:ident = $number:literal $({
            $($(#[$field_doc:meta])* $field:ident: $type:ty = $label:literal $([$codec:expr])?,)*
            $($with:literal =>
                $(#[$last_doc:meta])* $last:ident: $last_type:ty = $last_label:literal
                $([$last_codec:expr])?,)?
        })?,
    )*}) => {
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $(
                $(#[$doc])*
                $variant $({
                    $($(#[$field_doc])* $field: $type,)*
                    $($(#[$last_doc])* $last: Option<$last_type>,)?
                })?,
            )*
        }

        impl $name {
            /// Appends the message to `out`.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Self::$variant $({ $($field,)* $($last,)? })? => {
                        let number: u8 = $number;
                        $($(let number = if $last.is_some() { $with } else { number };)?)?
                        out.push(number);
                        $(
                            $(control_messages!(@codec $($codec)?).write($field, out);)*
                            $(if let Some(last) = $last {
                                control_messages!(@codec $($last_codec)?).write(last, out);
                            })?
                        )?
                    })*
                }
            }

            fn decode_fields(from: &mut FieldReader<'_>) -> Result<Self, FieldError> {
                let number = u8::read(from, TYPE)?;
                Ok(match number {
                    $($number $($(| $with)?)? => Self::$variant $({
                        $($field: control_messages!(@codec $($codec)?).read(from, $label)?,)*
                        $($last: match number {
                            $with => {
                                let codec = control_messages!(@codec $($last_codec)?);
                                Some(codec.read(from, $last_label)?)
                            }
                            _ => None,
                        },)?
                    })?,)*
                    number => {
                        let (field, value) = (TYPE, number.into());
                        return Err(FieldError::UnknownValue { field, value });
                    }
                })
            }
        }
    };
}

control_messages! {
    /// A control message.
    Control {
        /// An end of a channel was opened.
        Open = 1 {
            /// The id that the opener gave its end.
            end: u32 = "channel" [ID],
            /// The role of the end that was opened.
            role: Role = "role",
            /// The channel's name.
            name: Arc<str> = "channel name" [ChannelName],
            /// The end's terms for the channel.
            spec: Arc<ChannelSpec> = "channel",
        },
        /// An end of a channel was closed.
        Close = 2 {
            /// The id that its opener gave it.
            end: u32 = "channel" [ID],
            /// The role of the end that was closed.
            role: Role = "role",
            /// The reason of the close.
            reason: CloseReason = "reason of the close",
            /// The sequence of a sender's last message.
            final_sequence: u64 = "sequence",
        },
        /// A sender waits.
        Ask = 3 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The changes that the sender waits for.
            ask: Ask = "question",
        },
        /// Memory for an announced large message is ready: for its beginning, or for more of it.
        Grant = 4 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The message's sequence.
            sequence: u64 = "sequence",
            /// The number of its bytes that are granted, from the first on.
            bytes: u64 = "granted bytes",
        },
        /// Grants memory for a large message that the sender's device is to write.
        GrantMemory = 9 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The message's sequence.
            sequence: u64 = "sequence",
            /// The granted memory.
            memory: RemoteMemory = "memory",
        },
        /// Offers the sender's memory of an announced large message, which the receiver's device is to
        /// read.
        Offer = 20 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The message's sequence.
            sequence: u64 = "sequence",
            19 =>
            /// The memory; `None` if the message waits for a grant, as others do.
            memory: RemoteMemory = "memory",
        },
        /// The offered memory of a message may be read over a rail too.
        OfferRail = 22 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The message's sequence.
            sequence: u64 = "sequence",
            /// The number of the rail, less than
            /// [`MOST_RAILS`].
            rail: u8 = "rail" [0..=MOST_RAILS as u8 - 1],
            /// The key to the memory on that rail.
            key: u32 = "key",
        },
        /// The receiver has read an offered message.
        Taken = 21 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The message's sequence.
            sequence: u64 = "sequence",
        },
        /// Memory of the receiving end's is there for medium-sized messages to come.
        GrantEagerBlock = 10 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The block's number, and that of its first use.
            eager_block: EagerBlockId = "eager block",
            /// The block's memory.
            memory: RemoteMemory = "memory",
        },
        /// The sending end no longer needs such memory, and nothing of it is under way.
        ReturnEagerBlock = 11 {
            /// The sending end.
            channel: u32 = "channel" [ID],
            /// The block's number, and that of the use that will not come.
            eager_block: EagerBlockId = "eager block",
        },
        /// The peer closes the session; nothing follows.
        Goodbye = 5 {
            18 =>
            /// The words of the peer's program, if it ended this session alone; `None` if its whole
            /// node closes.
            reason: Arc<str> = "reason" [AtMost(MAX_REASON_BYTES)],
        },
        /// The peer has no such session any more, no matter what was under way.
        Abandoned = 14,
        /// The peer no longer begins calls that it serves.
        Draining = 17 {
            /// True if every call that it had begun is answered, and the answers have arrived.
            is_done: bool = "state of a drain",
        },
        /// The peer waits for credit.
        Want = 6 {
            /// The total that was granted to this end, as far as it knows.
            granted: u64 = "credit",
        },
        /// Credit is not lent again: use it or surrender it.
        Recall = 7 {
            /// The total credit.
            credit: u64 = "credit",
            /// No credit is left: the peer gets more when it says [`Want`](Self::Want).
            must_ask: bool = "need to ask for credit",
        },
        /// Credit goes back unused.
        Surrender = 8 {
            /// The total that was surrendered; it counts as used.
            credit: u64 = "credit",
        },
        /// Over new wires: an end that the hearer opened is known.
        Known = 12 {
            /// The id that its opener gave it.
            end: u32 = "channel" [ID],
            /// The state in which it is known.
            state: KnownEnd = "state of an end",
        },
        /// Ends the list of known ends: the session goes on.
        Resumed = 13 {
            /// The newest end that the hearer is known to have opened, or 0. Earlier ends that were
            /// not listed are forgotten.
            newest_end: u32 = "newest channel",
        },
        /// Asks for any frame as an answer; the peer sends an empty one. Sent when a frame of the
        /// peer's stays cut.
        Query = 15,
        /// Over new wires: bytes of the hearer's were damaged on their way over old ones.
        Damaged = 16 {
            /// The total number of times.
            times: u64 = "count of damages",
        },
    }
}

impl Control {
    /// Returns whether the message is talk about credit, which must be possible without any
    /// credit. A surrender is not: it has what it surrenders.
    #[must_use]
    pub fn needs_no_credit(&self) -> bool {
        matches!(self, Control::Want { .. } | Control::Recall { .. })
    }

    /// Reads one message; trailing bytes are an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut reader = FieldReader(bytes);
        let message = Self::decode_fields(&mut reader).map_err(MalformedControl)?;
        match reader.0.len() {
            0 => Ok(message),
            length => Err(MalformedControl(FieldError::Trailing {
                field: "it",
                length,
            })),
        }
    }
}

/// The name of a channel, as this end's handles may have it.
struct ChannelName;

impl FieldCodec<Arc<str>> for ChannelName {
    fn read(&self, from: &mut FieldReader<'_>, name: &'static str) -> Result<Arc<str>, FieldError> {
        let text: Arc<str> = AtMost(MAX_NAME_BYTES).read(from, name)?;
        match text.is_empty() {
            true => Err(FieldError::UnknownValue {
                field: "length of a channel name",
                value: 0,
            }),
            false => Ok(text),
        }
    }

    fn write(&self, value: &Arc<str>, out: &mut Vec<u8>) {
        AtMost(MAX_NAME_BYTES).write(value, out);
    }
}

/// Returns the part of a program's reason to end a session that the peer receives.
#[must_use]
pub fn received_reason(reason: &str) -> &str {
    cut(reason, MAX_REASON_BYTES)
}

/// The name of a message's number in errors.
const TYPE: &str = "type";

/// The ids of ends: 0 is none.
const ID: RangeInclusive<u32> = 1..=u32::MAX;

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
#[error("a control message is malformed: {0}")]
pub struct MalformedControl(
    /// The defect of the message.
    pub FieldError,
);
