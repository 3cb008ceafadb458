//! The steps by which connections from dialing peers become sessions of a node.

use std::{
    error::Error,
    mem::{self, Discriminant},
    net::SocketAddr,
    os::fd::BorrowedFd,
    sync::Arc,
    time::Instant,
};

use ibex_bootstrap::{Acceptor, Established, FabricKind, HandshakeError, NodeIdentity, Problem};
use ibex_transport::{
    engine::{Admission, ControlSource, Incoming},
    node::log_limit::{Held, LogLimit},
    runtime::Runtime,
    session::{EngineId, PeerDescription},
    shared_memory::UnixWires,
    wire::WireParts,
};

use crate::{
    ConnectError, Peer,
    accept_placement::AcceptPlacement,
    channel_defaults::ChannelDefaults,
    peer,
    resuming::{Resuming, prepared_pair},
};

/// The listener with its handshakes, as the engine turns it.
pub(crate) struct Listener {
    pub(crate) acceptor: Acceptor,
    pub(crate) failures: Failures,
    pub(crate) our_channels: u32,
    pub(crate) resuming: Resuming,
    /// The engines that the program wants sessions on.
    pub(crate) placement: Option<AcceptPlacement>,
    /// The number of engines that there are.
    pub(crate) engines: usize,
}

impl Listener {
    /// Returns the engine that the program wants for a peer that has dialed.
    fn engine(&self, peer: &PeerDescription) -> Option<EngineId> {
        let who = (NodeIdentity(peer.identity), peer.incarnation);
        let wanted = self.placement.as_ref()?.place(who, peer.address);
        let there = wanted.filter(|&engine| engine < self.engines);
        there.map(EngineId::new)
    }
}

impl ControlSource for Listener {
    fn fd(&self) -> BorrowedFd<'_> {
        self.acceptor.as_fd()
    }

    fn turn(&mut self, now: Instant) -> Vec<Incoming> {
        self.acceptor.turn(now);
        self.failures.tell_held(now);
        while let Some(failure) = self.acceptor.poll_failure() {
            let kind = FailureKind::of(&failure.problem);
            self.failures
                .tell(kind, &failure, self.acceptor.local_addr(), now);
        }
        let mut incoming = Vec::new();
        while let Some(next) = self.acceptor.poll_established() {
            let mut admission = admission(next, self.our_channels, &self.resuming);
            admission.engine = self.engine(&admission.peer);
            incoming.push(Incoming::Session(Box::new(admission)));
        }
        while let Some(next) = self.acceptor.poll_resumed() {
            let wires = Box::new(self.resuming.resumed(next));
            incoming.push(Incoming::Wires(wires));
        }
        incoming
    }

    fn next_deadline(&self) -> Option<Instant> {
        let deadlines = [self.acceptor.next_deadline(), self.failures.next_due()];
        deadlines.into_iter().flatten().min()
    }

    fn close(&mut self) {
        self.failures.tell_last_held(Instant::now());
        self.acceptor.close();
    }
}

/// Connections that became no sessions, as the log reports them. Strangers can cause them, so the
/// log gets a few of each kind, and then the number of the others, which are debug messages.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    limit: LogLimit<FailureKind>,
}

/// Kind of failure, told of as one.
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
    fn tell(
        &mut self,
        kind: FailureKind,
        failure: &(dyn Error + 'static),
        listener: SocketAddr,
        now: Instant,
    ) {
        // Recorded as an error value, so that a subscriber can tell one cause from another.
        let tell: fn(&Held) =
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
        Err(error) => Err(ConnectError::environment(address, error)),
    }
}

/// Makes the engine's admission of a finished handshake, whichever end dialed.
pub(crate) fn admission(
    established: Established,
    our_channels: u32,
    resuming: &Resuming,
) -> Admission {
    let (reconnect, registered) = resuming.terms(&established);
    let Established {
        stream,
        leftover,
        tls,
        unix,
        verbs,
        peer: info,
        began,
        place,
        fabric,
        reason,
        payload_checksums,
        ..
    } = established;
    Admission {
        parts: WireParts {
            stream,
            leftover,
            tls,
            rdma: verbs.and_then(prepared_pair),
        },
        unix: unix.map(|unix| UnixWires::new(unix.control.into_fd(), unix.bells.into_fd())),
        max_channels: our_channels.min(info.limits.channels) as usize,
        payload_checksums,
        reconnect: Some(reconnect),
        engine: None,
        place: Box::new((place, registered)),
        peer: PeerDescription {
            address: info.address,
            identity: info.identity.0,
            incarnation: info.incarnation,
            began,
            pid: info.pid,
            fabric: peer::as_carried(fabric),
            reason: match (&info.authenticated_as, fabric) {
                (Some(_), FabricKind::Verbs) => format!("{reason}; authenticated, not encrypted"),
                _ => reason,
            },
            authenticated_as: info.authenticated_as,
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

    use tracing::{
        Event, Level, Metadata, Subscriber,
        field::{Field, Visit},
        span,
    };

    use super::*;

    /// Counts warnings, and keeps the count that the last one reported.
    #[derive(Clone, Default)]
    struct Log(Arc<Counts>);

    #[derive(Default)]
    struct Counts {
        warnings: AtomicU64,
        others: AtomicU64,
        told: AtomicU64,
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn event(&self, event: &Event<'_>) {
            let counts = &self.0;
            match *event.metadata().level() {
                Level::WARN => {
                    // A filter on this module finds the count beside what was counted.
                    assert_eq!(event.metadata().target(), "ibex::listener");
                    counts.warnings.fetch_add(1, Ordering::Relaxed)
                }
                _ => counts.others.fetch_add(1, Ordering::Relaxed),
            };
            event.record(&mut Reading(counts));
        }

        // Nothing here opens spans.
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    struct Reading<'a>(&'a Counts);

    impl Visit for Reading<'_> {
        fn record_u64(&mut self, field: &Field, value: u64) {
            if field.name() == "count" {
                self.0.told.store(value, Ordering::Relaxed);
            }
        }

        fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
    }

    #[test]
    fn a_hundred_thousand_failures_are_a_few_warnings_and_a_count() {
        let log = Log::default();
        let counts = log.0.clone();
        let count = |of: &AtomicU64| of.load(Ordering::Relaxed);
        tracing::subscriber::with_default(log, || {
            let (mut failures, start) = (Failures::default(), Instant::now());
            let listener = ([127, 0, 0, 1], 7000).into();
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
                step: ibex_bootstrap::handshake::Step::Hello,
                detail: None,
            });
            failures.tell(FailureKind::of(&other), &other, listener, start);
            assert_eq!(count(&counts.warnings), 6);
            let due = failures.next_due().expect("a count is to be told");
            failures.tell_held(due);
            assert_eq!((count(&counts.warnings), count(&counts.told)), (7, 99_995));
            assert_eq!(failures.next_due(), None);
        });
    }
}
