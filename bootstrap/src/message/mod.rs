//! The messages of the handshake, as bytes.
//!
//! Each end sends [`MAGIC`] once and then messages:
//!
//! ```text
//! length  u16 LE   of what follows, 1 to MAX_MESSAGE_BYTES
//! kind    u8       MessageKind
//! fields           in the order of the structs here, little-endian
//! checksum u32 LE  of all that is above it; Hello has none
//! ```
//!
//! The checksum of the first message of an end behind its Hello also covers both Hellos, as they
//! were sent. So each end finds out whether the other heard it correctly. The checksum stands where
//! earlier versions ignore it, so that they can read a *Refusal* all the same.
//!
//! Rules:
//!
//! - Every length is bounded before it is believed, and nothing else of a message is believed
//!   before its checksum is right.
//! - Bytes behind the last known field are ignored, which is how a minor version adds fields.
//! - Parsing allocates no more than the message is long.
#![forbid(unsafe_code)]

mod binding;
mod checksum;
mod choice;
mod endpoint;
mod field;
mod hello;
mod offer;
mod ready;
mod refusal;
mod resume;
mod text;

use std::fmt;

pub use crate::host_tags::HostTags;
pub use binding::Binding;
pub(crate) use checksum::CHECKSUM;
pub use checksum::{ALONE, CHECKSUM_BYTES, checksum};
pub use choice::{FabricChoice, Unavailable};
pub use endpoint::{Endpoint, GidKind, QueuePairAddress, ShmEndpoint, VerbsEndpoint, VerbsRail};
pub use hello::{Hello, SecurityMode, Version, VersionRange};
pub use offer::Offer;
pub use ready::{Ready, SessionSecrets};
pub use refusal::{HandshakeRefusal, RefusalCause, ResumeRefusal};
pub use resume::{Resume, Resumed};
pub use text::Text;

use field::{FieldReader, FieldWriter};

/// The first bytes of each direction.
///
/// The first byte is no letter, so no text protocol begins with it. The line feed serves the other
/// direction: a server that reads lines has read one and answers at once, where it would otherwise
/// wait for the rest.
pub const MAGIC: [u8; 8] = *b"\x89ibex\r\n\x1a";

/// Longest message, its kind and its checksum included and its length prefix not.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// A message of a handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeMessage {
    /// The first message of a node, before anything is agreed.
    Hello(Hello),
    /// A node's identity, fabrics and limits.
    Offer(Offer),
    /// The dialer's pick.
    Choice(FabricChoice),
    /// The place to go to for the chosen fabric.
    Endpoint(Endpoint),
    /// The acceptor cannot provide the chosen fabric.
    Unavailable(Unavailable),
    /// The sender is ready.
    Ready(Ready),
    /// The end of the handshake.
    Refusal(HandshakeRefusal),
    /// The dialer's request to resume a session over this connection.
    Resume(Resume),
    /// The acceptor's consent to resume the session.
    Resumed(Resumed),
    /// The first message of each end behind TLS.
    Binding(Binding),
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum MessageKind {
    /// [`HandshakeMessage::Hello`]
    Hello = 1,
    /// [`HandshakeMessage::Offer`]
    Offer = 2,
    /// [`HandshakeMessage::Choice`]
    Choice = 3,
    /// [`HandshakeMessage::Endpoint`]
    Endpoint = 4,
    /// [`HandshakeMessage::Unavailable`]
    Unavailable = 5,
    /// [`HandshakeMessage::Ready`]
    Ready = 6,
    /// [`HandshakeMessage::Refusal`]
    Refusal = 7,
    /// [`HandshakeMessage::Resume`]
    Resume = 8,
    /// [`HandshakeMessage::Resumed`]
    Resumed = 9,
    /// [`HandshakeMessage::Binding`]
    Binding = 10,
}

/// The reason why bytes are not a message. The sender is at fault: it broke the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// A length prefix of zero; there is no message without a kind.
    #[error("a message of 0 bytes")]
    Empty,
    /// A length prefix above the bound.
    #[error("a message of {length} bytes was announced, above the limit of {MAX_MESSAGE_BYTES}")]
    Oversize {
        /// The announced length.
        length: usize,
    },
    /// Bytes that came while no message was due.
    #[error("{length} bytes came while this node had something of its own to do first")]
    Unasked {
        /// The number of bytes that came.
        length: usize,
    },
    /// A kind that is not in this version of the protocol.
    #[error("message kind {0} is unknown")]
    UnknownKind(u8),
    /// The message ends before its fields do.
    #[error("{field} needs {needed} bytes and {left} are left")]
    Truncated {
        /// The field that was being read.
        field: &'static str,
        /// The field's length.
        needed: usize,
        /// The bytes that were left.
        left: usize,
    },
    /// A variable part is longer than its bound.
    #[error("{field} is {length} long, above the limit of {max}")]
    TooLong {
        /// The field.
        field: &'static str,
        /// The announced length.
        length: usize,
        /// The bound.
        max: usize,
    },
    /// A number outside of the field's range.
    #[error("{field} cannot be {value}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// The value that was there.
        value: u32,
    },
    /// A field that may occur once occurs twice.
    #[error("{field} is given twice")]
    Repeated {
        /// The field.
        field: &'static str,
    },
}

