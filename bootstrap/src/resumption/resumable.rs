//! A node's sessions that its peers may resume.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use ibex_base::sync::lock;
use ibex_base::tls::AuthenticatedAs;

use crate::fabric::Fabric;
use crate::identity::Secret;

/// The sessions of a node that peers may resume: those that are up or suspended. Where both ends of a
/// session are this node's, it is the accepting one. Clones share them.
#[derive(Clone, Default)]
pub struct ResumableSessions(Arc<Mutex<HashMap<[u8; 16], Resumable>>>);

/// A session that peers may resume, until this is dropped.
pub struct RegisteredSession {
    sessions: ResumableSessions,
    id: [u8; 16],
}

impl ResumableSessions {
    /// Enters a session under its name.
    pub fn enter(&self, id: [u8; 16], session: Resumable) -> RegisteredSession {
        self.lock().insert(id, session);
        let sessions = self.clone();
        RegisteredSession { sessions, id }
    }

    /// Returns the sessions by name. An [`Acceptor`](crate::Acceptor) waits for the lock in its turn.
    pub fn lock(&self) -> MutexGuard<'_, HashMap<[u8; 16], Resumable>> {
        lock(&self.0)
    }
}

impl Drop for RegisteredSession {
    fn drop(&mut self) {
        self.sessions.lock().remove(&self.id);
    }
}

// Omits the sessions' names, which are half of what resumes them.
ibex_base::debug_fields!([] ResumableSessions: |sessions| count = sessions.lock().len());

/// A session that peers may resume.
#[derive(Clone, Debug)]
pub struct Resumable {
    /// The session's secret.
    pub secret: Secret,
    /// The identity that its peer proved when the session began. No other peer resumes it.
    pub authenticated_as: Option<AuthenticatedAs>,
    /// The newest epoch that it has begun; 0 until it is resumed for the first time.
    pub epoch: u64,
    /// The fabrics over which it may resume now.
    pub fabrics: Vec<Fabric>,
    /// The reason why no other fabric is possible, in words.
    pub reason: String,
}

impl Resumable {
    /// Returns the obstacle to resuming over `fabric`, if there is one.
    pub(crate) fn obstacle(&self, fabric: Fabric) -> Option<String> {
        let is_among = self.fabrics.contains(&fabric);
        (!is_among).then(|| format!("over {fabric}: {}", self.reason))
    }
}
