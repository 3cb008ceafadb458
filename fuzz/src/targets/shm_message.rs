//! Packets of the Unix socket beside shared memory.
//!
//! Bytes that decode are the only encoding of the message.
#![forbid(unsafe_code)]

use ibex_protocol::format::control::Role;
use ibex_transport::shared_memory::message::ShmMessage;

use crate::Seed;

/// Decodes a packet.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Ok(message) = ShmMessage::decode(bytes) else {
        return false;
    };
    assert_eq!(
        message.encode().as_ref(),
        bytes,
        "{message:?} has two encodings"
    );
    true
}

/// Returns a packet of each kind.
pub(crate) fn seeds() -> Vec<Seed> {
    let role = Role::Receiver;
    [
        ("hello", ShmMessage::Hello { asymmetry: true }),
        ("control", ShmMessage::Control { index: 1 }),
        (
            "end",
            ShmMessage::End {
                end: 1,
                role,
                segment: 2,
                block: 3,
            },
        ),
        (
            "ring",
            ShmMessage::Ring {
                end: 1,
                capacity: 1 << 20,
            },
        ),
        (
            "large",
            ShmMessage::Large {
                end: 1,
                sequence: 2,
                slot: 3,
                length: 1000,
                capacity: 4096,
            },
        ),
    ]
    .map(|(name, message)| Seed {
        name,
        bytes: message.encode().as_ref().to_vec(),
    })
    .into()
}
