//! Sessions that resume over another connection or without their queue pair, and sessions whose
//! peers will not come back.

use std::io;

use super::{Engine, Mail, connections::Connections};
use crate::{
    connection::{Connection, Context, NewWire},
    rdma::PreparedPair,
    session::PeerDescription,
};

impl Engine {
    /// Resumes a session whose peer has dialed it once more. In a session of the node with itself,
    /// this is the end that does not dial.
    pub(crate) fn resume(&mut self, wires: NewWire, context: &mut Context<'_>) {
        let named = self.connections.named(&wires.session, |one| !one.dials());
        match named {
            Some(session) => self.resume_session(session, wires, context),
            None => self.others.pass_on(Mail::Wires(Box::new(wires)), context),
        }
    }

    /// Ends the session with this name, whose place another session has taken.
    pub(super) fn displace(&mut self, session: [u8; 16], context: &mut Context<'_>) {
        match self.connections.named(&session, |_| true) {
            Some(session) => {
                self.on_connection(session, context, |connection, context| {
                    connection.core.lost_place(context);
                });
            }
            None => self.others.pass_on(Mail::Displaced(session), context),
        }
    }

    /// Resumes a session over another connection.
    pub(crate) fn resume_session(
        &mut self,
        session: u64,
        wires: NewWire,
        context: &mut Context<'_>,
    ) {
        let Some(connection) = self.connections.all.get(session) else {
            return context.leave(wires);
        };
        if connection.has_left_device {
            // Otherwise the session would later leave the RDMA port of the new queue pair.
            self.left_port(session, context);
        }
        let outcome = self.take_wires(session, wires, context);
        self.connections.mark_active(session);
        self.on_connection(session, context, |connection, context| {
            if let Err(error) = outcome {
                let why = format!("its new connection cannot be used: {error}");
                connection.core.fail(&why, context);
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
            Some(pair) => self
                .ports
                .attach(pair.rdma_port(), &mut self.connections, context),
            None => Ok(()),
        };
        let Connections {
            all, credit, tools, ..
        } = &mut self.connections;
        let Some(connection) = all.get_mut(session) else {
            context.leave(wires);
            return Ok(());
        };
        if let Err(error) = cared {
            connection.redial_failed(wires.epoch, &error.to_string());
            context.leave(wires);
            return Ok(());
        }
        let ticket = wires.parts.rdma.as_ref().map(PreparedPair::ticket);
        if !connection.take_wire(wires, tools, context)? {
            return Ok(());
        }
        credit.broker.leave(session);
        if connection.needs_credit() {
            return credit.broker.join(session).map_err(io::Error::other);
        }
        self.ports
            .join(session, ticket, &mut self.connections, context)
    }

    /// Removes a session whose queue pair is gone from its RDMA port. The session goes on without
    /// it.
    pub(super) fn left_port(&mut self, session: u64, context: &mut Context<'_>) {
        let Some(connection) = self.connections.all.get_mut(session) else {
            return;
        };
        connection.has_left_device = false;
        let next = connection.core.take_next_wire();
        self.ports.leave(session, &mut self.connections, context);
        if let Some(wires) = next {
            self.resume_session(session, wires, context);
        }
        if self
            .connections
            .all
            .get(session)
            .is_some_and(|connection| connection.is_finished())
        {
            self.remove(session, context);
        }
    }

    /// Ends sessions with older runs of `peer`, because a session with this run has come. A peer
    /// that runs anew has ended its older runs, so no session waits for them any more. This
    /// includes sessions whose connections are not known to be broken yet.
    ///
    /// The new session may itself be with a run that has ended, because concurrent handshakes end
    /// in any order. They begin in the order of the runs.
    pub(super) fn runs_anew(&mut self, peer: &PeerDescription, context: &mut Context<'_>) {
        if !self.connections.has_other_run(peer) {
            return;
        }
        let of_peer = || {
            let connections = self.connections.all.values();
            connections.filter(|connection| connection.core.common.peer().is_of_node(peer))
        };
        let is_same_run =
            |connection: &Connection| connection.core.common.peer().incarnation == peer.incarnation;
        let has_newer = of_peer().any(|connection| {
            !is_same_run(connection) && connection.core.common.peer().began > peer.began
        });
        let is_over = |connection: &Connection| match is_same_run(connection) {
            true => has_newer,
            false => connection.core.common.peer().began < peer.began,
        };
        let runs = of_peer()
            .map(|connection| connection.core.common.peer())
            .chain([peer]);
        let newest = runs.max_by_key(|run| run.began);
        let newest = newest.map_or_else(String::new, ToString::to_string);
        let connections = of_peer().filter(|connection| is_over(connection));
        let sessions: Vec<u64> = connections.map(|connection| connection.id()).collect();
        for session in sessions {
            self.on_connection(session, context, |connection, context| {
                connection.core.peer_runs_anew(&newest, context);
            });
        }
    }
}
