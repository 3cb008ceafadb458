//! A reference to a caller's state, and what its calls carry.

use std::{ops::Deref, sync::Arc};

use crate::call_extension::{CallExtension, WrittenExtension};
use crate::{Metadata, caller::state::CallerState};

/// A reference to the state of a caller, of each clone and of each call of a task, with what its
/// calls carry.
#[derive(Clone)]
pub(crate) struct CallerRef {
    held: Arc<HeldCaller>,
    /// `None` for nothing.
    carried: Option<Arc<CallExtension>>,
    /// A call may carry something: this, or the trace context of its thread or task.
    pub(crate) may_carry: bool,
}

/// The state as long as it has a caller. The drop of the last reference gives the service's name
/// back at once, although a waker in another thread may hold the state for a moment longer.
struct HeldCaller(Arc<CallerState>);

impl CallerRef {
    pub(crate) fn new(state: Arc<CallerState>) -> Self {
        Self {
            may_carry: state.session.node().asks_for_trace_context(),
            held: Arc::new(HeldCaller(state)),
            carried: None,
        }
    }

    /// A caller whose calls carry what these do, changed so.
    pub(crate) fn carrying(&self, change: impl FnOnce(&mut CallExtension)) -> Self {
        let mut carried = self.carried.as_deref().cloned().unwrap_or_default();
        change(&mut carried);
        Self {
            held: self.held.clone(),
            may_carry: !carried.is_empty() || self.session.node().asks_for_trace_context(),
            carried: Some(Arc::new(carried)),
        }
    }

    /// Returns what a call that is made here and now carries. The trace is the caller's own, or that
    /// of the calling thread or task.
    #[cold]
    pub(crate) fn extension(&self) -> Option<WrittenExtension<'_>> {
        static NONE: Metadata = Metadata::new();
        let carried = self.carried.as_deref();
        let trace = carried.and_then(|carried| carried.trace);
        let trace = trace.or_else(|| self.session.node().trace_context());
        WrittenExtension::new(trace, carried.map_or(&NONE, |carried| &carried.metadata))
    }
}

impl Deref for CallerRef {
    type Target = CallerState;

    #[inline]
    fn deref(&self) -> &CallerState {
        &self.held.0
    }
}

impl Drop for HeldCaller {
    fn drop(&mut self) {
        self.0.free_names();
    }
}
