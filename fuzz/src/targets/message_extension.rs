//! What messages carry beside their bodies: a header, and a trace context.
//!
//! Bytes that are accepted are the only encoding of what they carry.
#![forbid(unsafe_code)]

use ibex_protocol::format::message_extension::MessageExtension;
use ibex_protocol::format::trace_context::TraceContext;

use crate::Seed;

/// Takes the extension off a record.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Ok((before, extension)) = MessageExtension::split(bytes) else {
        return false;
    };
    assert!(!extension.is_empty());
    assert!(extension.header.len() <= MessageExtension::MAX_HEADER_BYTES);
    assert!(extension.bytes() <= MessageExtension::MAX_BYTES);
    assert_eq!(written(before, &extension), bytes);
    true
}

/// Returns records with either part and with both, as long as they can be.
pub(crate) fn seeds() -> Vec<Seed> {
    let trace = Some([0x4b; TraceContext::BYTES]);
    let full = [7; MessageExtension::MAX_HEADER_BYTES];
    let body = [0x11; 21];
    [
        ("header", None, &full[..16]),
        ("traced", trace, &[]),
        ("full", trace, &full),
        ("longest_header", None, &full),
    ]
    .map(|(name, trace, header)| Seed {
        name,
        bytes: written(&body, &MessageExtension { trace, header }),
    })
    .into()
}

fn written(before: &[u8], extension: &MessageExtension<'_>) -> Vec<u8> {
    before.iter().copied().chain(extension.encoded()).collect()
}
