//! Sessions that go on: over another connection, or without their queue pair; and those that
//! nobody comes back for.

use std::io;

use super::Engine;
use crate::{
    connection::{Connection, Context, NewWire},
    rdma::PreparedPair,
    session::PeerDescription,
};

impl Engine {
    /// The peer of a session has dialed it once more. Of a session of the node with itself the
    /// other end has dialed.
    pub(crate) fn resume(&mut self, wires: NewWire, context: &mut Context<'_>) {
        let is_meant = |link: &Connection| {
            let reconnect = link.core.reconnect.as_ref();
            reconnect.is_some_and(|one| one.is_named(&wires.session) && !one.dials())
        };
        let named = self.links.values().find(|link| is_meant(link));
        match named.map(|link| link.id()) {
            Some(session) => self.resume_session(session, wires, context),
            None => self.pass_on(wires),
        }
    }

    /// Returns whether a session of that name is here in which this node is the end that `dials`.
    pub(crate) fn has_named(&self, session: &[u8; 16], dials: bool) -> bool {
        let cores = self.links.values().map(|link| &link.core);
        let mut reconnects = cores.filter_map(|core| core.reconnect.as_ref());
        reconnects.any(|one| one.is_named(session) && one.dials() == dials)
    }

    /// A session goes on over another connection.
    pub(crate) fn resume_session(
        &mut self,
        session: u64,
        wires: NewWire,
        context: &mut Context<'_>,
    ) {
        let Some(link) = self.links.get(session) else {
            return;
        };
        if link.has_left_device {
            // Or it would leave the site of the new queue pair.
            self.left_site(session, context);
        }
        let outcome = self.take_wires(session, wires, context);
        self.heat(session);
        self.on_link(session, context, |link, context| {
            if let Err(error) = outcome {
                let why = format!("its new connection cannot be used: {error}");
                link.core.fail(&why, context);
            }
        });
    }

    fn take_wires(
        &mut self,
        session: u64,
        wires: NewWire,
        context: &mut Context<'_>,
    ) -> io::Result<()> {
        let cared = match &wires.parts.rdma {
            Some(pair) => self.care_for(pair.site()),
            None => Ok(()),
        };
        let Some(link) = self.links.get_mut(session) else {
            return Ok(());
        };
        if let Err(error) = cared {
            link.redial_failed(wires.epoch, &error.to_string());
            return Ok(());
        }
        let ticket = wires.parts.rdma.as_ref().map(PreparedPair::ticket);
        if !link.take_wire(wires, &mut self.tools, context)? {
            return Ok(());
        }
        self.credit.broker.leave(session);
        if link.needs_credit() {
            return self.credit.broker.join(session).map_err(io::Error::other);
        }
        self.joins_site(session, ticket, context)
    }

    /// A session's queue pair is gone, and it goes on without.
    pub(super) fn left_site(&mut self, session: u64, context: &mut Context<'_>) {
        let Some(link) = self.links.get_mut(session) else {
            return;
        };
        link.has_left_device = false;
        let next = link.core.take_next_wire();
        self.leaves_site(session);
        if let Some(wires) = next {
            self.resume_session(session, wires, context);
        }
        if self
            .links
            .get(session)
            .is_some_and(|link| link.is_finished())
        {
            self.remove(session);
        }
    }

    /// A session with `peer` is here. Of sessions whose peer is known to have ended, since it
    /// runs anew, none waits for it; nor will one whose connection is not known to be broken
    /// yet.
    ///
    /// The new session may itself be with the run that has ended: handshakes that run beside
    /// each other end in any order. They begin in the order of the runs.
    pub(super) fn runs_anew(&mut self, peer: &PeerDescription, context: &mut Context<'_>) {
        let of_peer = || {
            let links = self.links.values();
            links.filter(|link| link.core.common.peer().identity == peer.identity)
        };
        let is_same_run =
            |link: &Connection| link.core.common.peer().incarnation == peer.incarnation;
        let has_newer =
            of_peer().any(|link| !is_same_run(link) && link.core.common.peer().began > peer.began);
        let is_over = |link: &Connection| match is_same_run(link) {
            true => has_newer,
            false => link.core.common.peer().began < peer.began,
        };
        let links = of_peer().filter(|link| is_over(link));
        let sessions: Vec<u64> = links.map(|link| link.id()).collect();
        for session in sessions {
            self.on_link(session, context, |link, context| {
                link.core.peer_runs_anew(context);
            });
        }
    }
}
