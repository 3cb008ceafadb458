//! Control messages: what engines say to each other beside records.
//!
//! One message per control frame, little-endian, every length bounded. They are built
//! from channel state when the frame is built, so a close never overtakes the data it
//! closes. Unknown message types are an error: what a peer may say is settled by the
//! protocol version in the handshake.
#![forbid(unsafe_code)]

use std::fmt;

use super::channel_window::ChannelWindow;

/// Which end of a channel someone holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The end that sends.
    Sender,
    /// The end that receives.
    Receiver,
}

impl Role {
    /// The role at the other end.
    #[must_use]
    pub fn opposite(self) -> Self {
        match self {
            Role::Sender => Role::Receiver,
            Role::Receiver => Role::Sender,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Sender => "sender",
            Role::Receiver => "receiver",
        })
    }
}

/// What an end asks of the channel it opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChannelSpec {
    /// Structural fingerprint of the message type and its codec.
    pub fingerprint: [u8; 16],
    /// The same for people, cut to [`MAX_SCHEMA_BYTES`].
    pub schema: String,
    /// Alignment of every payload: a power of two, 8 to 64.
    pub alignment: u32,
    /// The window that this end asks for.
    pub window: ChannelWindow,
    /// The longest message that this end accepts.
    pub max_message_bytes: u64,
}

/// Why an end closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CloseReason {
    /// Its last handle was dropped or closed.
    Dropped,
    /// A reservation was leaked, so nothing behind it can be sent.
    SlotLeaked,
    /// Bytes arrived that are no valid message.
    Corrupt,
    /// Memory for a message could not be had.
    OutOfMemory,
}

/// What a waiting sender wants to hear of. A target of 0 asks for nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Tell once so many messages are received.
    pub received: u64,
    /// Tell once so many messages are released.
    pub released: u64,
    /// Tell once so many messages are acknowledged, or never can be.
    pub acknowledged: u64,
}

impl Ask {
    /// Wants what `other` wants as well.
    pub fn join(&mut self, other: Ask) {
        self.received = self.received.max(other.received);
        self.released = self.released.max(other.released);
        self.acknowledged = self.acknowledged.max(other.acknowledged);
    }
}

/// One control message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// An end of a channel was opened.
    Open {
        /// The id that the opener gave its end.
        end: u32,
        /// Which end it opened.
        role: Role,
        /// The channel's name.
        name: String,
        /// What it asks of the channel.
        spec: ChannelSpec,
    },
    /// An end of a channel is gone.
    Close {
        /// The id that its opener gave it.
        end: u32,
        /// Which end it is.
        role: Role,
        /// Why.
        reason: CloseReason,
        /// For a sender: the sequence of its last message.
        final_sequence: u64,
    },
    /// A sender waits.
    Ask {
        /// The sending end.
        channel: u32,
        /// For what.
        ask: Ask,
    },
    /// Memory for an announced large message is ready.
    Grant {
        /// The sending end.
        channel: u32,
        /// The message.
        sequence: u64,
    },
    /// The peer closes the session; nothing follows.
    Goodbye,
    /// The peer waits for credit.
    Want {
        /// What it was granted in all, as far as it knows.
        granted: u64,
    },
    /// Credit is not lent again: use it or surrender it.
    Recall {
        /// So much, in all.
        credit: u64,
        /// Nothing is left: more comes to who says [`Want`](Self::Want).
        must_ask: bool,
    },
    /// Credit goes back unused.
    Surrender {
        /// So much, in all; it counts as used.
        credit: u64,
    },
}

/// Longest channel name, in bytes.
pub const MAX_NAME_BYTES: usize = 255;
/// Longest schema text that travels.
pub const MAX_SCHEMA_BYTES: usize = 1024;

