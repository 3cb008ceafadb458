//! Control messages of a session.
//!
//! Bytes that decode are the only encoding of the message.
#![forbid(unsafe_code)]

use ibex_protocol::format::channel_window::ChannelWindow;
use ibex_protocol::format::control::{
    Ask, ChannelSpec, CloseReason, Control, KnownEnd, KnownReceiver, Role,
};
use ibex_protocol::format::message_version::{MAX_OLDER_VERSIONS, MessageVersion};
use ibex_protocol::transfer::eager_write::EagerBlockId;
use ibex_protocol::transfer::rendezvous::RemoteMemory;

use crate::Seed;

/// Decodes a message.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Ok(control) = Control::decode(bytes) else {
        return false;
    };
    assert_eq!(encoded(&control), bytes, "{control:?} has two encodings");
    true
}

/// Returns a message of each kind, and an open with as many versions as possible.
pub(crate) fn seeds() -> Vec<Seed> {
    let version = |number: u8| MessageVersion {
        fingerprint: [number; 16],
        schema: "Entry { offset: u64, data: Vec<u8> }".to_string(),
        alignment: 16,
    };
    let spec = ChannelSpec {
        newest: MessageVersion {
            fingerprint: *b"a fingerprint 16",
            ..version(0)
        },
        older: Vec::new(),
        window: ChannelWindow {
            messages: 1024,
            bytes: 1 << 20,
        },
        max_message_bytes: 1 << 30,
        max_unreleased_bytes: 1 << 31,
        is_traced: false,
    };
    let all_versions = ChannelSpec {
        older: (0..MAX_OLDER_VERSIONS as u8).map(version).collect(),
        ..spec.clone()
    };
    let traced = ChannelSpec {
        is_traced: true,
        ..spec.clone()
    };
    let ask = Ask {
        received: 1,
        released: 2,
        acknowledged: 3,
    };
    let reason = CloseReason::Dropped;
    [
        (
            "open",
            Control::Open {
                end: 1,
                role: Role::Sender,
                name: "wal".into(),
                spec: spec.into(),
            },
        ),
        (
            "open_of_versions",
            Control::Open {
                end: 1,
                role: Role::Receiver,
                name: "wal".into(),
                spec: all_versions.into(),
            },
        ),
        (
            "open_traced",
            Control::Open {
                end: 1,
                role: Role::Sender,
                name: "wal".into(),
                spec: traced.into(),
            },
        ),
        (
            "close",
            Control::Close {
                end: 1,
                role: Role::Sender,
                reason,
                final_sequence: 9,
            },
        ),
        ("ask", Control::Ask { channel: 1, ask }),
        (
            "grant",
            Control::Grant {
                channel: 1,
                sequence: 2,
                bytes: 1 << 20,
            },
        ),
        (
            "grant_memory",
            Control::GrantMemory {
                channel: 1,
                sequence: 2,
                memory: RemoteMemory::new(0x7f00_0000_1000, 3, 1 << 20).expect("memory"),
            },
        ),
        (
            "offer",
            Control::Offer {
                channel: 1,
                sequence: 2,
                memory: RemoteMemory::new(0x7f00_0000_1000, 3, 1 << 20),
            },
        ),
        (
            "no_offer",
            Control::Offer {
                channel: 1,
                sequence: 2,
                memory: None,
            },
        ),
        (
            "offer_rail",
            Control::OfferRail {
                channel: 1,
                sequence: 2,
                rail: 1,
                key: 3,
            },
        ),
        (
            "taken",
            Control::Taken {
                channel: 1,
                sequence: 2,
            },
        ),
        (
            "grant_eager_block",
            Control::GrantEagerBlock {
                channel: 1,
                eager_block: EagerBlockId::from_word(0x0002_0001),
                memory: RemoteMemory::new(0x7f00_0000_1000, 3, 1 << 16).expect("memory"),
            },
        ),
        (
            "return_eager_block",
            Control::ReturnEagerBlock {
                channel: 1,
                eager_block: EagerBlockId::from_word(0x0002_0001),
            },
        ),
        ("goodbye", Control::Goodbye { reason: None }),
        ("want", Control::Want { granted: 3 }),
        (
            "recall",
            Control::Recall {
                credit: 2,
                must_ask: true,
            },
        ),
        ("surrender", Control::Surrender { credit: 1 }),
        ("abandoned", Control::Abandoned),
        ("draining", Control::Draining { is_done: true }),
        ("damaged", Control::Damaged { times: 3 }),
        (
            "known_sender",
            Control::Known {
                end: 1,
                state: KnownEnd {
                    received_close: true,
                    receiver: None,
                },
            },
        ),
        (
            "known_receiver",
            Control::Known {
                end: 1,
                state: KnownEnd {
                    received_close: false,
                    receiver: Some(KnownReceiver::nothing(16)),
                },
            },
        ),
        ("resumed", Control::Resumed { newest_end: 1 }),
    ]
    .map(|(name, control)| Seed {
        name,
        bytes: encoded(&control),
    })
    .into()
}

fn encoded(control: &Control) -> Vec<u8> {
    let mut bytes = Vec::new();
    control.encode(&mut bytes);
    bytes
}
