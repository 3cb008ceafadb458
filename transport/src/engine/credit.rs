//! Shares of a node's arrival memory: what the brokers are told of sessions, and how their
//! decisions are carried out.

use ibex_protocol::{
    credit::{
        broker::{BrokerSettings, CreditBroker},
        session::{CONTROL_RESERVE_BYTES, CreditReport},
    },
    framing::Carriage,
};

use super::{Engine, rdma_ports::PortPoller};
use crate::{connection::Context, runtime::RuntimeConfig};

impl Engine {
    /// Does what the brokers decide.
    #[inline]
    pub(super) fn share_credit(&mut self, context: &mut Context<'_>) {
        if brokers(&mut self.broker, &mut self.sites).any(|broker| broker.is_wanted()) {
            self.share_wanted_credit(context);
        }
    }

    fn share_wanted_credit(&mut self, context: &mut Context<'_>) {
        loop {
            let links = &self.links;
            let used = |session| links.get(session).map_or(0, |link| link.credit_used());
            let action = brokers(&mut self.broker, &mut self.sites)
                .find_map(|broker| broker.poll_action(used));
            let Some(action) = action else {
                return;
            };
            let session = action.session();
            let Some(link) = self.links.get_mut(session) else {
                debug_assert!(false, "{action:?} for a session that has left");
                continue;
            };
            link.handle_credit(action);
            link.settle(&mut self.tools, context);
            let report = link.take_credit_report();
            report_credit(&mut self.broker, &mut self.sites, session, report);
            if link.is_finished() {
                self.remove(session);
            }
        }
    }
}

/// Tells the broker that the session belongs to; the others do not know it.
#[inline]
pub(super) fn report_credit(
    broker: &mut CreditBroker,
    sites: &mut [PortPoller],
    session: u64,
    report: CreditReport,
) {
    if report != CreditReport::default() {
        brokers(broker, sites).for_each(|broker| broker.report(session, report));
    }
}

/// Of arrival bytes, and of each site's receive buffers.
fn brokers<'a>(
    broker: &'a mut CreditBroker,
    sites: &'a mut [PortPoller],
) -> impl Iterator<Item = &'a mut CreditBroker> {
    let of_sites = sites.iter_mut().filter_map(|care| care.broker.as_mut());
    [broker].into_iter().chain(of_sites)
}

/// What a node can take in over tcp.
pub(super) fn arrival_bytes(config: &RuntimeConfig) -> BrokerSettings {
    BrokerSettings {
        capacity: config.node_credit_bytes + MAX_SESSIONS * CONTROL_RESERVE_BYTES,
        reserve: CONTROL_RESERVE_BYTES,
        max_sessions: MAX_SESSIONS,
        grain: Carriage::Stream.grain(),
        most: config.session_credit_bytes.min(config.node_credit_bytes),
    }
}

/// As many connections as a process may open at the most on many systems, and more than
/// that are refused by the system.
const MAX_SESSIONS: u64 = 1 << 20;
