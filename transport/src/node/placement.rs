//! The sessions of a node by engine: the placement of each, and the end of the last.

use std::sync::Arc;

use ibex_base::sync::Placement;
use ibex_ring::parking::Bell;

use crate::session::EngineId;

/// The sessions of a node by engine, and the bells of the engines.
#[derive(Clone)]
pub(crate) struct Sessions(Arc<Inner>);

struct Inner {
    placement: Placement,
    bells: Box<[&'static Bell]>,
}

impl Sessions {
    /// Makes the record of a node without sessions, with one engine for each bell.
    pub(crate) fn new(bells: Box<[&'static Bell]>) -> Self {
        Self(Arc::new(Inner {
            placement: Placement::new(bells.len()),
            bells,
        }))
    }

    /// Places a session that begins on an engine.
    pub(crate) fn place(&self, wanted: Option<EngineId>) -> SessionPlace {
        let wanted = wanted.map(EngineId::index);
        SessionPlace {
            engine: EngineId::new(self.0.placement.place(wanted)),
            sessions: self.clone(),
        }
    }

    /// Returns how many sessions each engine has.
    pub(crate) fn loads(&self) -> Vec<usize> {
        self.0.placement.loads()
    }

    /// Notes that the node closes. The caller wakes the engines afterwards.
    pub(crate) fn begin_close(&self) {
        self.0.placement.begin_close();
    }

    /// Returns whether the node closes and its last session is over.
    pub(crate) fn are_over(&self) -> bool {
        self.0.placement.is_over()
    }

    /// Wakes the sleepers of all engines.
    pub(crate) fn wake_engines(&self) {
        self.0.bells.iter().for_each(|bell| bell.wake());
    }
}

/// A session's place on an engine, until this is dropped.
pub(crate) struct SessionPlace {
    engine: EngineId,
    sessions: Sessions,
}

impl SessionPlace {
    pub(crate) fn engine(&self) -> EngineId {
        self.engine
    }
}

impl Drop for SessionPlace {
    fn drop(&mut self) {
        if self.sessions.0.placement.leave(self.engine.index()) {
            self.sessions.wake_engines();
        }
    }
}