/// Bytes that are no control message. Always the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a control message is malformed: {what}")]
pub struct MalformedControl {
    /// What is wrong with it.
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

impl Control {
    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Control::Open {
                end,
                role,
                name,
                spec,
            } => {
                out.push(OPEN);
                out.extend_from_slice(&end.to_le_bytes());
                out.push(role_byte(*role));
                put_text(out, name, MAX_NAME_BYTES);
                out.extend_from_slice(&spec.fingerprint);
                put_text(out, &spec.schema, MAX_SCHEMA_BYTES);
                out.extend_from_slice(&spec.alignment.to_le_bytes());
                for value in [
                    spec.window.messages,
                    spec.window.bytes,
                    spec.max_message_bytes,
                ] {
                    out.extend_from_slice(&value.to_le_bytes());
                }
            }
            Control::Close {
                end,
                role,
                reason,
                final_sequence,
            } => {
                out.push(CLOSE);
                out.extend_from_slice(&end.to_le_bytes());
                out.push(role_byte(*role));
                out.push(match reason {
                    CloseReason::Dropped => 0,
                    CloseReason::SlotLeaked => 1,
                    CloseReason::Corrupt => 2,
                    CloseReason::OutOfMemory => 3,
                });
                out.extend_from_slice(&final_sequence.to_le_bytes());
            }
            Control::Ask { channel, ask } => {
                out.push(ASK);
                out.extend_from_slice(&channel.to_le_bytes());
                for value in [ask.received, ask.released, ask.acknowledged] {
                    out.extend_from_slice(&value.to_le_bytes());
                }
            }
            Control::Grant { channel, sequence } => {
                out.push(GRANT);
                out.extend_from_slice(&channel.to_le_bytes());
                out.extend_from_slice(&sequence.to_le_bytes());
            }
            Control::Goodbye => out.push(GOODBYE),
            Control::Want { granted } => {
                out.push(WANT);
                out.extend_from_slice(&granted.to_le_bytes());
            }
            Control::Recall { credit, must_ask } => {
                out.push(RECALL);
                out.extend_from_slice(&credit.to_le_bytes());
                out.push(u8::from(*must_ask));
            }
            Control::Surrender { credit } => {
                out.push(SURRENDER);
                out.extend_from_slice(&credit.to_le_bytes());
            }
        }
    }

    /// Whether it is talk about credit that has to be possible without any. A surrender
    /// is not: it has what it surrenders.
    #[must_use]
    pub fn needs_no_credit(&self) -> bool {
        matches!(self, Control::Want { .. } | Control::Recall { .. })
    }

    /// Reads one message; trailing bytes are an error.
    pub fn decode(bytes: &[u8]) -> Result<Self, MalformedControl> {
        let mut reader = Reader { bytes };
        let message = match reader.byte()? {
            OPEN => Control::Open {
                end: reader.end()?,
                role: reader.role()?,
                name: reader.text(MAX_NAME_BYTES)?,
                spec: reader.spec()?,
            },
            CLOSE => Control::Close {
                end: reader.end()?,
                role: reader.role()?,
                reason: match reader.byte()? {
                    0 => CloseReason::Dropped,
                    1 => CloseReason::SlotLeaked,
                    2 => CloseReason::Corrupt,
                    3 => CloseReason::OutOfMemory,
                    _ => {
                        return Err(MalformedControl {
                            what: "unknown reason of a close",
                        });
                    }
                },
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
            },
            GOODBYE => Control::Goodbye,
            WANT => Control::Want {
                granted: reader.u64()?,
            },
            RECALL => Control::Recall {
                credit: reader.u64()?,
                must_ask: match reader.byte()? {
                    0 => false,
                    1 => true,
                    _ => {
                        return Err(MalformedControl {
                            what: "a recall is neither of all nor of a part",
                        });
                    }
                },
            },
            SURRENDER => Control::Surrender {
                credit: reader.u64()?,
            },
            _ => {
                return Err(MalformedControl {
                    what: "unknown type",
                });
            }
        };
        if !reader.bytes.is_empty() {
            return Err(MalformedControl {
                what: "bytes behind its end",
            });
        }
        Ok(message)
    }
}

fn role_byte(role: Role) -> u8 {
    match role {
        Role::Sender => 0,
        Role::Receiver => 1,
    }
}

