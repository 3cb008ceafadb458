//! Sessions that go on over another connection: answers to peers that dial for one, and dialing for
//! this node's own.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use ibex_base::Address;
use ibex_bootstrap::{
    Established, Fabric, HandshakeError, Local, Place, RegisteredSession, Resumable, ResumeError,
    ResumeRequest, ResumeTicket, ResumedConnection, VerbsPair,
};
use ibex_transport::{
    connection::{NewWire, ReconnectTerms, Redial},
    engine::Incoming,
    rdma::PreparedPair,
    session::{FailoverPolicy, HeldPlace},
    wire::WireParts,
};

use crate::meeting::dialing::{Desk, Owner};

/// A session's place in its node, and among those that may go on.
pub(crate) struct ResumablePlace {
    pub(crate) place: Place,
    pub(crate) session: [u8; 16],
    pub(crate) _registered: Option<RegisteredSession>,
}

impl HeldPlace for ResumablePlace {
    fn suspended(&self, keeps_until: Instant) {
        self.place.suspended(self.session, keeps_until);
    }

    fn resumed(&self) {
        self.place.resumed();
    }
}

/// The state that all sessions of a node share for going on over another connection.
#[derive(Clone)]
pub(crate) struct Resuming {
    pub(crate) desk: Desk,
    pub(crate) local: Local,
    /// [`NodeBuilder::name`](crate::NodeBuilder::name).
    pub(crate) name: Option<Arc<str>>,
    /// [`NodeBuilder::fail_over_after`](crate::NodeBuilder::fail_over_after).
    pub(crate) fail_over_after: Duration,
}

impl Resuming {
    /// Makes the state that a new session needs to be resumed. If this end was dialed, the peer
    /// finds the session here when it dials again.
    pub(crate) fn terms(
        &self,
        established: &Established,
    ) -> (ReconnectTerms, Option<RegisteredSession>) {
        let peer = &established.peer;
        let (ways, session) = self.ways(established);
        let id = established.session_id;
        let redial = established.is_dialer.then(|| {
            self.redial(
                established.address,
                ResumeTicket {
                    session_id: id,
                    secret: session.secret.clone(),
                    peer: peer.identity,
                    incarnation: peer.incarnation,
                    authenticated_as: established.authenticated_as.clone(),
                    epoch: 0,
                    fabric: established.fabric,
                },
            )
        });
        let terms = ReconnectTerms {
            session: id,
            redial,
            ways,
            process: established.pid.or(established.stated_pid),
            max_age: self.max_age(),
        };
        let is_found = !established.is_dialer;
        let registered = is_found.then(|| self.local.resumable.enter(id, session));
        (terms, registered)
    }

    /// Makes the means of dialing the peer of a session again.
    fn redial(&self, address: Address, ticket: ResumeTicket) -> Redial {
        let (local, desk) = (self.local.clone(), self.desk.clone());
        // Set once a refusal was logged that another attempt is not likely to change.
        let has_warned = Arc::<AtomicBool>::default();
        Redial::new(move |session, attempt| {
            let request = ResumeRequest {
                address,
                local: local.clone(),
                ticket: ResumeTicket {
                    epoch: attempt.epoch,
                    fabric: attempt.fabric,
                    ..ticket.clone()
                },
                timeout: ATTEMPT,
            };
            let owner = Owner::Session {
                session,
                epoch: attempt.epoch,
                has_warned: has_warned.clone(),
            };
            // A node whose dialer has ended has ended its sessions too.
            Box::new(desk.resume(owner, request).ok())
        })
    }

    /// Returns the sessions that have lost their places to others since the last call.
    pub(crate) fn displaced(&self) -> impl Iterator<Item = Incoming> {
        let sessions = self.local.places.take_displaced();
        sessions.into_iter().map(Incoming::Displaced)
    }

    fn max_age(&self) -> Option<Duration> {
        let credentials = self.local.credentials.as_ref();
        credentials.and_then(|credentials| credentials.max_session_age())
    }