/// Reads one message: its kind and its fields, without the length prefix and the checksum.
pub fn parse_message(bytes: &[u8]) -> Result<HandshakeMessage, MessageError> {
    let Some((&kind, body)) = bytes.split_first() else {
        return Err(MessageError::Empty);
    };
    if bytes.len() > MAX_MESSAGE_BYTES {
        return Err(MessageError::Oversize {
            length: bytes.len(),
        });
    }
    let kind = MessageKind::from_wire(kind).ok_or(MessageError::UnknownKind(kind))?;
    let fields = FieldReader::new(body);
    Ok(match kind {
        MessageKind::Hello => HandshakeMessage::Hello(Hello::parse(fields)?),
        MessageKind::Offer => HandshakeMessage::Offer(Offer::parse(fields)?),
        MessageKind::Choice => HandshakeMessage::Choice(FabricChoice::parse(fields)?),
        MessageKind::Endpoint => HandshakeMessage::Endpoint(Endpoint::parse(fields)?),
        MessageKind::Unavailable => HandshakeMessage::Unavailable(Unavailable::parse(fields)?),
        MessageKind::Ready => HandshakeMessage::Ready(Ready::parse(fields)?),
        MessageKind::Refusal => HandshakeMessage::Refusal(HandshakeRefusal::parse(fields)?),
        MessageKind::Resume => HandshakeMessage::Resume(Resume::parse(fields)?),
        MessageKind::Resumed => HandshakeMessage::Resumed(Resumed::parse(fields)?),
        MessageKind::Binding => HandshakeMessage::Binding(Binding::parse(fields)?),
    })
}

impl HandshakeMessage {
    /// Returns the kind of this message.
    pub fn kind(&self) -> MessageKind {
        match self {
            HandshakeMessage::Hello(_) => MessageKind::Hello,
            HandshakeMessage::Offer(_) => MessageKind::Offer,
            HandshakeMessage::Choice(_) => MessageKind::Choice,
            HandshakeMessage::Endpoint(_) => MessageKind::Endpoint,
            HandshakeMessage::Unavailable(_) => MessageKind::Unavailable,
            HandshakeMessage::Ready(_) => MessageKind::Ready,
            HandshakeMessage::Refusal(_) => MessageKind::Refusal,
            HandshakeMessage::Resume(_) => MessageKind::Resume,
            HandshakeMessage::Resumed(_) => MessageKind::Resumed,
            HandshakeMessage::Binding(_) => MessageKind::Binding,
        }
    }

    /// Appends a *Hello* with its length prefix.
    pub fn write(&self, out: &mut Vec<u8>) {
        self.write_with_room(out, 0);
    }

    /// Appends any other message with its length prefix and its [`checksum`], which covers
    /// `before` as well.
    pub fn write_checked(&self, before: [&[u8]; 2], out: &mut Vec<u8>) {
        let start = out.len();
        self.write_with_room(out, CHECKSUM_BYTES);
        let checksum = checksum(before, &out[start..]);
        out.extend_from_slice(&checksum.to_le_bytes());
    }

    /// Appends the message; its length prefix counts `behind` bytes more, which follow.
    fn write_with_room(&self, out: &mut Vec<u8>, behind: usize) {
        let prefix = out.len();
        out.extend_from_slice(&[0; 2]);
        out.push(self.kind() as u8);
        let mut fields = FieldWriter::new(out);
        match self {
            HandshakeMessage::Hello(hello) => hello.write(&mut fields),
            HandshakeMessage::Offer(offer) => offer.write(&mut fields),
            HandshakeMessage::Choice(choice) => choice.write(&mut fields),
            HandshakeMessage::Endpoint(endpoint) => endpoint.write(&mut fields),
            HandshakeMessage::Unavailable(unavailable) => unavailable.write(&mut fields),
            HandshakeMessage::Ready(ready) => ready.write(&mut fields),
            HandshakeMessage::Refusal(refusal) => refusal.write(&mut fields),
            HandshakeMessage::Resume(resume) => resume.write(&mut fields),
            HandshakeMessage::Resumed(resumed) => resumed.write(&mut fields),
            HandshakeMessage::Binding(binding) => binding.write(&mut fields),
        }
        let length = out.len() - prefix - 2 + behind;
        debug_assert!(
            length <= MAX_MESSAGE_BYTES,
            "each variable field is bounded"
        );
        out[prefix..prefix + 2].copy_from_slice(&(length as u16).to_le_bytes());
    }
}

impl MessageKind {
    fn from_wire(byte: u8) -> Option<MessageKind> {
        match byte {
            1 => Some(MessageKind::Hello),
            2 => Some(MessageKind::Offer),
            3 => Some(MessageKind::Choice),
            4 => Some(MessageKind::Endpoint),
            5 => Some(MessageKind::Unavailable),
            6 => Some(MessageKind::Ready),
            7 => Some(MessageKind::Refusal),
            8 => Some(MessageKind::Resume),
            9 => Some(MessageKind::Resumed),
            10 => Some(MessageKind::Binding),
            _ => None,
        }
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
