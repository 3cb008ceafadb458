//! The encoding of messages on the Unix socket beside shared memory.
//!
//! Only messages that carry or name a descriptor go this way; counters, records and wake-ups do
//! not. Each message is one packet: a kind byte and little-endian fields of fixed width, without
//! trailing bytes. Both sides use the version that the bootstrap agreed on, so an unknown kind
//! means a broken peer.
#![forbid(unsafe_code)]

use ibex_protocol::format::control::Role;

/// The longest encoding of any [`ShmMessage`].
pub const MAX_ENCODED_BYTES: usize = 33;

const _: () = assert!(MAX_ENCODED_BYTES <= super::MAX_MESSAGE_BYTES);

/// A message between the two sides of a shared-memory session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShmMessage {
    /// The first message of each side.
    Hello {
        /// True if the sleeper's half of a doorbell is
        /// [membarrier(2)](https://man7.org/linux/man-pages/man2/membarrier.2.html). If it is false
        /// at either side, both use fences.
        asymmetry: bool,
    },
    /// A control segment of the process that sends this message; its descriptor comes with the
    /// message.
    Control {
        /// The index by which [`ShmMessage::End`] names the segment.
        index: u32,
    },
    /// The place where an end of a channel publishes its counters.
    End {
        /// The channel end.
        end: u32,
        /// The role of the end.
        role: Role,
        /// The control segment, passed before.
        segment: u32,
        /// The block in the segment.
        block: u32,
    },
    /// The ring of a channel, whose descriptor comes with the message.
    Ring {
        /// The sending end.
        end: u32,
        /// Bytes of the ring.
        capacity: u64,
    },
    /// The ring of a channel is given up, because every message in it is released. Another ring may
    /// follow.
    Rest {
        /// The sending end.
        end: u32,
    },
    /// A message longer than its channel's ring.
    Large {
        /// The sending end.
        end: u32,
        /// The message's sequence.
        sequence: u64,
        /// The slot that the message lies in. The slot's segment comes with the message if the
        /// receiver does not have it yet.
        slot: u32,
        /// Bytes of the message.
        length: u64,
        /// Bytes of the slot's segment.
        capacity: u64,
    },
    /// Slots of a channel are empty; each gets a new segment before it is used again.
    Forget {
        /// The sending end.
        end: u32,
        /// The empty slots, with one bit for each.
        slots: u64,
    },
}

/// The rule about a descriptor that comes with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attachment {
    /// A descriptor must come.
    Required,
    /// A descriptor may come.
    Optional,
    /// No descriptor may come.
    Forbidden,
}

impl Attachment {
    /// Returns whether the rule allows the descriptor that came, or its absence.
    #[must_use]
    pub fn allows(self, came: bool) -> bool {
        match self {
            Self::Required => came,
            Self::Optional => true,
            Self::Forbidden => !came,
        }
    }
}

impl ShmMessage {
    /// Returns the rule for this message's descriptor.
    #[must_use]
    pub fn attachment(&self) -> Attachment {
        match self {
            Self::Control { .. } | Self::Ring { .. } => Attachment::Required,
            Self::Large { .. } => Attachment::Optional,
            Self::Hello { .. } | Self::End { .. } | Self::Rest { .. } | Self::Forget { .. } => {
                Attachment::Forbidden
            }
        }
    }

    /// Returns the bytes to send.
    #[must_use]
    pub fn encode(&self) -> Encoded {
        let mut to = Encoded {
            buffer: [0; MAX_ENCODED_BYTES],
            length: 0,
        };
        match *self {
            Self::Hello { asymmetry } => {
                to.put(&[HELLO, u8::from(asymmetry)]);
            }
            Self::Control { index } => {
                to.put(&[CONTROL]);
                to.put(&index.to_le_bytes());
            }
            Self::End {
                end,
                role,
                segment,
                block,
            } => {
                let role = match role {
                    Role::Sender => SENDER,
                    Role::Receiver => RECEIVER,
                };
                to.put(&[END, role]);
                to.put(&end.to_le_bytes());
                to.put(&segment.to_le_bytes());
                to.put(&block.to_le_bytes());
            }
            Self::Ring { end, capacity } => {
                to.put(&[RING]);
                to.put(&end.to_le_bytes());
                to.put(&capacity.to_le_bytes());
            }
            Self::Rest { end } => {
                to.put(&[REST]);
                to.put(&end.to_le_bytes());
            }
            Self::Forget { end, slots } => {
                to.put(&[FORGET]);
                to.put(&end.to_le_bytes());
                to.put(&slots.to_le_bytes());
            }
            Self::Large {
                end,
                sequence,
                slot,
                length,
                capacity,
            } => {
                to.put(&[LARGE]);
                to.put(&end.to_le_bytes());
                to.put(&sequence.to_le_bytes());
                to.put(&slot.to_le_bytes());
                to.put(&length.to_le_bytes());
                to.put(&capacity.to_le_bytes());
            }
        }
        to
    }

