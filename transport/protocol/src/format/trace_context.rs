//! W3C trace context: the place of a call or a message in a distributed trace.
#![forbid(unsafe_code)]

use std::{fmt, str::FromStr};

/// A W3C trace context: the trace that a call or a message belongs to, and the span that it was
/// made in.
///
/// It is what the header `traceparent` says. The header `tracestate` has no place here; a program
/// that needs it sends it as metadata of its own.
///
/// ```
/// use ibex_protocol::format::trace_context::TraceContext;
///
/// let text = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
/// let context = TraceContext::from_traceparent(text)?;
/// assert!(context.is_sampled());
/// assert_eq!(context.to_traceparent(), text);
/// # Ok::<(), ibex_protocol::format::trace_context::InvalidTraceContext>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceContext {
    version: u8,
    trace_id: [u8; 16],
    span_id: [u8; 8],
    flags: u8,
}

/// No trace context: the text or the bytes break a rule of W3C's recommendation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no W3C trace context: {what}; pass on what a tracer made, unchanged")]
pub struct InvalidTraceContext {
    what: &'static str,
}

impl TraceContext {
    /// Length of the binary form: version, trace id, span id and flags.
    pub const BYTES: usize = 26;

    /// Makes a context of the ids and flags that a tracer gives. Bit 0 of `flags` says that the
    /// trace is recorded.
    ///
    /// # Errors
    ///
    /// [`InvalidTraceContext`]: an id is all zeros.
    pub fn new(
        trace_id: [u8; 16],
        span_id: [u8; 8],
        flags: u8,
    ) -> Result<Self, InvalidTraceContext> {
        Self {
            version: 0,
            trace_id,
            span_id,
            flags,
        }
        .checked()
    }

    /// Reads the binary form.
    ///
    /// # Errors
    ///
    /// [`InvalidTraceContext`]: the version is 255, or an id is all zeros.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Result<Self, InvalidTraceContext> {
        let [version, ids @ .., flags] = bytes;
        let mut trace_id = [0; 16];
        let mut span_id = [0; 8];
        trace_id.copy_from_slice(&ids[..16]);
        span_id.copy_from_slice(&ids[16..]);
        Self {
            version,
            trace_id,
            span_id,
            flags,
        }
        .checked()
    }

    /// Returns the binary form.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[0] = self.version;
        bytes[1..17].copy_from_slice(&self.trace_id);
        bytes[17..25].copy_from_slice(&self.span_id);
        bytes[25] = self.flags;
        bytes
    }

    /// Reads the header `traceparent`. Of a version that is not known yet, it takes the fields of
    /// version 00, as W3C asks, and is a context of version 00.
    ///
    /// # Errors
    ///
    /// [`InvalidTraceContext`]: the text is no `traceparent`.
    pub fn from_traceparent(text: &str) -> Result<Self, InvalidTraceContext> {
        let invalid = |what| InvalidTraceContext { what };
        let (known, rest) = text
            .as_bytes()
            .split_first_chunk::<TEXT_BYTES>()
            .ok_or(invalid("the text has less than 55 characters"))?;
        let is_separated = [2, 35, 52].into_iter().all(|at| known[at] == b'-');
        let mut version = [0];
        let mut flags = [0];
        let mut trace_id = [0; 16];
        let mut span_id = [0; 8];
        let is_hexadecimal = read_hexadecimal(&known[..2], &mut version)
            && read_hexadecimal(&known[3..35], &mut trace_id)
            && read_hexadecimal(&known[36..52], &mut span_id)
            && read_hexadecimal(&known[53..], &mut flags);
        if !is_separated || !is_hexadecimal {
            return Err(invalid(
                "the text is not four lower-case hexadecimal numbers with dashes between them",
            ));
        }
        match (version[0], rest) {
            (u8::MAX, _) => return Err(invalid("version ff is none")),
            (_, []) | (1.., [b'-', ..]) => {}
            _ => return Err(invalid("the text goes on behind its flags")),
        }
        Self::new(trace_id, span_id, flags[0])
    }

    /// Returns the header `traceparent`.
    #[must_use]
    pub fn to_traceparent(&self) -> String {
        self.to_string()
    }

    /// The trace's id, which all of its spans share.
    #[must_use]
    pub fn trace_id(&self) -> [u8; 16] {
        self.trace_id
    }

    /// The id of the span in which the call or the message was made.
    #[must_use]
    pub fn span_id(&self) -> [u8; 8] {
        self.span_id
    }

    /// The flags; bit 0 says that the trace is recorded.
    #[must_use]
    pub fn flags(&self) -> u8 {
        self.flags
    }

    /// Returns whether the trace is recorded where it began.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 != 0
    }

    fn checked(self) -> Result<Self, InvalidTraceContext> {
        let what = match self {
            Self { version: 255, .. } => "version ff is none",
            Self { trace_id, .. } if trace_id == [0; 16] => "the trace id is all zeros",
            Self { span_id, .. } if span_id == [0; 8] => "the span id is all zeros",
            _ => return Ok(self),
        };
        Err(InvalidTraceContext { what })
    }
}

