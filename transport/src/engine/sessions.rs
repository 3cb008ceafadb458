//! The sessions of an engine: their beginning, calls on them, and their removal.

use std::{io, net::SocketAddr, sync::Arc};

use super::{Admission, Engine, close::Closing, credit::report_credit, heat_link, note_deadline};
use crate::{
    connection::{Connection, Context, Handover},
    node::{Host, NodeState, SessionPath, SessionShared, session::PeerInLog},
    rdma::PreparedPair,
};

impl Engine {
    pub(crate) fn admit(
        &mut self,
        (node, host): (Arc<NodeState>, Arc<dyn Host>),
        admission: Admission,
        accepted_on: Option<SocketAddr>,
        context: &mut Context<'_>,
    ) -> io::Result<Arc<SessionShared>> {
        if self.closing != Closing::No {
            admission.abandon();
            return Err(io::Error::other("the node is closing"));
        }
        if let Some(pair) = &admission.parts.rdma
            && let Err(error) = self.care_for(pair.rdma_port())
        {
            admission.abandon();
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
            (node, host),
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
        let link = Connection::new(shared.clone(), handover, &mut self.tools)?;
        if link.needs_credit() {
            self.credit.broker.join(id).map_err(io::Error::other)?;
        }
        self.links.insert(id, Box::new(link));
        // Room is reserved now, so that a deadline that is set while messages flow allocates
        // nothing.
        self.timed.reserve(self.links.len());
        self.watch.make_room(self.links.len());
        self.joins_port(id, ticket, context)?;
        self.runs_anew(shared.peer(), context);
        self.tell_of_run(shared.peer());
        self.heat(id);
        // The session is heated because its first frames may be in `leftover` already, and because
        // this end's Unix socket must greet the peer's.
        self.on_link(id, context, |link, context| {
            link.core.common.tell_of_connection(context);
        });
        let surroundings = context.surroundings;
        surroundings.session_came(&shared, &mut context.wakers);
        Ok(shared)
    }

    /// Returns the sessions of this engine.
    pub(crate) fn sessions(&self) -> Vec<Arc<SessionShared>> {
        self.links
            .values()
            .map(|link| link.core.common.shared())
            .collect()
    }

    /// Updates a session's account of a peer whose host is silent.
    pub(crate) fn note_answers(&self, session: u64) {
        if let Some(link) = self.links.get(session) {
            link.note_answers();
        }
    }

    /// Calls `act` with one session, and transmits the resulting frames at once.
    pub(crate) fn on_link<T>(
        &mut self,
        session: u64,
        context: &mut Context<'_>,
        act: impl FnOnce(&mut Connection, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let link = self.links.get_mut(session)?;
        let result = act(link, context);
        link.settle(&mut self.tools, context);
        let report = link.core.common.take_credit_report();
        report_credit(
            &mut self.credit.broker,
            &mut self.rdma_ports,
            session,
            report,
        );
        note_deadline(link, &mut self.timed);
        self.watch.take_in(link);
        if link.has_left_device {
            self.left_port(session, context);
        } else if link.is_finished() {
            self.remove(session, context);
        }
        self.share_credit(context);
        Some(result)
    }

    /// Makes the session hot: every turn looks at it for a while.
    pub(super) fn heat(&mut self, session: u64) {
        if let Some(link) = self.links.get_mut(session) {
            heat_link(link, &mut self.hot);
        }
    }

    pub(super) fn remove(&mut self, session: u64, context: &mut Context<'_>) {
        self.leaves_port(session);
        if let Some(mut link) = self.links.remove(session) {
            self.credit.broker.leave(session);
            link.unregister(&self.tools.epoll);
            self.ended.add(&link.core.stats());
            link.core.common.shared().end();
            let undelivered = link.core.common.undelivered();
            match self.closing {
                // The channels' names would fill the memory of a node that lives long.
                Closing::No => {
                    let missing = undelivered.iter().map(|it| it.sent - it.received);
                    self.close_report.undelivered_before += missing.sum::<u64>();
                }
                Closing::Until(_) => self.close_report.undelivered.extend(undelivered),
            }
        }
        self.hot.retain(|&hot| hot != session);
        self.timed.retain(|&timed| timed != session);
        self.credit.give_back();
        self.watch.forget(session);
        self.stop_listening_if_over(context);
    }
}
