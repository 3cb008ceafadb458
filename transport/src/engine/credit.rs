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
        broker::{BrokerSettings, CreditAction, CreditBroker},
        session::{CONTROL_RESERVE_BYTES, CreditReport},
    },
    framing::Carriage,
};

use super::{Engine, connections::Connections};
use crate::{
    connection::{Connection, Context},
    node::RuntimeConfig,
    rdma::RdmaPort,
};

impl Engine {
    /// Carries out the brokers' decisions.
    #[inline]
    pub(super) fn share_credit(&mut self, context: &mut Context<'_>) {
        if self.connections.credit.has_actions() {
            self.share_wanted_credit(context);
        }
    }

    fn share_wanted_credit(&mut self, context: &mut Context<'_>) {
        self.connections.credit.borrow();
        loop {
            let Connections {
                all,
                deadlines,
                credit,
                tools,
                ..
            } = &mut self.connections;
            let used = |session| {
                all.get(session)
                    .map_or(0, |connection| connection.core.common.credit_used())
            };
            let Some(action) = credit.poll_action(used) else {
                return;
            };
            let session = action.session();
            let Some(connection) = all.get_mut(session) else {
                debug_assert!(false, "{action:?} for a session that has left");
                continue;
            };
            connection.core.common.handle_credit(action);
            connection.settle(tools, context);
            credit.take_report(connection);
            deadlines.note(connection);
            if connection.is_finished() {
                self.remove(session, context);
            }
        }
    }
}

/// The credit of an engine's sessions.
pub(crate) struct Credit {
    /// The broker of arrival bytes, for sessions over tcp.
    pub(super) broker: CreditBroker,
    /// The brokers of the receive buffers that RDMA ports share among their sessions.
    of_ports: Vec<(Arc<RdmaPort>, CreditBroker)>,
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
            of_ports: Vec::new(),
            limit,
            step: settings
                .most
                .max(config.node_credit_bytes / (4 * config.engines as u64)),
            borrowed: 0,
            most: settings.most,
        }
    }

    fn brokers(&mut self) -> impl Iterator<Item = &mut CreditBroker> {
        let of_ports = self.of_ports.iter_mut().map(|(_, broker)| broker);
        [&mut self.broker].into_iter().chain(of_ports)
    }

    /// Returns whether a broker may have decided something.
    #[inline]
    fn has_actions(&self) -> bool {
        let mut of_ports = self.of_ports.iter();
        self.broker.has_actions() || of_ports.any(|(_, broker)| broker.has_actions())
    }

    /// Returns a broker's next decision. `used` is the credit that a session has used.
    fn poll_action(&mut self, used: impl Fn(u64) -> u64 + Copy) -> Option<CreditAction> {
        self.brokers().find_map(|broker| broker.poll_action(used))
    }

    /// Hands the report of a session to all brokers. Only the session's own broker knows the
    /// session; the others ignore the report.
    #[inline]
    pub(super) fn take_report(&mut self, connection: &mut Connection) {
        let report = connection.core.common.take_credit_report();
        if report != CreditReport::default() {
            let session = connection.id();
            self.brokers()
                .for_each(|broker| broker.report(session, report));
            if report.is_suspended {
                self.give_back();
            }
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

#[cfg(any(test, feature = "verbs"))]
impl Credit {
    /// Adds the broker of an RDMA port that the engine polls.
    pub(super) fn add_port(&mut self, rdma_port: &Arc<RdmaPort>, broker: CreditBroker) {
        self.of_ports.push((rdma_port.clone(), broker));
    }

    /// Removes the broker of an RDMA port, whose sessions are over.
    pub(super) fn remove_port(&mut self, rdma_port: &Arc<RdmaPort>) {
        self.of_ports.retain(|(of, _)| !Arc::ptr_eq(of, rdma_port));
    }

    /// Returns the broker of an RDMA port; `None` where each session has buffers of its own.
    pub(super) fn of_port(&mut self, rdma_port: &Arc<RdmaPort>) -> Option<&mut CreditBroker> {
        let mut brokers = self.of_ports.iter_mut();
        let found = brokers.find(|(of, _)| Arc::ptr_eq(of, rdma_port));
        found.map(|(_, broker)| broker)
    }

    /// Takes a session away from the brokers of RDMA ports.
    pub(super) fn leave_ports(&mut self, session: u64) {
        for (_, broker) in &mut self.of_ports {
            broker.leave(session);
        }
    }
}

#[cfg(test)]
impl Credit {
    /// Returns the bytes that the engine has borrowed.
    pub(super) fn borrowed(&self) -> u64 {
        self.borrowed
    }

    /// Returns the number of receive buffers that the peer of a session over an RDMA port may fill,
    /// and the number that no peer may fill.
    pub(crate) fn lent_and_free(&self, session: u64) -> (u64, u64) {
        let broker = self.of_ports.first();
        broker.map_or((0, 0), |(_, broker)| (broker.held(session), broker.free()))
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
    let floor = Carriage::Stream.grain();
    let most = config.session_credit_bytes.min(config.node_credit_bytes);
    // With the floor a frame of any length goes out, so less than a grain is of use beside it.
    let most = most.saturating_sub(floor).max(1);
    BrokerSettings {
        capacity: own_bytes(config) + MAX_SESSIONS * (CONTROL_RESERVE_BYTES + floor),
        reserve: CONTROL_RESERVE_BYTES,
        floor,
        spare: 0,
        max_sessions: MAX_SESSIONS,
        grain: Carriage::Stream.grain().min(most),
        most,
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

    /// Lets `sessions` join and want credit, and gives them all that there is.
    fn fill(credit: &mut Credit, sessions: std::ops::Range<u64>) {
        for session in sessions {
            credit.broker.join(session).expect("there is room");
            while credit.broker.poll_action(|_| 0).is_some() {}
            let report = CreditReport {
                wants: true,
                ..CreditReport::default()
            };
            credit.broker.report(session, report);
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
        // Five sessions use the engine's own part, and the others use what it borrows.
        fill(&mut busy, 1..19);
        assert_eq!((limit.left(), busy.borrowed), (0, 8 << 20));
        let held: u64 = (1..19).map(|session| busy.broker.held(session)).sum();
        assert!(held > 8 << 20, "more than half of the limit: {held}");
        assert_eq!(
            idle.broker.free(),
            4 << 20,
            "an engine's own part is never lent"
        );
        for session in 1..19 {
            busy.broker.leave(session);
            busy.give_back();
        }
        let (free, borrowed) = all(&busy, &idle);
        assert_eq!(free, config.node_credit_bytes);
        assert!(borrowed <= busy.step, "all but a step goes back");
    }
}