    /// The newest connection of a session, made by the end that dialed.
    pub(crate) fn resumed(&self, connection: ResumedConnection) -> NewWire {
        if let Some(session) = self.local.resumable.lock().get_mut(&connection.session_id) {
            session.epoch = session.epoch.max(connection.epoch);
            if connection.fabric == Fabric::Tcp {
                session.fabrics = vec![Fabric::Tcp];
                session.reason = "the session goes over tcp, and stays there".to_owned();
            }
        }
        reconnection(connection)
    }

    /// The routes that the session asks for if this end dials, and those that it lets the other end
    /// have.
    fn ways(&self, established: &Established) -> (FailoverPolicy, Resumable) {
        let began = established.fabric;
        let (ways, fabrics, reason) = match (began, &established.no_tcp) {
            (Fabric::Verbs, None) => {
                let after = self.fail_over_after;
                let fabrics = vec![Fabric::Verbs, Fabric::Tcp];
                (FailoverPolicy::VerbsThenTcp { after }, fabrics, None)
            }
            (Fabric::Verbs, Some(why)) => {
                let only = FailoverPolicy::Only(began);
                (only, vec![began], Some(why.clone()))
            }
            (began, ..) => (FailoverPolicy::Only(began), vec![began], None),
        };
        let session = Resumable {
            secret: established.resume_secret.clone(),
            authenticated_as: established.authenticated_as.clone(),
            epoch: 0,
            fabrics,
            reason: reason.unwrap_or_else(|| format!("the session began over {began}")),
        };
        (ways, session)
    }
}

/// Warns, once for a session, of a refusal that another attempt is not likely to change.
pub(crate) fn warn_of(error: &ResumeError, has_warned: &AtomicBool) {
    let ResumeError::Handshake { address, source } = error else {
        return;
    };
    let is_refusal = matches!(
        source,
        HandshakeError::Authentication(_)
            | HandshakeError::NotIbex { .. }
            | HandshakeError::Security { .. }
            | HandshakeError::Version { .. }
    );
    if is_refusal && !has_warned.swap(true, Ordering::Relaxed) {
        warn_limited!(
            format_args!("{address}: {source}"),
            peer = %address, reason = %source,
            "a session cannot be resumed, and it ends after `session_timeout` if that does not change"
        );
    }
}

/// Makes the engine's new wire of a session's next connection.
pub(crate) fn reconnection(connection: ResumedConnection) -> NewWire {
    NewWire {
        session: connection.agreed.session_id,
        epoch: connection.agreed.epoch,
        parts: WireParts {
            stream: connection.stream,
            leftover: connection.leftover,
            tls: connection.tls,
            rdma: connection.verbs.and_then(prepared_pair),
        },
    }
}

/// Converts a queue pair of the bootstrap's. Only this crate's own devices make such pairs.
pub(crate) fn prepared_pair(pair: Box<dyn VerbsPair>) -> Option<PreparedPair> {
    let pair = pair.into_any().downcast().ok();
    pair.map(|pair| *pair)
}

/// Time limit of one attempt. The next one begins with fresh packets, so that a host that comes back
/// is found soon.
pub(crate) const ATTEMPT: Duration = Duration::from_secs(3);

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use ibex_bootstrap::{Version, VersionRange};

    use super::*;

    #[test]
    fn a_refusal_that_lasts_is_told_once() {
        let only = |major| VersionRange {
            oldest: Version { major, minor: 0 },
            newest: Version { major, minor: 0 },
        };
        let error = |source| ResumeError::Handshake {
            address: SocketAddr::from(([127, 0, 0, 1], 7)).into(),
            source,
        };
        let has_warned = AtomicBool::new(false);
        warn_of(&error(HandshakeError::Oneself), &has_warned);
        assert!(
            !has_warned.load(Ordering::Relaxed),
            "another attempt may succeed"
        );
        let (ours, theirs) = (only(4), only(3));
        warn_of(
            &error(HandshakeError::Version { ours, theirs }),
            &has_warned,
        );
        assert!(has_warned.load(Ordering::Relaxed));
    }
}
