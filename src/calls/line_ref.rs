//! A caller's share of its line.

use std::{ops::Deref, sync::Arc};

use super::line::Line;

/// A share of a line, held by each clone of a caller and by each call of a task. The last share
/// gives the service's name back at once, although a waker in another thread may hold the line for
/// a moment longer.
#[derive(Clone)]
pub(super) struct LineRef(Arc<Held>);

struct Held(Arc<Line>);

impl LineRef {
    pub(super) fn new(line: Arc<Line>) -> Self {
        Self(Arc::new(Held(line)))
    }
}

impl Deref for LineRef {
    type Target = Line;

    #[inline]
    fn deref(&self) -> &Line {
        &self.0.0
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.free_names();
    }
}
