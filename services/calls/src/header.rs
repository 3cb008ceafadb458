//! The fixed header before each payload, which names the call and the kind of frame.
//!
//! ```text
//!   0       4            8      9       11          16
//!   | number | generation | kind | count | argument  | payload at the next multiple of
//!   |  u32   |    u32     |  u8  |  u16  | u40       | its alignment
//! ```
//!
//! The header of a long payload that lies in memory of the program's own is the message's header, and
//! the payload its bytes.
//!
//! Behind the payload of an extended request stands its extension, so that the payload is where it
//! is in every frame.
//!
//! All numbers are little-endian. `number` is below the in-flight limit, so that both ends find a
//! call by an index. `generation` distinguishes calls that had the number one after the other.

#![forbid(unsafe_code)]

use std::time::Duration;

/// A call, as both ends name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallId {
    pub(super) number: u32,
    pub(super) generation: u32,
}

/// Kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A request for one reply. `argument` is the time left.
    Call = 1,
    /// A request for a stream of replies; `count` is how many may be under way.
    Stream = 2,
    /// The caller does not wait any more.
    Cancel = 3,
    /// `count` more items may come.
    Credit = 4,
    /// The reply, which ends the call.
    Reply = 5,
    /// A reply of a stream.
    Item = 6,
    /// The stream has ended in order.
    End = 7,
    /// The handler failed the call: `argument` is its code, the payload its text.
    Failed = 8,
    /// No handler got the request: `count` says why.
    Refused = 9,
    /// There is no reply to a request that a handler had. `count` and the payload say why:
    /// `no_reply.rs`.
    Unanswered = 10,
    /// A notice that belongs to no call: the calls that had begun are answered, and handlers get no
    /// more requests.
    Drained = 11,
    /// A [`Call`](Self::Call) whose frame ends with an
    /// [extension](crate::call_extension), for a peer that takes them.
    ExtendedCall = 12,
    /// The same of a [`Stream`](Self::Stream).
    ExtendedStream = 13,
}

const KINDS: [Kind; 13] = [
    Kind::Call,
    Kind::Stream,
    Kind::Cancel,
    Kind::Credit,
    Kind::Reply,
    Kind::Item,
    Kind::End,
    Kind::Failed,
    Kind::Refused,
    Kind::Unanswered,
    Kind::Drained,
    Kind::ExtendedCall,
    Kind::ExtendedStream,
];

impl Kind {
    /// Returns whether frames of this kind go to the service. The others go to the caller.
    pub(super) fn is_for_service(self) -> bool {
        use Kind::{Call, Cancel, Credit, ExtendedCall, ExtendedStream, Stream};
        matches!(
            self,
            Call | Stream | Cancel | Credit | ExtendedCall | ExtendedStream
        )
    }

    /// The kind of a request whose frame has an extension.
    pub(super) fn extended(self) -> Self {
        match self {
            Self::Call => Self::ExtendedCall,
            Self::Stream => Self::ExtendedStream,
            other => other,
        }
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) id: CallId,
    pub(super) kind: Kind,
    pub(super) count: u16,
    /// At most [`NO_DEADLINE`].
    pub(super) argument: u64,
}

impl Header {
    pub(super) const BYTES: usize = 16;

    /// The last word of a service that drains.
    pub(super) const DRAINED: Self = Self {
        id: CallId {
            number: u32::MAX,
            generation: 0,
        },
        kind: Kind::Drained,
        count: 0,
        argument: 0,
    };

    pub(super) fn new(id: CallId, kind: Kind) -> Self {
        Self {
            id,
            kind,
            count: 0,
            argument: 0,
        }
    }

    pub(super) fn with_count(self, count: u16) -> Self {
        Self { count, ..self }
    }

    /// The header of a request whose extension was taken off.
    pub(super) fn without_extension(self) -> Self {
        let kind = match self.kind {
            Kind::ExtendedCall => Kind::Call,
            Kind::ExtendedStream => Kind::Stream,
            other => other,
        };
        Self { kind, ..self }
    }

    pub(super) fn with_code(self, code: u32) -> Self {
        Self {
            argument: code.into(),
            ..self
        }
    }

