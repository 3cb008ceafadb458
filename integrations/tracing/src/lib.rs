//! Spans of `tracing` and OpenTelemetry that go on across ibex: a handler's span is a child of the
//! span in which its caller called, in the same trace, and so is the span that takes in a message.
//!
//! The calling node is made with [`current`], and asks it at each call:
//!
//! ```
//! # fn main() -> Result<(), ibex::ListenError> {
//! let node = ibex::Node::builder().trace_context(ibex_tracing::current).build()?;
//! # Ok(())
//! # }
//! ```
//!
//! The service makes its span the child of the caller's:
//!
//! ```
//! use ibex::{SendError, calls::Request};
//!
//! fn handle(request: Request<u64, u64>) -> Result<(), SendError> {
//!     let span = tracing::info_span!("double");
//!     ibex_tracing::set_parent(&span, request.trace_context());
//!     let _entered = span.enter();
//!     let number = request.to_native();
//!     request.reply(&(2 * number))
//! }
//! ```
//!
//! Both programs have a subscriber with the layer of `tracing-opentelemetry`, as the example `traced`
//! shows. Without it, [`current`] is `None`, and the calls carry nothing.
#![forbid(unsafe_code)]

use ibex::TraceContext;
use opentelemetry::{
    Context,
    trace::{SpanContext, SpanId, TraceContextExt, TraceFlags, TraceId, TraceState},
};
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Returns the trace context of the calling thread's current span of `tracing`, for
/// [`NodeBuilder::trace_context`](ibex::NodeBuilder::trace_context). Never waits.
///
/// `None` if there is no span, or no layer of `tracing-opentelemetry` that gives it an id.
#[must_use]
pub fn current() -> Option<TraceContext> {
    of(&Span::current().context())
}

/// Returns the trace context of the span that an OpenTelemetry context has, for a program that
/// makes its spans without `tracing`. `None` if the context has no span.
#[must_use]
pub fn of(context: &Context) -> Option<TraceContext> {
    let span = context.span();
    let span = span.span_context();
    let (trace, id) = (span.trace_id().to_bytes(), span.span_id().to_bytes());
    TraceContext::new(trace, id, span.trace_flags().to_u8()).ok()
}

/// Returns an OpenTelemetry context whose span is the one that a peer sent: the parent of what
/// happens on its behalf.
#[must_use]
pub fn remote(context: TraceContext) -> Context {
    let is_remote = true;
    Context::new().with_remote_span_context(SpanContext::new(
        TraceId::from_bytes(context.trace_id()),
        SpanId::from_bytes(context.span_id()),
        TraceFlags::new(context.flags()),
        is_remote,
        TraceState::default(),
    ))
}

/// Makes a span of `tracing` the child of the span that a peer sent: that of
/// [`Request::trace_context`](ibex::calls::Request::trace_context) or of a message. `None` leaves
/// the span as it is. Call it before the span is entered, because its trace is fixed then.
pub fn set_parent(span: &Span, peers: Option<TraceContext>) {
    if let Some(context) = peers {
        // Without a layer of OpenTelemetry the span has no parent to set, and is not exported.
        let _ = span.set_parent(remote(context));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_comes_back_from_opentelemetry_as_it_went_there() {
        for flags in [0, 1] {
            let context = TraceContext::new([3; 16], [4; 8], flags).expect("a context");
            let there = remote(context);
            assert!(there.span().span_context().is_remote());
            assert_eq!(of(&there), Some(context));
        }
        assert_eq!(of(&Context::new()), None);
        assert_eq!(current(), None);
    }
}
