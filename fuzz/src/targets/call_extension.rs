//! What calls carry behind their requests: trace context and metadata.
//!
//! Bytes that are accepted are the only encoding of what they carry.
#![forbid(unsafe_code)]

use ibex_calls::call_extension::{CallExtension, WrittenExtension};
use ibex_calls::{Metadata, MetadataValue};
use ibex_protocol::format::trace_context::TraceContext;

use crate::Seed;

/// Takes the extension off a frame.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Ok((before, extension)) = CallExtension::split(bytes) else {
        return false;
    };
    let CallExtension { trace, metadata } = extension;
    assert_eq!(written(before, trace, &metadata), bytes);
    assert!(metadata.len() <= Metadata::MAX_PAIRS);
    assert_eq!(metadata.iter().count(), metadata.len());
    for (key, value) in metadata.iter() {
        assert_eq!(metadata.get(key), Some(value));
    }
    if let Some(trace) = trace {
        let text = trace.to_traceparent();
        let read = TraceContext::from_traceparent(&text).expect("its own text");
        assert_eq!(read.trace_id(), trace.trace_id());
    }
    true
}

/// Returns frames with either part and with both, as long as they can be.
pub(crate) fn seeds() -> Vec<Seed> {
    let trace = TraceContext::new([0x4b; 16], [0xf0; 8], 1).ok();
    let mut pairs = Metadata::new();
    let mut full = Metadata::new();
    let typed = [
        ("tenant", MetadataValue::Text("blue")),
        ("attempt", MetadataValue::Integer(-2)),
        ("token-bin", MetadataValue::Bytes(&[0, 255])),
    ];
    for (key, value) in typed {
        pairs.insert(key, value).expect("room");
    }
    for number in 0..Metadata::MAX_PAIRS {
        let key = format!("{number:055}");
        full.insert(&key, &[7; 5][..]).expect("exactly the bound");
    }
    let frame = [0x11; 21];
    [
        ("traced", trace, Metadata::new()),
        ("pairs", None, pairs.clone()),
        ("both", trace, pairs),
        ("full", trace, full),
    ]
    .map(|(name, trace, metadata)| Seed {
        name,
        bytes: written(&frame, trace, &metadata),
    })
    .into()
}

fn written(before: &[u8], trace: Option<TraceContext>, metadata: &Metadata) -> Vec<u8> {
    let mut frame = before.to_vec();
    let extension = WrittenExtension::new(trace, metadata).expect("it carries something");
    let whole: Result<(), ()> = extension.write(|part| {
        frame.extend_from_slice(part);
        Ok(())
    });
    whole.expect("a vector grows");
    frame
}
