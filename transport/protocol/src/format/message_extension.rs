//! The extension of a message: a trace context, and the header that its sender put beside the body.
//!
//! ```text
//!   | trace context | header | flags | length |   the record's last byte is `length`'s
//!   |  26, or none  |  0..   |  u8   |  u16   |
//! ```
//!
//! `length` is that of the whole extension. The extension stands behind what the record of a message
//! without one has: behind the body, or behind the announcement of a body that travels outside the
//! ring. So the body is aligned as that of every message, and a large one begins and ends where its
//! memory does.
#![forbid(unsafe_code)]

use super::trace_context::TraceContext;

/// The extension of a message, which borrows its header.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MessageExtension<'a> {
    /// The trace context, in its binary form if it has a valid one.
    pub trace: Option<[u8; TraceContext::BYTES]>,
    /// The header, of up to [`MAX_HEADER_BYTES`](Self::MAX_HEADER_BYTES).
    pub header: &'a [u8],
}

impl<'a> MessageExtension<'a> {
    /// The longest header.
    pub const MAX_HEADER_BYTES: usize = 256;
    /// The longest extension.
    pub const MAX_BYTES: usize = TraceContext::BYTES + Self::MAX_HEADER_BYTES + FOOT_BYTES;

    /// Splits a record's payload into what is before its extension, and the extension.
    ///
    /// # Errors
    ///
    /// [`MalformedMessageExtension`]: the last bytes are no extension.
    pub fn split(payload: &'a [u8]) -> Result<(&'a [u8], Self), MalformedMessageExtension> {
        let cut = MalformedMessageExtension::Cut;
        let (_, foot) = payload.split_last_chunk::<FOOT_BYTES>().ok_or(cut)?;
        let [flags, length @ ..] = *foot;
        let length = usize::from(u16::from_le_bytes(length));
        let before = payload.len().checked_sub(length).ok_or(cut)?;
        let (before, extension) = payload.split_at(before);
        let fields = extension.len().checked_sub(FOOT_BYTES).ok_or(cut)?;
        let fields = &extension[..fields];
        let (trace, header) = match flags {
            0 => (None, fields),
            TRACED => {
                let (trace, header) = fields.split_first_chunk().ok_or(cut)?;
                (Some(*trace), header)
            }
            flags => return Err(MalformedMessageExtension::Flags(flags)),
        };
        let extension = Self { trace, header };
        match header.len() {
            0 if trace.is_none() => Err(MalformedMessageExtension::Empty),
            length if length > Self::MAX_HEADER_BYTES => {
                Err(MalformedMessageExtension::Header(length))
            }
            _ => Ok((before, extension)),
        }
    }

    /// Returns whether there is nothing to carry, so that the message has no extension.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trace.is_none() && self.header.is_empty()
    }

    /// The length of all parts; 0 of an extension that is [empty](Self::is_empty).
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self.is_empty() {
            true => 0,
            false => self.parts().iter().map(|part| part.len()).sum::<usize>() + FOOT_BYTES,
        }
    }

    /// Returns the bytes in order, none of an extension that is [empty](Self::is_empty).
    pub fn encoded(&self) -> impl Iterator<Item = u8> {
        let [low, high] = (self.bytes() as u16).to_le_bytes();
        let flags = if self.trace.is_some() { TRACED } else { 0 };
        let fields = self.parts().into_iter().flatten().copied();
        fields.chain([flags, low, high]).take(self.bytes())
    }

    fn parts(&self) -> [&[u8]; 2] {
        let trace = self.trace.as_ref().map_or(&[][..], |trace| &trace[..]);
        [trace, self.header]
    }
}

/// An extension that no ibex writes. Always the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what each is")]
pub enum MalformedMessageExtension {
    #[error("the message's extension is longer than its record, or shorter than its parts")]
    Cut,
    #[error("the message's extension has flags {0:#x}, which this version does not know")]
    Flags(u8),
    #[error("the message's header has {0} bytes, the limit is {limit}", limit = MessageExtension::MAX_HEADER_BYTES)]
    Header(usize),
    #[error("the message's extension carries nothing")]
    Empty,
}

/// Bytes of flags and length.
const FOOT_BYTES: usize = 3;
/// The flag of a trace context.
const TRACED: u8 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(before: &[u8], extension: &MessageExtension<'_>) -> Vec<u8> {
        let payload: Vec<u8> = before.iter().copied().chain(extension.encoded()).collect();
        assert_eq!(payload.len(), before.len() + extension.bytes());
        payload
    }

    #[test]
    fn each_part_is_there_or_not() {
        let trace = Some([7; TraceContext::BYTES]);
        for trace in [None, trace] {
            for header in [0, 1, 16, MessageExtension::MAX_HEADER_BYTES] {
                let header = &vec![9; header][..];
                let extension = MessageExtension { trace, header };
                let payload = written(b"body", &extension);
                let split = MessageExtension::split(&payload);
                match extension.is_empty() {
                    true => assert_eq!(payload, b"body"),
                    false => assert_eq!(split, Ok((&b"body"[..], extension))),
                }
            }
        }
    }

    #[test]
    fn what_no_ibex_writes_is_refused() {
        let header = &[1; MessageExtension::MAX_HEADER_BYTES][..];
        let longest = MessageExtension {
            trace: None,
            header,
        };
        let payload = written(b"", &longest);
        let (cut, foot) = payload.split_at(payload.len() - FOOT_BYTES);
        let one_more = [cut, &[1, foot[0], foot[1] + 1, foot[2]]].concat();
        let of_trace = [&[1; 25][..], &[TRACED, 28, 0]].concat();
        for (payload, error) in [
            (&one_more[..], MalformedMessageExtension::Header(257)),
            (&payload[1..], MalformedMessageExtension::Cut),
            (&of_trace, MalformedMessageExtension::Cut),
            (&[0, 0], MalformedMessageExtension::Cut),
            (&[1, 0, 2, 0], MalformedMessageExtension::Cut),
            (&[1, 2, 4, 0], MalformedMessageExtension::Flags(2)),
            (&[0, 3, 0], MalformedMessageExtension::Empty),
        ] {
            assert_eq!(MessageExtension::split(payload), Err(error), "{payload:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_extension_that_is_written_alike_or_refused(payload: Vec<u8>) {
            if let Ok((before, extension)) = MessageExtension::split(&payload) {
                prop_assert_eq!(written(before, &extension), payload.clone());
            }
        }
    }
}