    /// Sets the time left, in microseconds. Clocks differ, so no point in time is sent.
    pub(super) fn with_time_left(self, left: Option<Duration>) -> Self {
        let argument = left.map_or(NO_DEADLINE, |left| {
            let micros = u64::try_from(left.as_micros()).unwrap_or(u64::MAX);
            micros.min(NO_DEADLINE - 1)
        });
        Self { argument, ..self }
    }

    /// The time left, of a request that has a deadline.
    pub(super) fn time_left(&self) -> Option<Duration> {
        (self.argument != NO_DEADLINE).then(|| Duration::from_micros(self.argument))
    }

    /// The code of a failure.
    pub(super) fn code(&self) -> u32 {
        self.argument as u32
    }

    pub(super) fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&self.id.number.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.id.generation.to_le_bytes());
        bytes[8] = self.kind as u8;
        bytes[9..11].copy_from_slice(&self.count.to_le_bytes());
        bytes[11..].copy_from_slice(&self.argument.to_le_bytes()[..5]);
        bytes
    }

    /// Reads the header of a frame from any sender.
    pub(super) fn parse(frame: &[u8]) -> Result<Self, MalformedCallFrame> {
        let bytes = frame.first_chunk::<{ Self::BYTES }>();
        let bytes = bytes.ok_or(MalformedCallFrame::Short(frame.len()))?;
        let [a, b, c, d, e, f, g, h, kind, i, j, argument @ ..] = *bytes;
        let kind = KINDS.into_iter().find(|&known| known as u8 == kind);
        let mut wide = [0; 8];
        wide[..5].copy_from_slice(&argument);
        Ok(Self {
            id: CallId {
                number: u32::from_le_bytes([a, b, c, d]),
                generation: u32::from_le_bytes([e, f, g, h]),
            },
            kind: kind.ok_or(MalformedCallFrame::Kind(bytes[8]))?,
            count: u16::from_le_bytes([i, j]),
            argument: u64::from_le_bytes(wide),
        })
    }
}

/// A frame that no ibex writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum MalformedCallFrame {
    #[error("a call's frame has {0} bytes, less than the {header} of its header", header = Header::BYTES)]
    Short(usize),
    #[error("a call's frame is of kind {0}, which there is not")]
    Kind(u8),
    #[error("a call's frame is of a kind that goes the other way")]
    Direction,
    #[error("a call's frame has a header beside it that is none, or of a kind without a payload")]
    Beside,
}

/// The greatest `argument`: a request without a deadline.
const NO_DEADLINE: u64 = (1 << 40) - 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: Kind) -> Header {
        let id = CallId {
            number: 0x0102_0304,
            generation: u32::MAX - 7,
        };
        Header {
            id,
            kind,
            count: 0xbeef,
            argument: 0x00f1_2233_4455,
        }
    }

    #[test]
    fn a_header_of_each_kind_is_read_as_it_was_written() {
        for kind in KINDS {
            let header = header(kind);
            assert_eq!(Header::parse(&header.to_bytes()), Ok(header));
        }
    }

    #[test]
    fn no_bytes_are_more_than_malformed() {
        let bytes = header(Kind::Call).to_bytes();
        for length in 0..Header::BYTES {
            let parsed = Header::parse(&bytes[..length]);
            assert_eq!(parsed, Err(MalformedCallFrame::Short(length)));
        }
        for kind in 0..=u8::MAX {
            let mut bytes = bytes;
            bytes[8] = kind;
            match Header::parse(&bytes) {
                Ok(header) => assert_eq!(header.kind as u8, kind),
                Err(malformed) => assert_eq!(malformed, MalformedCallFrame::Kind(kind)),
            }
        }
    }

    #[test]
    fn a_time_is_kept_to_the_microsecond_and_forever_is_none() {
        let id = header(Kind::Call).id;
        let with = |left| Header::new(id, Kind::Call).with_time_left(left).time_left();
        assert_eq!(with(None), None);
        let left = Duration::from_micros(1_234_567);
        assert_eq!(with(Some(left)), Some(left));
        // The longest time is about twelve days, so more than a million seconds remain.
        assert!(with(Some(Duration::MAX)).is_some_and(|left| left.as_secs() > 1_000_000));
    }
}