    /// Decodes one complete packet.
    ///
    /// # Errors
    /// [`Malformed`] if it is not the encoding of a message.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut from = PacketReader { bytes };
        let [kind] = from.take()?;
        let message = match kind {
            HELLO => {
                let [asymmetry] = from.take()?;
                match asymmetry {
                    0 | 1 => Self::Hello {
                        asymmetry: asymmetry == 1,
                    },
                    value => {
                        return Err(Malformed::Field {
                            name: "asymmetry",
                            value,
                        });
                    }
                }
            }
            CONTROL => Self::Control { index: from.u32()? },
            END => {
                let [role] = from.take()?;
                let role = match role {
                    SENDER => Role::Sender,
                    RECEIVER => Role::Receiver,
                    value => {
                        return Err(Malformed::Field {
                            name: "role",
                            value,
                        });
                    }
                };
                Self::End {
                    end: from.u32()?,
                    role,
                    segment: from.u32()?,
                    block: from.u32()?,
                }
            }
            RING => Self::Ring {
                end: from.u32()?,
                capacity: from.u64()?,
            },
            LARGE => Self::Large {
                end: from.u32()?,
                sequence: from.u64()?,
                slot: from.u32()?,
                length: from.u64()?,
                capacity: from.u64()?,
            },
            REST => Self::Rest { end: from.u32()? },
            FORGET => Self::Forget {
                end: from.u32()?,
                slots: from.u64()?,
            },
            kind => return Err(Malformed::Kind { kind }),
        };
        match from.bytes.len() {
            0 => Ok(message),
            surplus => Err(Malformed::TooLong { kind, surplus }),
        }
    }
}

/// A message as bytes.
#[derive(Clone, Copy, Debug)]
pub struct Encoded {
    buffer: [u8; MAX_ENCODED_BYTES],
    length: usize,
}

impl Encoded {
    fn put(&mut self, bytes: &[u8]) {
        self.buffer[self.length..][..bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

impl AsRef<[u8]> for Encoded {
    fn as_ref(&self) -> &[u8] {
        &self.buffer[..self.length]
    }
}

/// The reason why a packet is no message: the peer broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The packet ends before its last field.
    #[error("the peer sent a packet that ends {missing} bytes early; closing the session")]
    TooShort {
        /// Bytes that the next field lacks.
        missing: usize,
    },
    /// The packet has bytes after its last field.
    #[error(
        "the peer sent a packet of kind {kind} with {surplus} bytes too many; closing the session"
    )]
    TooLong {
        /// The packet's kind.
        kind: u8,
        /// Bytes after the last field.
        surplus: usize,
    },
    /// No message has this kind.
    #[error("the peer sent a packet of unknown kind {kind}; closing the session")]
    Kind {
        /// The packet's kind.
        kind: u8,
    },
    /// A field has a value that it cannot have.
    #[error("the peer sent {value} as {name}; closing the session")]
    Field {
        /// The field's name.
        name: &'static str,
        /// The field's value.
        value: u8,
    },
}

/// The part of a packet that has not been read.
struct PacketReader<'packet> {
    bytes: &'packet [u8],
}

impl PacketReader<'_> {
    fn take<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((field, rest)) = self.bytes.split_first_chunk() else {
            return Err(Malformed::TooShort {
                missing: N - self.bytes.len(),
            });
        };
        self.bytes = rest;
        Ok(*field)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.take().map(u64::from_le_bytes)
    }
}

// Kinds count from 1, so that a packet of zeros is no message.
const HELLO: u8 = 1;
const CONTROL: u8 = 2;
const END: u8 = 3;
const RING: u8 = 4;
const LARGE: u8 = 5;
const REST: u8 = 6;
const FORGET: u8 = 7;

