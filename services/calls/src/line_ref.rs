//! A caller's share of its line.

use std::{ops::Deref, sync::Arc};

use ibex_core::TraceContext;

use super::{Metadata, line::Line};
use crate::call_extension::{CallExtension, WrittenExtension};

/// A share of a line, held by each clone of a caller and by each call of a task. The last share
/// gives the service's name back at once, although a waker in another thread may hold the line for
/// a moment longer.
#[derive(Clone)]
pub(super) struct LineRef(Arc<LineShare>);

struct LineShare {
    line: Arc<Line>,
    /// What calls of this share carry.
    carried: CallExtension,
    /// The share that this one was made of, with other things to carry.
    origin: Option<LineRef>,
}

impl LineRef {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self(Arc::new(LineShare {
            line,
            carried: CallExtension::default(),
            origin: None,
        }))
    }

    /// A share whose calls carry this metadata.
    pub(super) fn with_metadata(&self, metadata: Metadata) -> Self {
        let trace = self.0.carried.trace;
        self.carrying(CallExtension { trace, metadata })
    }

    /// A share whose calls belong to this trace.
    pub(super) fn with_trace_context(&self, trace: TraceContext) -> Self {
        let metadata = self.0.carried.metadata.clone();
        let trace = Some(trace);
        self.carrying(CallExtension { trace, metadata })
    }

    fn carrying(&self, carried: CallExtension) -> Self {
        let origin = self.0.origin.as_ref().unwrap_or(self);
        Self(Arc::new(LineShare {
            line: self.0.line.clone(),
            carried,
            origin: Some(origin.clone()),
        }))
    }

    /// Returns whether calls may carry something.
    pub(super) fn carries(&self) -> bool {
        !self.0.carried.is_empty() || self.session.node().asks_for_trace_context()
    }

    /// Returns what a call that is made here and now carries. The trace is the share's own, or that
    /// of the calling thread or task.
    #[cold]
    pub(super) fn extension(&self) -> Option<WrittenExtension<'_>> {
        let CallExtension { trace, metadata } = &self.0.carried;
        let trace = trace.or_else(|| self.session.node().trace_context());
        WrittenExtension::new(trace, metadata)
    }
}

impl Deref for LineRef {
    type Target = Line;

    #[inline]
    fn deref(&self) -> &Line {
        &self.0.line
    }
}

impl Drop for LineShare {
    fn drop(&mut self) {
        if self.origin.is_none() {
            self.line.free_names();
        }
    }
}