fn put_text(out: &mut Vec<u8>, text: &str, limit: usize) {
    let text = &text[..text.floor_char_boundary_to(limit)];
    out.extend_from_slice(&(text.len() as u16).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

trait FloorCharBoundary {
    fn floor_char_boundary_to(&self, limit: usize) -> usize;
}

impl FloorCharBoundary for str {
    /// The largest character boundary that is not above `limit`.
    fn floor_char_boundary_to(&self, limit: usize) -> usize {
        (0..=limit.min(self.len()))
            .rev()
            .find(|&at| self.is_char_boundary(at))
            .unwrap_or(0)
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedControl> {
        let (taken, rest) = self
            .bytes
            .split_at_checked(count)
            .ok_or(MalformedControl { what: "cut short" })?;
        self.bytes = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedControl> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn byte(&mut self) -> Result<u8, MalformedControl> {
        Ok(self.array::<1>()?[0])
    }

    fn u64(&mut self) -> Result<u64, MalformedControl> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn end(&mut self) -> Result<u32, MalformedControl> {
        match u32::from_le_bytes(self.array()?) {
            0 => Err(MalformedControl {
                what: "0 is no channel",
            }),
            end => Ok(end),
        }
    }

    fn role(&mut self) -> Result<Role, MalformedControl> {
        match self.byte()? {
            0 => Ok(Role::Sender),
            1 => Ok(Role::Receiver),
            _ => Err(MalformedControl {
                what: "unknown role",
            }),
        }
    }

    fn text(&mut self, limit: usize) -> Result<String, MalformedControl> {
        let length = usize::from(u16::from_le_bytes(self.array()?));
        if length > limit {
            return Err(MalformedControl {
                what: "a text is too long",
            });
        }
        let text = std::str::from_utf8(self.take(length)?).map_err(|_| MalformedControl {
            what: "a text is not UTF-8",
        })?;
        Ok(text.to_owned())
    }

    fn spec(&mut self) -> Result<ChannelSpec, MalformedControl> {
        let spec = ChannelSpec {
            fingerprint: self.array()?,
            schema: self.text(MAX_SCHEMA_BYTES)?,
            alignment: u32::from_le_bytes(self.array()?),
            window: ChannelWindow {
                messages: self.u64()?,
                bytes: self.u64()?,
            },
            max_message_bytes: self.u64()?,
        };
        if !spec.alignment.is_power_of_two() || !(8..=64).contains(&spec.alignment) {
            return Err(MalformedControl {
                what: "an alignment is not 8, 16, 32 or 64",
            });
        }
        if spec.window.messages == 0 || spec.window.bytes == 0 {
            return Err(MalformedControl {
                what: "a window of 0",
            });
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn some_open() -> Control {
        Control::Open {
            end: 3,
            role: Role::Receiver,
            name: "wal".into(),
            spec: ChannelSpec {
                fingerprint: [7; 16],
                schema: "{ offset: u64 }".into(),
                alignment: 16,
                window: ChannelWindow {
                    messages: 10,
                    bytes: 1000,
                },
                max_message_bytes: 1 << 30,
            },
        }
    }

    #[test]
    fn every_message_survives_the_wire_and_no_prefix_does() {
        for message in [
            some_open(),
            Control::Close {
                end: 1,
                role: Role::Sender,
                reason: CloseReason::SlotLeaked,
                final_sequence: 9,
            },
            Control::Ask {
                channel: 4,
                ask: Ask {
                    received: 1,
                    released: 2,
                    acknowledged: 3,
                },
            },
            Control::Grant {
                channel: 4,
                sequence: 77,
            },
            Control::Goodbye,
            Control::Want { granted: 1 << 40 },
            Control::Recall {
                credit: u64::MAX,
                must_ask: true,
            },
            Control::Surrender { credit: 12 },
        ] {
            let mut bytes = Vec::new();
            message.encode(&mut bytes);
            assert_eq!(Control::decode(&bytes).as_ref(), Ok(&message));
            for cut in 0..bytes.len() {
                assert!(
                    Control::decode(&bytes[..cut]).is_err(),
                    "{message:?} cut at {cut}"
                );
            }
            bytes.push(0);
            assert!(Control::decode(&bytes).is_err());
        }
    }

    #[test]
    fn a_long_schema_is_cut_at_a_character() {
        let Control::Open {
            end,
            role,
            name,
            mut spec,
        } = some_open()
        else {
            unreachable!()
        };
        spec.schema = "ä".repeat(MAX_SCHEMA_BYTES);
        let mut bytes = Vec::new();
        Control::Open {
            end,
            role,
            name,
            spec,
        }
        .encode(&mut bytes);
        let Ok(Control::Open { spec, .. }) = Control::decode(&bytes) else {
            panic!()
        };
        assert_eq!(spec.schema, "ä".repeat(MAX_SCHEMA_BYTES / 2));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..2000)) {
            if let Ok(message) = Control::decode(&bytes) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