// Roles count from 1 for the same reason.
const SENDER: u8 = 1;
const RECEIVER: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_message() -> impl Strategy<Value = ShmMessage> {
        prop_oneof![
            any::<bool>().prop_map(|asymmetry| ShmMessage::Hello { asymmetry }),
            any::<u32>().prop_map(|index| ShmMessage::Control { index }),
            any::<u32>().prop_map(|end| ShmMessage::Rest { end }),
            any::<(u32, bool, u32, u32)>().prop_map(|(end, sends, segment, block)| {
                let role = if sends { Role::Sender } else { Role::Receiver };
                ShmMessage::End {
                    end,
                    role,
                    segment,
                    block,
                }
            }),
            any::<(u32, u64)>().prop_map(|(end, capacity)| ShmMessage::Ring { end, capacity }),
            any::<(u32, u64)>().prop_map(|(end, slots)| ShmMessage::Forget { end, slots }),
            any::<(u32, u64, u32, u64, u64)>().prop_map(
                |(end, sequence, slot, length, capacity)| ShmMessage::Large {
                    end,
                    sequence,
                    slot,
                    length,
                    capacity
                }
            ),
        ]
    }

    #[test]
    fn the_encoding_of_each_message_is_unchanged() {
        let encoded = |message: ShmMessage| message.encode().as_ref().to_vec();
        assert_eq!(encoded(ShmMessage::Hello { asymmetry: true }), [1, 1]);
        assert_eq!(
            encoded(ShmMessage::Control { index: 0x0102 }),
            [2, 2, 1, 0, 0]
        );
        assert_eq!(
            encoded(ShmMessage::End {
                end: 7,
                role: Role::Receiver,
                segment: 1,
                block: 255
            }),
            [3, 2, 7, 0, 0, 0, 1, 0, 0, 0, 255, 0, 0, 0]
        );
        assert_eq!(
            encoded(ShmMessage::Ring {
                end: 7,
                capacity: 1 << 20
            }),
            [4, 7, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0]
        );
        let large = ShmMessage::Large {
            end: 7,
            sequence: 9,
            slot: 3,
            length: 100,
            capacity: 1 << 16,
        };
        let bytes = encoded(large);
        assert_eq!(bytes.len(), 33);
        assert_eq!(bytes[..5], [5, 7, 0, 0, 0]);
    }

    #[test]
    fn an_attachment_is_checked_by_kind() {
        let hello = ShmMessage::Hello { asymmetry: true }.attachment();
        assert!(hello.allows(false) && !hello.allows(true));
        assert!(!ShmMessage::Control { index: 0 }.attachment().allows(false));
        let end = ShmMessage::End {
            end: 0,
            role: Role::Sender,
            segment: 0,
            block: 0,
        };
        assert!(end.attachment().allows(false) && !end.attachment().allows(true));
        let large = ShmMessage::Large {
            end: 0,
            sequence: 1,
            slot: 0,
            length: 1,
            capacity: 1,
        };
        assert!(large.attachment().allows(false) && large.attachment().allows(true));
    }

    #[test]
    fn decoding_a_wrong_message_names_the_fault() {
        assert_eq!(
            ShmMessage::decode(&[]),
            Err(Malformed::TooShort { missing: 1 })
        );
        assert_eq!(
            ShmMessage::decode(&[0; 8]),
            Err(Malformed::Kind { kind: 0 })
        );
        assert_eq!(
            ShmMessage::decode(&[CONTROL, 1]),
            Err(Malformed::TooShort { missing: 3 })
        );
        assert_eq!(
            ShmMessage::decode(&[HELLO, 2]),
            Err(Malformed::Field {
                name: "asymmetry",
                value: 2
            })
        );
        assert_eq!(
            ShmMessage::decode(&[HELLO, 1, 9]),
            Err(Malformed::TooLong {
                kind: HELLO,
                surplus: 1
            })
        );
    }

    proptest! {
        #[test]
        fn any_message_is_decoded_as_it_was_encoded(message in any_message()) {
            prop_assert_eq!(ShmMessage::decode(message.encode().as_ref()), Ok(message));
        }

        #[test]
        fn a_message_cut_short_or_made_longer_is_none(
            message in any_message(),
            cut in any::<prop::sample::Index>(),
        ) {
            let encoded = message.encode();
            let bytes = encoded.as_ref();
            prop_assert!(ShmMessage::decode(&bytes[..cut.index(bytes.len())]).is_err());
            let longer = [bytes, &[0]].concat();
            prop_assert!(ShmMessage::decode(&longer).is_err());
        }

        /// Checks that each packet that decodes has exactly one encoding.
        #[test]
        fn garbage_never_panics_and_has_one_encoding(
            bytes in prop::collection::vec(prop_oneof![0u8..7, any::<u8>()], 0..64)
        ) {
            if let Ok(message) = ShmMessage::decode(&bytes) {
                let encoded = message.encode();
                prop_assert_eq!(encoded.as_ref(), bytes.as_slice());
            }
        }
    }
}
