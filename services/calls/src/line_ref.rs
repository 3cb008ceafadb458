//! A caller's hold on its line, and what its calls carry.

use std::{ops::Deref, sync::Arc};

use ibex_core::TraceContext;

use super::{Metadata, line::Line};
use crate::call_extension::{CallExtension, WrittenExtension};

/// A hold on a line, of each clone of a caller and of each call of a task, with what the calls
/// carry.
#[derive(Clone)]
pub(super) struct LineRef {
    held: Arc<HeldLine>,
    /// `None` for nothing.
    carried: Option<Arc<CallExtension>>,
    /// A call may carry something: this, or the trace context of its thread or task.
    pub(super) may_carry: bool,
}

/// The line as long as it has a caller. The end of the last hold gives the service's name back at
/// once, although a waker in another thread may hold the line for a moment longer.
struct HeldLine(Arc<Line>);

impl LineRef {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self {
            may_carry: line.session.node().asks_for_trace_context(),
            held: Arc::new(HeldLine(line)),
            carried: None,
        }
    }

    /// A hold whose calls carry this metadata and no other.
    pub(super) fn with_metadata(&self, metadata: Metadata) -> Self {
        let trace = self.carried.as_ref().and_then(|carried| carried.trace);
        self.carrying(CallExtension { trace, metadata })
    }

    /// A hold whose calls belong to this trace.
    pub(super) fn with_trace_context(&self, trace: TraceContext) -> Self {
        let carried = self.carried.as_deref();
        let metadata = carried.map_or_else(Metadata::new, |carried| carried.metadata.clone());
        let trace = Some(trace);
        self.carrying(CallExtension { trace, metadata })
    }

    fn carrying(&self, carried: CallExtension) -> Self {
        Self {
            held: self.held.clone(),
            may_carry: !carried.is_empty() || self.session.node().asks_for_trace_context(),
            carried: Some(Arc::new(carried)),
        }
    }

    /// Returns what a call that is made here and now carries. The trace is that of
    /// [`with_trace_context`](Self::with_trace_context), or that of the calling thread or task.
    #[cold]
    pub(super) fn extension(&self) -> Option<WrittenExtension<'_>> {
        static NONE: Metadata = Metadata::new();
        let carried = self.carried.as_deref();
        let trace = carried.and_then(|carried| carried.trace);
        let trace = trace.or_else(|| self.session.node().trace_context());
        WrittenExtension::new(trace, carried.map_or(&NONE, |carried| &carried.metadata))
    }
}

impl Deref for LineRef {
    type Target = Line;

    #[inline]
    fn deref(&self) -> &Line {
        &self.held.0
    }
}

impl Drop for HeldLine {
    fn drop(&mut self) {
        self.0.free_names();
    }
}
