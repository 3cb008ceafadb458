//! Control messages of a session.
//!
//! What decodes has one encoding: the bytes that it was decoded from.
#![forbid(unsafe_code)]

use ibex_transport::engine::channel_window::ChannelWindow;
use ibex_transport::engine::control::{Ask, ChannelSpec, CloseReason, Control, Role};

use crate::Seed;

/// One message.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Ok(control) = Control::decode(bytes) else {
        return false;
    };
    assert_eq!(encoded(&control), bytes, "{control:?} has two encodings");
    true
}

/// One of each kind.
pub(crate) fn seeds() -> Vec<Seed> {
    let spec = ChannelSpec {
        fingerprint: *b"a fingerprint 16",
        schema: "Entry { offset: u64, data: Vec<u8> }".to_string(),
        alignment: 16,
        window: ChannelWindow {
            messages: 1024,
            bytes: 1 << 20,
        },
        max_message_bytes: 1 << 30,
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
                name: "wal".to_string(),
                spec,
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
            },
        ),
        ("goodbye", Control::Goodbye),
        ("want", Control::Want { granted: 3 }),
        (
            "recall",
            Control::Recall {
                credit: 2,
                must_ask: true,
            },
        ),
        ("surrender", Control::Surrender { credit: 1 }),
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
