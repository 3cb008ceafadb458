//! The agreement between the victim and its peer, and the records that both know.

use ibex_protocol::{
    format::{
        channel_window::ChannelWindow,
        control::{ChannelSpec, Role},
        message_version::MessageVersion,
        record::{RecordHeader, RecordKind, first_position, record_size},
    },
    framing::Carriage,
    session::{DataPath, SessionConfig, WireTerms},
    transfer::rendezvous::RemoteMemory,
};

pub(crate) fn record(kind: RecordKind, sequence: u64, payload: &[u8]) -> Vec<u8> {
    let header = RecordHeader {
        kind,
        length: payload.len() as u32,
        sequence_low: sequence as u32,
    };
    let mut bytes = [&header.to_word().to_le_bytes()[..], payload].concat();
    bytes.resize(record_size(payload.len(), ALIGNMENT), 0);
    bytes
}

/// The configuration of both ends, of which only one is tested.
pub(crate) fn config() -> SessionConfig {
    SessionConfig {
        wires: WireTerms {
            carriage: Carriage::Stream,
            our_credit: CREDIT,
            peer_credit: CREDIT,
            writes: true,
            immediate: true,
            ..WireTerms::STREAM
        },
        dialed: false,
        max_channels: MAX_CHANNELS,
        data_path: DataPath::Framed,
        resumes: true,
    }
}

pub(crate) fn spec() -> ChannelSpec {
    ChannelSpec {
        newest: version(1),
        older: Vec::new(),
        window: ChannelWindow {
            messages: WINDOW,
            bytes: 1 << 12,
        },
        max_message_bytes: LIMIT,
        max_unreleased_bytes: u64::MAX,
        is_traced: false,
    }
}

pub(crate) fn version(number: u8) -> MessageVersion {
    MessageVersion {
        fingerprint: [number; 16],
        schema: String::new(),
        alignment: ALIGNMENT as u32,
    }
}

/// The victim's ends: one to send on, and two to receive on.
pub(crate) const ENDS: [(u32, Role, &str); 3] = [
    (1, Role::Sender, "a"),
    (2, Role::Receiver, "b"),
    (3, Role::Receiver, "c"),
];
pub(crate) const ALIGNMENT: usize = 8;
pub(crate) const FIRST: u64 = first_position(ALIGNMENT);
pub(crate) const WINDOW: u64 = 8;
pub(crate) const LIMIT: u64 = 400;
pub(crate) const CREDIT: u64 = 1 << 12;
pub(crate) const MAX_CHANNELS: usize = 6;

/// Returns the memory granted for a large message: memory to write to if the message's length is
/// odd.
pub(crate) fn memory_for(length: u64) -> Option<RemoteMemory> {
    let is_written = length % 2 == 1;
    is_written.then(|| RemoteMemory::new(0x1000, 7, length).expect("memory that can be"))
}
