//! Actions that a peer may take at a moment. Most of them are allowed, because a refused one ends
//! the session, and later actions are then never tried.

use ibex_protocol::{
    format::{
        control::{Ask, ChannelSpec, CloseReason, Control, Role},
        counters::Counters,
        frame::{Extension, FrameKind},
        message_version::MAX_OLDER_VERSIONS,
        record::{LargeAnnouncement, RecordKind},
    },
    transfer::{
        eager_write::{EAGER_BLOCK_BYTES, EagerBlockId},
        rendezvous::RemoteMemory,
    },
};
use proptest::{collection::vec, prelude::*};

use super::{agreed::*, frame::Frame, victim::Victim};

/// An action that the peer may take at that moment; now and then one that it may not take.
#[derive(Clone, Debug)]
pub(crate) enum Move {
    /// Sends records of one of the peer's senders: `skew` beyond those that are due.
    Records {
        end: u32,
        skew: u64,
        records: Vec<(u64, bool)>,
    },
    /// Sends a part of the large message that is under way, or of another, or says that it is
    /// written.
    Chunk {
        end: u32,
        skew: u64,
        bytes: usize,
    },
    /// Opens an end with an id that the peer has not used yet, or has used.
    Open {
        id: u32,
        role: Role,
        name: &'static str,
        /// The versions that the peer knows, newest first; the victim knows number 1.
        knows: Vec<u8>,
    },
    Close {
        end: u32,
        role: Role,
        skew: u64,
    },
    Ask {
        end: u32,
        ask: Ask,
    },
    Grant {
        end: u32,
        sequence: u64,
        length: u64,
    },
    /// Grants a block for the victim's messages, or returns one of the victim's blocks.
    EagerBlock {
        end: u32,
        word: u32,
        returns: bool,
    },
    /// Announces a message that the peer claims to be in a block.
    Landed {
        end: u32,
        word: u32,
        length: usize,
    },
    /// Sends changes of the messages that the victim published: within their bounds, or beyond.
    Changes {
        end: u32,
        counters: Counters,
        credit: Option<u64>,
    },
    Goodbye,
    /// A control frame of any bytes.
    Noise(Vec<u8>),
    /// The victim's application, not the peer, releases what it has.
    Release,
    /// The victim's socket, not the peer, takes some bytes.
    Transmit,
}

impl Move {
    /// Returns the frame that does this to `victim`.
    pub(crate) fn frame(self, victim: &Victim) -> Frame {
        let due = |end: u32, skew: u64| match victim.receivers.get(end as usize - 2) {
            Some(receiver) => (receiver.arrived + 1).wrapping_add(skew),
            None => skew,
        };
        match self {
            Move::Records { end, skew, records } => {
                let first = due(end, skew);
                let mut body = Vec::new();
                for (index, (length, is_large)) in records.into_iter().enumerate() {
                    let sequence = first.wrapping_add(index as u64);
                    // Messages of the second sender are written.
                    let announced = length as usize * 10 + usize::from(end == 3);
                    let announced = LargeAnnouncement::in_chunks(announced);
                    body.extend(match is_large {
                        true => record(RecordKind::Large, sequence, announced.bytes()),
                        false => record(RecordKind::Data, sequence, &vec![7; length as usize]),
                    });
                }
                Frame {
                    channel: end,
                    sequence: first as u32,
                    ..Frame::records(body)
                }
            }
            Move::Chunk { end, skew, bytes } => {
                let receiver = victim.receivers.get(end as usize - 2);
                let under_way = receiver.and_then(|receiver| receiver.large.front().copied());
                if under_way.is_none() && skew == 0 {
                    // No large message is under way, so one is announced.
                    let records = vec![(20, true)];
                    return Move::Records { end, skew, records }.frame(victim);
                }
                let sequence = under_way.unwrap_or_default().wrapping_add(skew) as u32;
                let (kind, bytes) = match end {
                    3 => (FrameKind::Written, 0),
                    _ => (FrameKind::Chunk, bytes),
                };
                let body = vec![0; bytes];
                Frame {
                    kind,
                    channel: end,
                    sequence,
                    extension: None,
                    body,
                }
            }
            Move::Open {
                id,
                role,
                name,
                knows,
            } => {
                let mut versions = knows.into_iter().map(version);
                let spec = ChannelSpec {
                    newest: versions.next().unwrap_or_else(|| version(0)),
                    older: versions.collect(),
                    ..spec()
                };
                Frame::control(&Control::Open {
                    end: id,
                    role,
                    name: name.into(),
                    spec: spec.into(),
                })
            }
            Move::Close { end, role, skew } => {
                let final_sequence = due(end.max(2), skew).wrapping_sub(1);
                let reason = CloseReason::Dropped;
                Frame::control(&Control::Close {
                    end,
                    role,
                    reason,
                    final_sequence,
                })
            }
            Move::Ask { end, ask } => Frame::control(&Control::Ask { channel: end, ask }),
            Move::Grant {
                end: channel,
                sequence,
                length,
            } => Frame::control(&match memory_for(length) {
                Some(memory) => Control::GrantMemory {
                    channel,
                    sequence,
                    memory,
                },
                None => Control::Grant {
                    channel,
                    sequence,
                    bytes: length,
                },
            }),
            Move::EagerBlock { end, word, returns } => {
                let (channel, eager_block) = (end, EagerBlockId::from_word(word));
                let memory = RemoteMemory::new(0x5000, word, EAGER_BLOCK_BYTES as u64);
                let memory = memory.expect("memory that can be");
                Frame::control(&match returns {
                    true => Control::ReturnEagerBlock {
                        channel,
                        eager_block,
                    },
                    false => Control::GrantEagerBlock {
                        channel,
                        eager_block,
                        memory,
                    },
                })
            }
            Move::Landed { end, word, length } => {
                let sequence = due(end, 0);
                let eager_block = EagerBlockId::from_word(word);
                let announcement = LargeAnnouncement::in_eager_block(length, eager_block);
                let body = record(RecordKind::Large, sequence, announcement.bytes());
                Frame {
                    channel: end,
                    sequence: sequence as u32,
                    ..Frame::records(body)
                }
            }
            Move::Changes {
                end,
                counters,
                credit,
            } => {
                let extension = Some(Extension {
                    counters: Some((end, counters)),
                    credit,
                    answer: None,
                    waited: false,
                    wants: false,
                });
                Frame {
                    extension,
                    body: Vec::new(),
                    ..Frame::control(&Control::Goodbye { reason: None })
                }
            }
            Move::Noise(body) => Frame {
                body,
                ..Frame::control(&Control::Goodbye { reason: None })
            },
            Move::Goodbye | Move::Release | Move::Transmit => {
                Frame::control(&Control::Goodbye { reason: None })
            }
        }
    }
}

