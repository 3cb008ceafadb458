//! Writing a control message, field by field, as
//! [`ControlReader`](super::reader::ControlReader) reads it.
#![forbid(unsafe_code)]

use super::{
    ChannelSpec, CloseReason, KnownReceiver, MAX_NAME_BYTES, MAX_OLDER_SCHEMA_BYTES,
    MAX_SCHEMA_BYTES, Role,
};
use crate::format::{
    message_version::{MAX_OLDER_VERSIONS, MessageVersion},
    remote_memory::RemoteMemory,
};

/// The bytes that a control message is appended to.
pub(super) struct Writer<'a> {
    bytes: &'a mut Vec<u8>,
}

impl<'a> Writer<'a> {
    pub(super) fn new(bytes: &'a mut Vec<u8>) -> Self {
        Self { bytes }
    }

    /// Begins a message of type `kind`.
    pub(super) fn begin(self, kind: u8) -> Self {
        self.bytes.push(kind);
        self
    }

    pub(super) fn byte(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub(super) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub(super) fn u64s<const N: usize>(&mut self, values: [u64; N]) {
        for value in values {
            self.bytes.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// An end, and its role.
    pub(super) fn end(&mut self, end: u32, role: Role) {
        self.u32(end);
        self.byte(match role {
            Role::Sender => 0,
            Role::Receiver => 1,
        });
    }

    pub(super) fn reason(&mut self, reason: CloseReason) {
        self.byte(match reason {
            CloseReason::Dropped => 0,
            CloseReason::SlotLeaked => 1,
            CloseReason::Corrupt => 2,
            CloseReason::NoRoom => 3,
            CloseReason::Aborted => 4,
            CloseReason::Unreadable => 5,
        });
    }

    pub(super) fn memory(&mut self, memory: &RemoteMemory) {
        self.u64s([memory.address()]);
        self.u32(memory.key());
        self.u64s([memory.bytes()]);
    }

    pub(super) fn known(&mut self, received_close: bool, receiver: Option<&KnownReceiver>) {
        let ended = receiver.is_some_and(|known| known.counters.acknowledgement_ended);
        let flags = [received_close, receiver.is_some(), ended];
        let flags = (0..).zip(flags).map(|(bit, set)| u8::from(set) << bit);
        self.byte(flags.sum());
        if let Some(known) = receiver {
            self.u64s([
                known.arrived,
                known.arrived_position,
                known.counters.received,
                known.counters.released,
                known.counters.released_position,
                known.counters.acknowledged,
            ]);
        }
    }

    pub(super) fn name(&mut self, name: &str) {
        self.text(name, MAX_NAME_BYTES);
    }

    /// As much of a text as fits.
    pub(super) fn text(&mut self, text: &str, limit: usize) {
        let text = cut(text, limit);
        let length = text.len() as u16;
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(text.as_bytes());
    }

    pub(super) fn spec(&mut self, spec: &ChannelSpec) {
        self.version(&spec.newest, MAX_SCHEMA_BYTES);
        self.u64s([
            spec.window.messages,
            spec.window.bytes,
            spec.max_message_bytes,
            spec.max_unreleased_bytes,
        ]);
        debug_assert!(spec.older.len() <= MAX_OLDER_VERSIONS);
        self.byte(spec.older.len() as u8);
        for version in &spec.older {
            self.version(version, MAX_OLDER_SCHEMA_BYTES);
        }
        self.byte(u8::from(spec.is_traced));
    }

    fn version(&mut self, version: &MessageVersion, schema_limit: usize) {
        self.bytes.extend_from_slice(&version.fingerprint);
        self.text(&version.schema, schema_limit);
        self.u32(version.alignment);
    }
}

/// Returns as many whole characters of `text` as fit.
pub(super) fn cut(text: &str, limit: usize) -> &str {
    let mut fits = (0..=limit.min(text.len())).rev();
    let end = fits.find(|&at| text.is_char_boundary(at));
    &text[..end.unwrap_or(0)]
}