/// The header `traceparent`.
impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02x}-", self.version)?;
        let hexadecimal = |f: &mut fmt::Formatter<'_>, bytes: &[u8]| {
            bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
        };
        hexadecimal(f, &self.trace_id)?;
        f.write_str("-")?;
        hexadecimal(f, &self.span_id)?;
        write!(f, "-{:02x}", self.flags)
    }
}

impl fmt::Debug for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceContext;

    fn from_str(text: &str) -> Result<Self, InvalidTraceContext> {
        Self::from_traceparent(text)
    }
}

/// Reads lower-case hexadecimal digits, two for each byte. Returns false if there are others.
fn read_hexadecimal(digits: &[u8], into: &mut [u8]) -> bool {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    digits.len() == 2 * into.len()
        && digits.chunks_exact(2).zip(into).all(|(pair, byte)| {
            let read = value(pair[0]).zip(value(pair[1]));
            read.map(|(high, low)| *byte = high << 4 | low).is_some()
        })
}

/// Length of a `traceparent` of version 00.
const TEXT_BYTES: usize = 55;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn the_example_of_the_recommendation_is_read() {
        let context = TraceContext::from_traceparent(TEXT).expect("a context");
        assert_eq!(context.trace_id()[..2], [0x4b, 0xf9]);
        assert_eq!(context.span_id(), 0x00f0_67aa_0ba9_02b7_u64.to_be_bytes());
        assert!(context.is_sampled());
        assert_eq!(context.to_string(), TEXT);
        assert_eq!(TraceContext::from_bytes(context.to_bytes()), Ok(context));
    }

    #[test]
    fn a_later_version_is_read_as_far_as_it_is_known() {
        let later = TEXT.replacen("00-", "cc-", 1);
        for text in [
            later.clone(),
            format!("{later}-what-the-future-will-be-like"),
        ] {
            let context = TraceContext::from_traceparent(&text).expect("a context");
            assert_eq!(context.to_string(), TEXT);
        }
    }

    #[test]
    fn what_the_recommendation_forbids_is_refused() {
        let zero_trace = format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32));
        let zero_span = format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{}-01", "0".repeat(16));
        for text in [
            "",
            &TEXT[..54],
            &TEXT.to_uppercase(),
            &TEXT.replacen("00-", "ff-", 1),
            &TEXT.replacen('-', "_", 1),
            &TEXT.replace("4bf9", "4bé"),
            &format!("{TEXT}-"),
            &format!("{TEXT}0"),
            &format!("{}0", TEXT.replacen("00-", "01-", 1)),
            &zero_trace,
            &zero_span,
        ] {
            assert!(TraceContext::from_traceparent(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn bytes_and_text_say_the_same(bytes in prop::array::uniform26(any::<u8>())) {
            if let Ok(context) = TraceContext::from_bytes(bytes) {
                prop_assert_eq!(context.to_bytes(), bytes);
                let read = TraceContext::from_traceparent(&context.to_string());
                let read = read.expect("its own text");
                prop_assert_eq!(read.to_bytes()[1..].to_vec(), bytes[1..].to_vec());
            }
        }

        #[test]
        fn no_text_panics(text: String) {
            let _ = TraceContext::from_traceparent(&text);
        }
    }
}
