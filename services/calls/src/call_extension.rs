//! The extension of a call's frame, which stands behind the payload: trace context and metadata.
//!
//! ```text
//!   | trace context        | metadata       | flags | length |   the frame's last byte is `length`'s
//!   | 26, if flag 0 is set | up to 1024     |  u8   |  u16   |
//! ```
//!
//! `length` is that of the whole extension. A frame without trace context and metadata has no
//! extension, and only peers whose Hellos have the feature send any.
#![forbid(unsafe_code)]

use ibex_core::TraceContext;

use crate::metadata::{MalformedMetadata, Metadata};

/// What a call carries beside its request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CallExtension {
    /// The place of the call in a trace.
    pub trace: Option<TraceContext>,
    /// The call's metadata.
    pub metadata: Metadata,
}

impl CallExtension {
    /// The longest extension.
    pub const MAX_BYTES: usize = TraceContext::BYTES + Metadata::MAX_BYTES + FOOT_BYTES;

    /// Splits a frame into what is before its extension, and the extension.
    ///
    /// # Errors
    ///
    /// [`MalformedExtension`]: the frame's last bytes are no extension.
    pub fn split(frame: &[u8]) -> Result<(&[u8], Self), MalformedExtension> {
        let (_, foot) = frame
            .split_last_chunk::<FOOT_BYTES>()
            .ok_or(MalformedExtension::Cut)?;
        let [flags, length @ ..] = *foot;
        let length = usize::from(u16::from_le_bytes(length));
        let before = frame.len().checked_sub(length);
        let (before, extension) = frame.split_at(before.ok_or(MalformedExtension::Cut)?);
        let fields = extension.len().checked_sub(FOOT_BYTES);
        let fields = &extension[..fields.ok_or(MalformedExtension::Cut)?];
        let (trace, pairs) = match flags {
            0 => (None, fields),
            TRACED => {
                let (trace, pairs) = fields.split_first_chunk().ok_or(MalformedExtension::Cut)?;
                let trace = TraceContext::from_bytes(*trace);
                (Some(trace.map_err(|_| MalformedExtension::Trace)?), pairs)
            }
            flags => return Err(MalformedExtension::Flags(flags)),
        };
        let metadata = Metadata::parse(pairs)?;
        let extension = Self { trace, metadata };
        match extension.is_empty() {
            true => Err(MalformedExtension::Empty),
            false => Ok((before, extension)),
        }
    }

    /// Returns whether there is nothing to carry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.trace.is_none() && self.metadata.is_empty()
    }
}

/// An extension that is to be written: its parts, the one behind the other.
#[derive(Clone, Copy, Debug)]
pub struct WrittenExtension<'a> {
    trace: Option<TraceContext>,
    metadata: &'a Metadata,
}

impl<'a> WrittenExtension<'a> {
    /// Makes the extension of a call that carries something.
    #[must_use]
    pub fn new(trace: Option<TraceContext>, metadata: &'a Metadata) -> Option<Self> {
        let is_empty = trace.is_none() && metadata.is_empty();
        (!is_empty).then_some(Self { trace, metadata })
    }

    /// The length of all parts.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let trace = self.trace.map_or(0, |_| TraceContext::BYTES);
        trace + self.metadata.encoded().len() + FOOT_BYTES
    }

    /// Passes each part to `write`, in order.
    ///
    /// # Errors
    ///
    /// The first error of `write`.
    pub fn write<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        if let Some(trace) = self.trace {
            write(&trace.to_bytes())?;
        }
        write(self.metadata.encoded())?;
        let [low, high] = (self.bytes() as u16).to_le_bytes();
        let flags = if self.trace.is_some() { TRACED } else { 0 };
        write(&[flags, low, high])
    }
}

/// An extension that no ibex writes. Always the peer's fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages say what each is")]
pub enum MalformedExtension {
    #[error("the call's extension is longer than its frame, or shorter than its parts")]
    Cut,
    #[error("the call's extension has flags {0:#x}, which this version does not know")]
    Flags(u8),
    #[error("the call's extension has no valid trace context where it says that it has one")]
    Trace,
    #[error("the call's metadata is not valid: {0}")]
    Metadata(#[from] MalformedMetadata),
    #[error("the call's extension carries nothing")]
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

    fn trace() -> TraceContext {
        TraceContext::new([7; 16], [9; 8], 1).expect("a context")
    }

    fn metadata() -> Metadata {
        let mut metadata = Metadata::new();
        metadata.insert("tenant", "blue").expect("room");
        metadata
    }

    fn written(before: &[u8], trace: Option<TraceContext>, metadata: &Metadata) -> Vec<u8> {
        let mut frame = before.to_vec();
        let extension = WrittenExtension::new(trace, metadata).expect("something");
        let written: Result<(), ()> = extension.write(|part| {
            frame.extend_from_slice(part);
            Ok(())
        });
        written.expect("a vector grows");
        assert_eq!(frame.len(), before.len() + extension.bytes());
        frame
    }

    #[test]
    fn an_extension_is_read_as_it_was_written() {
        for (trace, metadata) in [
            (Some(trace()), Metadata::new()),
            (None, metadata()),
            (Some(trace()), metadata()),
        ] {
            for before in [&b""[..], b"a frame"] {
                let frame = written(before, trace, &metadata);
                let metadata = metadata.clone();
                let extension = CallExtension { trace, metadata };
                assert_eq!(CallExtension::split(&frame), Ok((before, extension)));
            }
        }
        assert!(WrittenExtension::new(None, &Metadata::new()).is_none());
    }

    #[test]
    fn every_damage_is_told() {
        let frame = written(b"", Some(trace()), &metadata());
        for cut in 1..frame.len() {
            let cut = &frame[cut..];
            assert_eq!(CallExtension::split(cut), Err(MalformedExtension::Cut));
        }
        assert_eq!(CallExtension::split(b""), Err(MalformedExtension::Cut));
        let foot = |flags, length: u16| {
            let [low, high] = length.to_le_bytes();
            [flags, low, high]
        };
        for (bytes, expected) in [
            (foot(0, 2).to_vec(), MalformedExtension::Cut),
            (foot(0, 4).to_vec(), MalformedExtension::Cut),
            (foot(0, 3).to_vec(), MalformedExtension::Empty),
            (foot(2, 3).to_vec(), MalformedExtension::Flags(2)),
            (foot(1, 3).to_vec(), MalformedExtension::Cut),
            (
                [&[0; 26][..], &foot(1, 29)].concat(),
                MalformedExtension::Trace,
            ),
            (
                [&[1][..], &foot(0, 4)].concat(),
                MalformedMetadata::Cut.into(),
            ),
        ] {
            assert_eq!(CallExtension::split(&bytes), Err(expected));
        }
    }

    proptest! {
        #[test]
        fn bytes_are_malformed_or_the_only_encoding(bytes: Vec<u8>) {
            if let Ok((before, extension)) = CallExtension::split(&bytes) {
                let again = written(before, extension.trace, &extension.metadata);
                prop_assert_eq!(again, bytes);
            }
        }
    }
}
