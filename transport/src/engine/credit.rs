//! Shares of a node's arrival memory: reports of sessions to the brokers, and the execution of the
//! brokers' decisions.
//!
//! The limit is the node's. A lone engine has all of it. With several engines, each owns an equal
//! part of one half, so that none can be starved. Engines borrow the other half in steps. An engine
//! borrows when a session wants credit and its broker has less left than a session may hold. It
//! gives a step back when sessions have ended and two steps are free.

use std::sync::Arc;

use ibex_base::sync::LentLimit;

use ibex_protocol::{
    credit::{
        broker::{BrokerSettings, CreditBroker},
        session::{CONTROL_RESERVE_BYTES, CreditReport},
    },
    framing::Carriage,
};

use super::{Engine, rdma_ports::PortPoller};
use crate::{connection::Context, node::RuntimeConfig};

impl Engine {
    /// Carries out the brokers' decisions.
    #[inline]
    pub(super) fn share_credit(&mut self, context: &mut Context<'_>) {
        if brokers(&mut self.credit.broker, &mut self.rdma_ports).any(|broker| broker.is_wanted()) {
            self.share_wanted_credit(context);
        }
    }

    fn share_wanted_credit(&mut self, context: &mut Context<'_>) {
        self.credit.borrow();
        loop {
            let links = &self.links;
            let used = |session| {
                links
                    .get(session)
                    .map_or(0, |link| link.core.common.credit_used())
            };
            let action = brokers(&mut self.credit.broker, &mut self.rdma_ports)
                .find_map(|broker| broker.poll_action(used));
            let Some(action) = action else {
                return;
            };
            let session = action.session();
            let Some(link) = self.links.get_mut(session) else {
                debug_assert!(false, "{action:?} for a session that has left");
                continue;
            };
            link.core.common.handle_credit(action);
            link.settle(&mut self.tools, context);
            let report = link.core.common.take_credit_report();
            report_credit(
                &mut self.credit.broker,
                &mut self.rdma_ports,
                session,
                report,
            );
            if link.is_finished() {
                self.remove(session, context);
            }
        }
    }
}

/// Reports to all brokers. Only the session's own broker knows the session; the others ignore the
/// report.
#[inline]
pub(super) fn report_credit(
    broker: &mut CreditBroker,
    rdma_ports: &mut [PortPoller],
    session: u64,
    report: CreditReport,
) {
    if report != CreditReport::default() {
        brokers(broker, rdma_ports).for_each(|broker| broker.report(session, report));
    }
}

/// Returns the broker of arrival bytes, and the brokers of the RDMA ports' receive buffers.
fn brokers<'a>(
    broker: &'a mut CreditBroker,
    rdma_ports: &'a mut [PortPoller],
) -> impl Iterator<Item = &'a mut CreditBroker> {
    let of_ports = rdma_ports
        .iter_mut()
        .filter_map(|care| care.broker.as_mut());
    [broker].into_iter().chain(of_ports)
}

/// The credit of an engine's sessions over tcp.
pub(super) struct Credit {
    pub(super) broker: CreditBroker,
    /// The part of the node's credit that no engine has borrowed.
    limit: Arc<LentLimit>,
    /// Bytes that are borrowed at a time.
    step: u64,
    borrowed: u64,
    /// The most that a session may hold.
    most: u64,
}

impl Credit {
    pub(super) fn new(config: &RuntimeConfig, limit: Arc<LentLimit>) -> Self {
        let settings = arrival_bytes(config);
        Self {
            broker: CreditBroker::new(settings),
            limit,
            step: settings
                .most
                .max(config.node_credit_bytes / (4 * config.engines as u64)),
            borrowed: 0,
            most: settings.most,
        }
    }

    /// Borrows a step of the node's limit, if sessions want more than the engine has.
    fn borrow(&mut self) {
        if self.broker.is_wanted() && self.broker.free() < self.most {
            let lent = self.limit.borrow_up_to(self.step);
            self.borrowed += lent;
            self.broker.grow(lent);
        }
    }

