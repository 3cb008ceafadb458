//! Why a call that a handler had got no reply, as the frame tells it.

#![forbid(unsafe_code)]

use std::fmt;

use ibex_core::{SendError, SendErrorKind};

/// Why a call that a handler had got no reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum NoReply {
    /// The handler dropped the request.
    #[default]
    Dropped,
    /// The reply, or an item of a stream, is above the limit of its channel.
    TooLong { length: Option<u64>, limit: u64 },
    /// The codec refused the reply, as the text says.
    NotEncoded(String),
}

impl NoReply {
    /// Says what the failure of sending a reply means for its call. What may succeed when the call
    /// is made again is told as if there had been no reply.
    pub(super) fn of(error: &SendError) -> Self {
        match (error.kind(), error.limit()) {
            (SendErrorKind::TooLong, Some(limit)) => Self::too_long(error.length(), limit),
            (SendErrorKind::Encode, _) => Self::not_encoded(&error.to_string()),
            _ => Self::Dropped,
        }
    }

    pub(super) fn too_long(length: Option<u64>, limit: u64) -> Self {
        Self::TooLong { length, limit }
    }

    pub(super) fn not_encoded(why: &str) -> Self {
        let mut end = why.len().min(MOST_TEXT);
        while !why.is_char_boundary(end) {
            end -= 1;
        }
        Self::NotEncoded(why[..end].to_owned())
    }

    /// The `count` of the frame. Releases that do not know it take the frame for that of a dropped
    /// request.
    pub(super) fn as_count(&self) -> u16 {
        match self {
            Self::Dropped => 0,
            Self::TooLong { .. } => 1,
            Self::NotEncoded(_) => 2,
        }
    }

    /// The payload of the frame.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Dropped => Vec::new(),
            Self::TooLong { length, limit } => {
                let length = length.unwrap_or(NOT_KNOWN);
                [length.to_le_bytes(), limit.to_le_bytes()].concat()
            }
            Self::NotEncoded(text) => text.clone().into_bytes(),
        }
    }

    /// Reads a frame from any sender.
    pub(super) fn parse(number: u16, payload: &[u8]) -> Self {
        match (number, payload.as_chunks().0) {
            (1, [length, limit, ..]) => {
                let length = u64::from_le_bytes(*length);
                let length = (length != NOT_KNOWN).then_some(length);
                Self::too_long(length, u64::from_le_bytes(*limit))
            }
            (2, _) => Self::not_encoded(&String::from_utf8_lossy(payload)),
            _ => Self::Dropped,
        }
    }
}

/// What follows the names of service and peer in the error of the call.
impl fmt::Display for NoReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dropped => write!(
                f,
                ": the handler dropped the request without an answer; {MAY_BE_EXECUTED}"
            ),
            Self::TooLong { length, limit } => {
                f.write_str(": the handler has executed the call, but its reply was not sent: ")?;
                match length {
                    Some(length) => write!(f, "it has {length} bytes, more than the {limit}")?,
                    None => write!(f, "it has more than the {limit} bytes")?,
                }
                f.write_str(
                    " that a message may have; raise max_message_bytes at both ends, or have the \
                     service send a stream of shorter items",
                )
            }
            Self::NotEncoded(why) => write!(
                f,
                ": the handler has executed the call, but its reply was not sent: {}",
                ibex_core::extend::Escaped(why)
            ),
        }
    }
}

const NOT_KNOWN: u64 = u64::MAX;
/// The longest text; what is longer is cut.
const MOST_TEXT: usize = 4096;

/// Returns consequence and advice where [`Execution::Unknown`] is all that is certain.
pub(super) const MAY_BE_EXECUTED: &str = "a handler may have executed the call: call again only if it may be \
                               executed twice";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_is_read_as_it_was_written() {
        for reason in [
            NoReply::Dropped,
            NoReply::too_long(Some(17), 16),
            NoReply::too_long(None, u64::MAX),
            NoReply::not_encoded("it has no end"),
        ] {
            assert_eq!(
                NoReply::parse(reason.as_count(), &reason.to_bytes()),
                reason
            );
        }
    }

    #[test]
    fn other_bytes_are_a_dropped_request_or_a_short_text() {
        assert_eq!(
            NoReply::parse(0, b"later releases may write more"),
            NoReply::Dropped
        );
        assert_eq!(NoReply::parse(1, &[7; 15]), NoReply::Dropped);
        assert_eq!(NoReply::parse(99, &[]), NoReply::Dropped);
        let long = NoReply::parse(2, &[0xff; 100_000]);
        assert!(long.to_bytes().len() <= MOST_TEXT);
    }
}
