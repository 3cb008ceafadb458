//! The sessions of an engine: their beginning, calls on them, and their removal.

use std::{any::Any, io, sync::Arc};

use ibex_base::Address;

use super::{Admission, Engine, close::Closing, connections::Connections};
use crate::{
    connection::{Connection, Context, Handover},
    node::{SessionPath, SessionShared, session::PeerInLog},
    rdma::PreparedPair,
};

impl Engine {
    pub(crate) fn admit(
        &mut self,
        runtime: Arc<dyn Any + Send + Sync>,
        admission: Admission,
        accepted_on: Option<Address>,
        context: &mut Context<'_>,
    ) -> io::Result<Arc<SessionShared>> {
        if self.closing != Closing::No {
            context.leave(admission.abandon());
            return Err(io::Error::other("the node is closing"));
        }
        if let Some(pair) = &admission.parts.rdma
            && let Err(error) = self
                .ports
                .attach(pair.rdma_port(), &mut self.connections, context)
        {
            context.leave(admission.abandon());
            return Err(error);
        }
        let id = self.next_session;
        self.next_session += 1;
        let peer = PeerInLog {
            peer: &admission.peer,
            accepted_on,
        };
        tracing::info!(
            %peer,
            fabric = %admission.peer.fabric,
            reason = %admission.peer.reason,
            "session up"
        );
        let ticket = admission.parts.rdma.as_ref().map(PreparedPair::ticket);
        let pair = admission.parts.rdma.as_ref();
        let path = SessionPath::beside(admission.unix.as_ref());
        let (peer, resumes) = (admission.peer, admission.reconnect.is_some());
        let checksums = admission.payload_checksums;
        let shared = SessionShared::new(
            (context.node.clone(), runtime),
            id,
            peer,
            accepted_on,
            resumes,
            checksums,
            (path, pair),
        );
        let shared = Arc::new(shared);
        let handover = Handover {
            parts: admission.parts,
            unix: admission.unix,
            max_channels: admission.max_channels,
            reconnect: admission.reconnect,
            place: admission.place,
        };
        let tools = &mut self.connections.tools;
        let connection = Connection::new(shared.clone(), handover, tools, context)?;
        if connection.needs_credit() {
            let broker = &mut self.connections.credit.broker;
            if let Err(error) = broker.join(id) {
                context.leftovers.push(connection);
                return Err(io::Error::other(error));
            }
        }
        self.connections.insert(connection);
        self.ports
            .join(id, ticket, &mut self.connections, context)?;
        self.runs_anew(shared.peer(), context);
        self.others.tell_of_run(shared.peer(), context);
        self.connections.mark_active(id);
        // The session is heated because its first frames may be in `leftover` already, and because
        // this end's Unix socket must greet the peer's.
        self.on_connection(id, context, |connection, context| {
            connection.core.common.tell_of_connection(context);
        });
        let gatherings = context.gatherings;
        gatherings.session_came(&shared, &mut context.wakers);
        Ok(shared)
    }

    /// Calls `act` with one session, and transmits the resulting frames at once.
    pub(crate) fn on_connection<T>(
        &mut self,
        session: u64,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let Connections {
            all,
            deadlines,
            watch,
            credit,
            tools,
            ..
        } = &mut self.connections;
        let connection = all.get_mut(session)?;
        let result = act(connection, context);
        connection.settle(tools, context);
        credit.take_report(connection);
        deadlines.note(connection);
        watch.take_in(connection);
        if connection.has_left_device {
            self.left_port(session, context);
        } else if connection.is_finished() {
            self.remove(session, context);
        }
        self.share_credit(context);
        Some(result)
    }

    /// Calls `act` with every session.
    pub(crate) fn on_every_connection(
        &mut self,
        context: &mut Context<'_>,
        mut act: impl FnMut(&mut Connection, &mut Context<'_>),
    ) {
        let sessions: Vec<u64> = self.connections.all.ids().collect();
        for session in sessions {
            self.on_connection(session, context, &mut act);
        }
    }

    pub(super) fn remove(&mut self, session: u64, context: &mut Context<'_>) {
        self.ports.leave(session, &mut self.connections, context);
        if let Some(mut connection) = self.connections.remove(session) {
            self.ended.add(&connection.core.stats());
            connection.core.common.shared().end();
            let undelivered = connection.core.common.undelivered();
            match self.closing {
                // The channels' names would fill the memory of a node that lives long.
                Closing::No => {
                    let missing = undelivered.iter().map(|it| it.sent - it.received);
                    self.close_report.undelivered_before += missing.sum::<u64>();
                }
                Closing::Until(_) => self.close_report.undelivered.extend(undelivered),
            }
            connection.core.leave_passed(context);
            context.leftovers.push(connection);
        }
        self.stop_listening_if_over(context);
    }
}
