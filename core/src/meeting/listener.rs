//! The steps by which connections from dialing peers become sessions of a node.

use std::{
    error::Error,
    mem::{self, Discriminant},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

use ibex_base::{
    Address,
    log_limit::{LogLimit, UnloggedEvents},
};
use ibex_bootstrap::{
    Acceptor, Established, Fabric, Finished, HandshakeError, NodeIdentity, Problem,
};
use ibex_transport::{
    engine::{Admission, Incoming},
    runtime::Runtime,
    session::{EngineId, PeerDescription, PeerNames},
    shared_memory::UnixWires,
    wire::WireParts,
};

use crate::{
    ConnectError, Peer,
    accept_placement::AcceptPlacement,
    meeting::resuming::{ResumablePlace, Resuming, prepared_pair},
    peer::channel_defaults::ChannelDefaults,
};

/// The listener with its handshakes, as the engine turns it.
pub(crate) struct PeerListener {
    pub(crate) acceptor: Acceptor,
    pub(crate) failures: Failures,
    /// The engines that the program wants sessions on.
    pub(crate) placement: Option<AcceptPlacement>,
    /// The number of engines that there are.
    pub(crate) engines: usize,
}

impl PeerListener {
    /// Returns the engine that the program wants for a peer that has dialed.
    ///
    /// # Errors
    ///
    /// The program's `place_accepted` panicked, with this text.
    fn engine(&self, peer: &PeerDescription) -> Result<Option<EngineId>, String> {
        let who = (NodeIdentity(peer.identity), peer.incarnation);
        let Some(placement) = &self.placement else {
            return Ok(None);
        };
        let wanted = placement.place(who, peer.address)?;
        let there = wanted.filter(|&engine| engine < self.engines);
        Ok(there.map(EngineId::new))
    }

    /// Moves the handshakes on. Adds the results of those that have finished to `incoming`.
    pub(super) fn turn(&mut self, now: Instant, resuming: &Resuming, incoming: &mut Vec<Incoming>) {
        self.acceptor.turn(now);
        self.failures.tell_held(now);
        while let Some(failure) = self.acceptor.poll_failure() {
            let listener = self.acceptor.local_addr();
            match &failure.problem {
                Problem::Unreceived => self.failures.silent(&failure, listener),
                problem => {
                    let kind = FailureKind::of(problem);
                    self.failures.tell(kind, &failure, listener, now);
                }
            }
        }
        while let Some(next) = self.acceptor.poll_established() {
            let mut admission = admission(next, resuming);
            match self.engine(&admission.peer) {
                Ok(engine) => {
                    admission.engine = engine;
                    incoming.push(Incoming::Session(Box::new(admission)));
                }
                Err(panic) => {
                    tracing::error!(
                        peer = %admission.peer, panic,
                        "the program's place_accepted panicked; this peer gets no session"
                    );
                    admission.abandon();
                }
            }
        }
        while let Some(next) = self.acceptor.poll_resumed() {
            incoming.push(Incoming::Wires(Box::new(resuming.resumed(next))));
        }
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.acceptor.next_deadline(), self.failures.next_due()];
        deadlines.into_iter().flatten().min()
    }

    /// Refuses new sessions from now on.
    pub(super) fn close(&mut self) {
        self.failures.tell_last_held(Instant::now());
        self.acceptor.close();
    }
}

/// Connections that became no sessions, as the log reports them. Strangers can cause them, so the
/// log gets a few of each kind, and then the number of the others, which are debug messages.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    limit: LogLimit<FailureKind>,
    counts: Arc<FailureCounts>,
}

/// The number of connections that became no sessions, for the node's statistics.
#[derive(Debug, Default)]
pub(crate) struct FailureCounts {
    refused: AtomicU64,
    silent: AtomicU64,
}

impl FailureCounts {
    /// Returns the number of refused connections, and of those that closed before their first byte.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        (count(&self.refused), count(&self.silent))
    }
}

/// Kind of failure, reported as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FailureKind(Discriminant<Problem>, Option<Discriminant<HandshakeError>>);

impl FailureKind {
    fn of(problem: &Problem) -> Self {
        let inner = match problem {
            Problem::Handshake(error) => Some(mem::discriminant(error)),
            _ => None,
        };
        Self(mem::discriminant(problem), inner)
    }
}

impl Failures {
    pub(crate) fn new(counts: Arc<FailureCounts>) -> Self {
        Self {
            limit: LogLimit::default(),
            counts,
        }
    }