pub(crate) fn any_move() -> impl Strategy<Value = Move> {
    let role = || prop_oneof![Just(Role::Sender), Just(Role::Receiver)];
    let name = prop_oneof![Just("a"), Just("b"), Just("c"), Just("d")];
    let sender = || prop_oneof![60 => 2..4_u32, 1 => 4..8_u32];
    let record = (0..30_u64, prop::bool::weighted(0.1));
    let ask = [(); 3].map(|()| 0..12_u64);
    let changes = (
        0..3_u64,
        0..3_u64,
        0..3_u64,
        0..=32_u64,
        prop::option::of(any::<u64>()),
    );
    prop_oneof![
        48 => (sender(), skew(), vec(record, 1..4))
            .prop_map(|(end, skew, records)| Move::Records { end, skew, records }),
        24 => (sender(), skew(), 1..150_usize)
            .prop_map(|(end, skew, bytes)| Move::Chunk { end, skew, bytes }),
        16 => (4..40_u32, role(), name, vec(0..3_u8, 1..=1 + MAX_OLDER_VERSIONS))
            .prop_map(|(id, role, name, knows)| Move::Open { id, role, name, knows }),
        8 => (4..40_u32, role(), skew())
            .prop_map(|(end, role, skew)| Move::Close { end, role, skew }),
        4 => (1..4_u32, role(), skew())
            .prop_map(|(end, role, skew)| Move::Close { end, role, skew }),
        16 => (1..8_u32, ask).prop_map(|(end, [received, released, acknowledged])| {
            Move::Ask { end, ask: Ask { received, released, acknowledged } }
        }),
        4 => (1..8_u32, 0..4_u64, 0..9_u64)
            .prop_map(|(end, sequence, length)| Move::Grant { end, sequence, length }),
        4 => (1..4_u32, block(), any::<bool>())
            .prop_map(|(end, word, returns)| Move::EagerBlock { end, word, returns }),
        16 => (2..4_u32, block(), 0..200_usize)
            .prop_map(|(end, word, length)| Move::Landed { end, word, length }),
        16 => (1..3_u32, changes).prop_map(|(end, (one, other, third, position, credit))| {
            let mut steps = [one, other, third];
            steps.sort_unstable();
            let [acknowledged, released, received] = steps;
            let counters = Counters {
                received,
                released,
                released_position: position,
                acknowledged,
                acknowledgement_ended: false,
            };
            Move::Changes { end, counters, credit }
        }),
        4 => Just(Move::Goodbye),
        1 => vec(any::<u8>(), 0..64).prop_map(Move::Noise),
        24 => Just(Move::Release),
        24 => Just(Move::Transmit),
    ]
}

/// Draws one of the first uses of the first blocks, and rarely any number.
fn block() -> impl Strategy<Value = u32> {
    let first = (0..5_u32, 0..3_u32).prop_map(|(index, generation)| index << 16 | generation);
    prop_oneof![20 => first, 1 => any::<u32>()]
}

/// Draws 0 in most cases, which is what is due.
fn skew() -> impl Strategy<Value = u64> {
    prop_oneof![100 => Just(0), 1 => 1..3_u64, 1 => any::<u64>()]
}