    /// Gives a step back, if sessions that ended have left enough.
    pub(super) fn give_back(&mut self) {
        if self.borrowed > 0 && !self.broker.is_wanted() && self.broker.free() >= 2 * self.step {
            let lent = self.step.min(self.borrowed);
            self.broker.shrink(lent);
            self.borrowed -= lent;
            self.limit.give_back(lent);
        }
    }
}

#[cfg(test)]
impl Credit {
    /// Returns the bytes that the engine has borrowed.
    pub(super) fn borrowed(&self) -> u64 {
        self.borrowed
    }

    /// Returns the bytes that no engine of the node has borrowed.
    pub(super) fn left_to_borrow(&self) -> u64 {
        self.limit.left()
    }
}

/// Returns the part of the node's credit that engines may borrow.
pub(crate) fn lendable_credit(config: &RuntimeConfig) -> u64 {
    let own = own_bytes(config).saturating_mul(config.engines as u64);
    config.node_credit_bytes.saturating_sub(own)
}

/// Returns the part of the node's credit that is each engine's own.
fn own_bytes(config: &RuntimeConfig) -> u64 {
    match config.engines as u64 {
        1 => config.node_credit_bytes,
        engines => Carriage::Stream
            .grain()
            .max(config.node_credit_bytes / (2 * engines)),
    }
}

/// Returns the settings of an engine's broker for tcp, with the bytes that it has before it
/// borrows.
fn arrival_bytes(config: &RuntimeConfig) -> BrokerSettings {
    BrokerSettings {
        capacity: own_bytes(config) + MAX_SESSIONS * CONTROL_RESERVE_BYTES,
        reserve: CONTROL_RESERVE_BYTES,
        max_sessions: MAX_SESSIONS,
        grain: Carriage::Stream.grain(),
        most: config.session_credit_bytes.min(config.node_credit_bytes),
    }
}

/// Most descriptors that a process may open on many systems, which refuse more; see
/// `/proc/sys/fs/nr_open` in proc(5).
const MAX_SESSIONS: u64 = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::Driver;

    fn config(engines: usize) -> RuntimeConfig {
        RuntimeConfig {
            engines,
            ..RuntimeConfig::of_test(Driver::Threads)
        }
    }

    /// Lets `sessions` join, and gives them all credit that there is.
    fn fill(credit: &mut Credit, sessions: std::ops::Range<u64>) {
        for session in sessions {
            credit.broker.join(session).expect("there is room");
            credit.borrow();
            while credit.broker.poll_action(|_| 0).is_some() {}
            assert!(credit.broker.is_sound());
        }
    }

    #[test]
    fn a_lone_engine_has_all_of_the_credit() {
        let config = config(1);
        assert_eq!(lendable_credit(&config), 0);
        let credit = Credit::new(&config, Arc::new(LentLimit::new(0)));
        assert_eq!(credit.broker.free(), config.node_credit_bytes);
    }

    #[test]
    fn engines_share_the_credit_and_a_busy_one_has_what_the_other_leaves() {
        let config = config(2);
        let limit = Arc::new(LentLimit::new(lendable_credit(&config)));
        let [mut busy, idle] = [(); 2].map(|()| Credit::new(&config, limit.clone()));
        let all = |busy: &Credit, idle: &Credit| {
            (
                busy.broker.free() + idle.broker.free() + limit.left(),
                busy.borrowed,
            )
        };
        assert_eq!(all(&busy, &idle), (config.node_credit_bytes, 0));
        // Four sessions use the engine's own part, and the others use what it borrows.
        fill(&mut busy, 1..13);
        assert_eq!((limit.left(), busy.borrowed), (0, 8 << 20));
        let held: u64 = (1..13).map(|session| busy.broker.held(session)).sum();
        assert!(held > 8 << 20, "more than half of the limit: {held}");
        assert_eq!(
            idle.broker.free(),
            4 << 20,
            "an engine's own part is never lent"
        );
        for session in 1..13 {
            busy.broker.leave(session);
            busy.give_back();
        }
        let (free, borrowed) = all(&busy, &idle);
        assert_eq!(free, config.node_credit_bytes);
        assert!(borrowed <= busy.step, "all but a step goes back");
    }
}
