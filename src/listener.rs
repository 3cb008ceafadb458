//! How those who dial a node become its sessions.

use std::{error::Error, os::fd::BorrowedFd, time::Instant};

use ibex_bootstrap::{Acceptor, Established, features};
use ibex_transport::{
    driver::{Admission, ControlSource, Incoming, PeerDescription},
    fabric::shm::UnixWires,
};

use crate::{
    peer,
    resuming::{Resuming, prepared_pair},
};

/// The listener with its handshakes, as the engine turns it.
pub(crate) struct Listener {
    pub(crate) acceptor: Acceptor,
    pub(crate) our_channels: u32,
    pub(crate) resuming: Resuming,
}

impl ControlSource for Listener {
    fn fd(&self) -> BorrowedFd<'_> {
        self.acceptor.as_fd()
    }

    fn turn(&mut self, now: Instant) -> Vec<Incoming> {
        self.acceptor.turn(now);
        while let Some(failure) = self.acceptor.poll_failure() {
            // As an error value, so that a subscriber can tell one cause from another.
            let failure: &(dyn Error + 'static) = &failure;
            tracing::warn!(failure, "a connection did not become a session");
        }
        let mut incoming = Vec::new();
        while let Some(next) = self.acceptor.poll_established() {
            let admission = admission(next, self.our_channels, &self.resuming);
            incoming.push(Incoming::Session(Box::new(admission)));
        }
        while let Some(next) = self.acceptor.poll_resumed() {
            let wires = Box::new(self.resuming.resumed(next));
            incoming.push(Incoming::Wires(wires));
        }
        incoming
    }

    fn next_deadline(&self) -> Option<Instant> {
        self.acceptor.next_deadline()
    }

    fn close(&mut self) {
        self.acceptor.close();
    }
}

/// What a finished handshake hands to the engine, whoever dialed.
pub(crate) fn admission(
    established: Established,
    our_channels: u32,
    resuming: &Resuming,
) -> Admission {
    let (rewiring, registered) = resuming.terms(&established).unzip();
    let Established {
        stream,
        leftover,
        unix,
        verbs,
        peer: info,
        began,
        place,
        fabric,
        reason,
        ..
    } = established;
    Admission {
        stream,
        leftover,
        unix: unix.map(|unix| UnixWires::new(unix.control.into_fd(), unix.bells.into_fd())),
        rdma: verbs.and_then(prepared_pair),
        max_channels: our_channels.min(info.limits.channels) as usize,
        // Nothing of the handshake agrees on them yet.
        payload_checksums: false,
        rewiring,
        place: Box::new((place, registered)),
        peer: PeerDescription {
            address: info.address,
            identity: info.identity.0,
            incarnation: info.incarnation,
            began,
            pid: info.pid,
            knows_versions: info.features & features::CHANNEL_VERSIONS != 0,
            rests: info.features & features::RESTING_RINGS != 0,
            knows_writes: info.features & features::REMOTE_WRITES != 0,
            knows_aborts: info.features & features::ABORTS != 0,
            fabric: peer::as_carried(fabric),
            reason,
        },
    }
}
