//! Received bytes, until they are whole messages.
//!
//! Rules:
//!
//! - The magic is checked byte by byte as it comes, so a foreign protocol fails on its first wrong
//!   byte and never waits for eight.
//! - A length prefix is checked before its message is waited for, and a message's checksum before
//!   anything else.
//! - Bytes behind the last message of the handshake are not touched, since they belong to the
//!   session.

use crate::message::{
    CHECKSUM, CHECKSUM_BYTES, FieldError, HandshakeMessage, MAGIC, MAX_MESSAGE_BYTES, MessageError,
    checksum, parse_message,
};

/// The receiving half of a conversation.
#[derive(Default)]
pub(super) struct MessageReader {
    /// Bytes that were received and not yet taken. The caller hands over one read at a time and
    /// takes all whole messages in between, so this holds at most one read and one unfinished
    /// message.
    bytes: Vec<u8>,
    /// Bytes of the magic that were seen and removed from `bytes`.
    magic_seen: usize,
}

/// Bytes that cannot be the start of a message.
pub(super) enum Unreadable {
    /// The bytes do not begin with the magic; they are here as they came, escaped.
    Foreign(String),
    /// The bytes are no message.
    Message(MessageError),
    /// The message was damaged on its way: the checksum behind it is not its own.
    Garbled { sent: u32, computed: u32 },
}

/// A message and its bytes, length prefix included.
pub(super) struct ReceivedMessage {
    pub(super) message: HandshakeMessage,
    pub(super) bytes: Vec<u8>,
}

impl MessageReader {
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Returns the next whole message; `None` until more bytes come. Its checksum covers `before`
    /// as well. Without `before` the message is a Hello, which has no checksum.
    pub(super) fn next_message(
        &mut self,
        before: Option<[&[u8]; 2]>,
    ) -> Result<Option<ReceivedMessage>, Unreadable> {
        self.take_magic()?;
        let Some((prefix, rest)) = self.bytes.split_at_checked(2) else {
            return Ok(None);
        };
        let length = usize::from(u16::from_le_bytes([prefix[0], prefix[1]]));
        if length == 0 {
            return Err(Unreadable::Message(MessageError::Empty));
        }
        if length > MAX_MESSAGE_BYTES {
            return Err(Unreadable::Message(MessageError::Oversize { length }));
        }
        let Some(mut body) = rest.get(..length) else {
            return Ok(None);
        };
        if let Some(before) = before {
            let truncated = FieldError::Truncated {
                field: CHECKSUM,
                needed: CHECKSUM_BYTES,
                left: length,
            };
            let Some((checked, sent)) = body.split_last_chunk() else {
                return Err(Unreadable::Message(truncated.into()));
            };
            let sent = u32::from_le_bytes(*sent);
            let computed = checksum(before, &self.bytes[..2 + checked.len()]);
            if sent != computed {
                return Err(Unreadable::Garbled { sent, computed });
            }
            body = checked;
        }
        let message = parse_message(body).map_err(Unreadable::Message)?;
        let bytes = self.bytes.drain(..2 + length).collect();
        Ok(Some(ReceivedMessage { message, bytes }))
    }

    /// Returns the number of bytes that came and were not taken.
    pub(super) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether bytes came behind the last message taken.
    pub(super) fn has_more(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Takes what came behind the last message taken.
    pub(super) fn take_rest(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }

    /// Returns the bytes that came behind the last message taken.
    pub(super) fn into_rest(self) -> Vec<u8> {
        self.bytes
    }

    fn take_magic(&mut self) -> Result<(), Unreadable> {
        let missing = &MAGIC[self.magic_seen..];
        let compared = missing.len().min(self.bytes.len());
        if self.bytes[..compared] != missing[..compared] {
            return Err(Unreadable::Foreign(self.escaped_start()));
        }
        self.bytes.drain(..compared);
        self.magic_seen += compared;
        Ok(())
    }

    /// Returns the first bytes of the stream for a person to recognise, including the part of the
    /// magic that matched.
    fn escaped_start(&self) -> String {
        let matched = MAGIC[..self.magic_seen].iter();
        matched
            .chain(&self.bytes)
            .take(SHOWN_BYTES)
            .flat_map(|byte| byte.escape_ascii())
            .map(char::from)
            .collect()
    }
}

/// Bytes of a foreign protocol that an error shows: enough for a status line or a banner.
const SHOWN_BYTES: usize = 48;