    /// Counts a connection that closed before its first byte. Health probes connect in this way
    /// every few seconds, so it is no warning.
    fn silent(&self, failure: &(dyn Error + 'static), listener: Address) {
        self.counts.silent.fetch_add(1, Ordering::Relaxed);
        tracing::debug!(failure, %listener, "a connection closed before its first byte");
    }

    fn tell(
        &mut self,
        kind: FailureKind,
        failure: &(dyn Error + 'static),
        listener: Address,
        now: Instant,
    ) {
        self.counts.refused.fetch_add(1, Ordering::Relaxed);
        // Recorded as an error value, so that a subscriber can tell one cause from another.
        let tell: fn(&UnloggedEvents) =
            |held| tracing::warn!(example = %held.example, count = held.count, "{held}");
        match self.limit.admits(kind, now, tell, || failure.to_string()) {
            true => tracing::warn!(failure, %listener, "a connection did not become a session"),
            false => tracing::debug!(failure, %listener, "a connection did not become a session"),
        }
    }

    fn tell_held(&mut self, now: Instant) {
        while let Some(held) = self.limit.poll_held(now) {
            held.warn();
        }
    }

    /// Tells the last counts, because no failures follow.
    fn tell_last_held(&mut self, now: Instant) {
        while let Some(held) = self.limit.poll_last_held(now) {
            held.warn();
        }
    }

    fn next_due(&self) -> Option<Instant> {
        self.limit.next_due()
    }
}

/// Makes a session with `address` of a finished handshake.
pub(crate) fn admit(
    runtime: &Arc<Runtime>,
    channel: ChannelDefaults,
    address: &str,
    admission: Admission,
) -> Result<Peer, ConnectError> {
    match runtime.admit(admission) {
        Ok(session) => Ok(Peer::new(session, channel)),
        Err(error) => Err(ConnectError::environment(address, &error)),
    }
}

/// Makes the engine's admission of a finished handshake, whichever end dialed.
pub(crate) fn admission(established: Established, resuming: &Resuming) -> Admission {
    let (reconnect, registered) = resuming.terms(&established);
    let Finished {
        stream,
        leftover,
        tls,
        unix,
        verbs,
        address,
        pid,
        began,
        agreed,
        ..
    } = established;
    let peer = agreed.peer;
    Admission {
        parts: WireParts {
            stream,
            leftover,
            tls,
            rdma: verbs.and_then(prepared_pair),
        },
        unix: unix.map(|unix| {
            let (control, bells) = (unix.control.into_fd(), unix.bells.into_fd());
            UnixWires::new(control, bells, unix.is_same_user)
        }),
        max_channels: resuming.local.limits.channels.min(peer.limits.channels) as usize,
        payload_checksums: agreed.payload_checksums,
        reconnect: Some(reconnect),
        engine: None,
        place: Box::new(ResumablePlace {
            place: agreed.place,
            session: agreed.session_id,
            _registered: registered,
        }),
        peer: PeerDescription {
            address,
            identity: peer.identity.0,
            incarnation: peer.incarnation,
            began,
            pid,
            fabric: agreed.fabric,
            reason: match (&agreed.authenticated_as, agreed.fabric) {
                (Some(_), Fabric::Verbs) => {
                    format!("{}; authenticated, not encrypted", agreed.reason)
                }
                _ => agreed.reason,
            },
            names: PeerNames::new(peer.name.as_str(), agreed.authenticated_as),
            known_to: resuming.name.clone(),
        },
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fmt,
        sync::{
            Arc,
            atomic::{AtomicU64, Ordering},
        },
        time::Duration,
    };

    use ibex_harness::events::Each;
    use tracing::{
        Event, Level,
        field::{Field, Visit},
    };

    use super::*;

    /// Counts of warnings and other events, and the count that the last warning reported.
    #[derive(Default)]
    struct Counts {
        warnings: AtomicU64,
        others: AtomicU64,
        notified: AtomicU64,
    }

    impl Counts {
        fn take_in(&self, event: &Event<'_>) {
            match *event.metadata().level() {
                Level::WARN => {
                    // A filter on this module finds the count beside what was counted.
                    assert_eq!(event.metadata().target(), "ibex_core::meeting::listener");
                    self.warnings.fetch_add(1, Ordering::Relaxed)
                }
                _ => self.others.fetch_add(1, Ordering::Relaxed),
            };
            event.record(&mut Reading(self));
        }
    }

    struct Reading<'a>(&'a Counts);

    impl Visit for Reading<'_> {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "count" {
                self.0.notified.store(value, Ordering::Relaxed);
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
    }

    #[test]
    fn a_hundred_thousand_failures_are_a_few_warnings_and_a_count() {
        let counts = Arc::<Counts>::default();
        let kept = counts.clone();
        let log = Each(move |event: &Event<'_>| kept.take_in(event));
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        tracing::subscriber::with_default(log, || {
            let (mut failures, start) = (Failures::default(), Instant::now());
            let listener = "127.0.0.1:7000".parse().expect("an address");
            let noise = Problem::Handshake(HandshakeError::NotIbex {
                seen: "noise".to_owned(),
            });
            // The failures all come in less than the ten seconds of a period.
            for number in 0..100_000_u32 {
                let now = start + Duration::from_micros(90) * number;
                failures.tell_held(now);
                failures.tell(FailureKind::of(&noise), &noise, listener, now);
            }
            assert_eq!(count(&counts.warnings), 5);
            assert_eq!(count(&counts.others), 99_995);
            // A failure of another kind is still logged.
            let other = Problem::Handshake(HandshakeError::Closed {
                step: ibex_bootstrap::handshake::HandshakeStep::Hello,
                detail: None,
            });
            failures.tell(FailureKind::of(&other), &other, listener, start);
            assert_eq!(count(&counts.warnings), 6);
            let due = failures.next_due().expect("a count is to be told");
            failures.tell_held(due);
            assert_eq!(
                (count(&counts.warnings), count(&counts.notified)),
                (7, 99_995)
            );
            assert_eq!(failures.next_due(), None);
        });
    }
}
