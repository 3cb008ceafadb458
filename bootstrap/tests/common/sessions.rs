//! The sessions of a node that may be resumed.

use ibex_bootstrap::{Established, Resumable, ResumableSessions, ResumedConnection};

/// A node's sessions, each with the newest epoch that it has begun.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sessions(pub(crate) ResumableSessions);

impl Sessions {
    pub(crate) fn add(&self, session: &Established) {
        let secret = session.resume_secret.clone();
        let resumable = Resumable {
            authenticated_as: None,
            secret,
            epoch: 0,
            fabrics: vec![session.fabric],
            reason: "it began there".to_owned(),
        };
        self.0.lock().insert(session.session_id, resumable);
    }

    pub(crate) fn begin(&self, connection: &ResumedConnection) {
        let mut sessions = self.0.lock();
        let session = sessions.get_mut(&connection.session_id).unwrap();
        assert!(connection.epoch > session.epoch);
        session.epoch = connection.epoch;
    }

    pub(crate) fn end_all(&self) {
        self.0.lock().clear();
    }
}
