//! The messages of the handshake, as bytes.
//!
//! Each end sends [`MAGIC`] once and then messages:
//!
//! ```text
//! length  u16 LE   of what follows, 1 to MAX_MESSAGE_BYTES
//! kind    u8       MessageKind
//! fields           in the order of the table in `layout.rs`, little-endian
//! checksum u32 LE  of all that is above it; Hello has none
//! ```
//!
//! The checksum of the first message of an end behind its Hello also covers both Hellos, as they
//! were sent. So each end finds out whether the other received them correctly. The checksum stands where
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
mod hello;
mod layout;
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
pub use endpoint::{
    Endpoint, GidKind, PairAbilities, QueuePairAddress, ShmEndpoint, VerbsEndpoint, VerbsRail,
};
pub use hello::{Hello, SecurityMode, Version, VersionRange};
pub use offer::Offer;
pub use ready::{Ready, SessionSecrets};
pub use refusal::{HandshakeRefusal, RefusalCause, ResumeRefusal};
pub use resume::{Resume, Resumed, ResumedSession};
pub use text::Text;

pub use ibex_base::field::FieldError;
use ibex_base::field::{FieldReader, WireField};

/// The first bytes of each direction.
///
/// The first byte is no letter, so no text protocol begins with it. The line feed serves the other
/// direction: a server that reads lines has read one and answers at once, where it would otherwise
/// wait for the rest.
pub const MAGIC: [u8; 8] = *b"\x89ibex\r\n\x1a";

/// Longest message, its kind and its checksum included and its length prefix not.
pub const MAX_MESSAGE_BYTES: usize = 4096;

/// Defines the messages, each with the number of its kind.
macro_rules! messages {
    ($($(#[$doc:meta])* $kind:ident($fields:ty) = $number:literal,)*) => {
        /// A message of a handshake.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub enum HandshakeMessage {
            $($(#[$doc])* $kind($fields),)*
        }

        /// The kind of a message.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum MessageKind {
            $(#[doc = concat!("[`HandshakeMessage::", stringify!($kind), "`]")] $kind = $number,)*
        }

        impl HandshakeMessage {
            /// Returns the kind of this message.
            pub fn kind(&self) -> MessageKind {
                match self { $(Self::$kind(_) => MessageKind::$kind,)* }
            }

            fn read_fields(kind: u8, from: &mut FieldReader<'_>) -> Result<Self, MessageError> {
                match kind {
                    $($number => Ok(Self::$kind(WireField::read(from, stringify!($kind))?)),)*
                    kind => Err(MessageError::UnknownKind(kind)),
                }
            }

            fn write_fields(&self, out: &mut Vec<u8>) {
                match self { $(Self::$kind(fields) => fields.write(out),)* }
            }
        }
    };
}

messages! {
    /// The first message of a node, before anything is agreed.
    Hello(Hello) = 1,
    /// A node's identity, fabrics and limits.
    Offer(Offer) = 2,
    /// The dialer's pick.
    Choice(FabricChoice) = 3,
    /// The place to go to for the chosen fabric.
    Endpoint(Endpoint) = 4,
    /// The acceptor cannot provide the chosen fabric.
    Unavailable(Unavailable) = 5,
    /// The sender is ready.
    Ready(Ready) = 6,
    /// The end of the handshake.
    Refusal(HandshakeRefusal) = 7,
    /// The dialer's request to resume a session over this connection.
    Resume(Resume) = 8,
    /// The acceptor's consent to resume the session.
    Resumed(Resumed) = 9,
    /// The first message of each end behind TLS.
    Binding(Binding) = 10,
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
    /// A field is not as it can be.
    #[error(transparent)]
    Field(#[from] FieldError),
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
    HandshakeMessage::read_fields(kind, &mut FieldReader(body))
}

impl HandshakeMessage {
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
        self.write_fields(out);
        let length = out.len() - prefix - 2 + behind;
        debug_assert!(
            length <= MAX_MESSAGE_BYTES,
            "each variable field is bounded"
        );
        out[prefix..prefix + 2].copy_from_slice(&(length as u16).to_le_bytes());
    }
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

#[cfg(test)]
mod tests;
