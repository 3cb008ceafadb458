//! A snapshot of the counters of a session and its channels.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::core::Core;
use crate::{
    endpoint::stats::{ChannelStats, ChannelTotals},
    node::SessionShared,
    session::SessionStats,
};

/// Counters of a session and of its channels' ends.
#[derive(Clone, Debug)]
pub struct ConnectionStats {
    /// The session that the counters belong to.
    pub session: Arc<SessionShared>,
    /// The session has not ended.
    pub is_up: bool,
    /// The ends that this node has.
    pub channels: Vec<ChannelStats>,
    /// The counts of the ends that this node had and has not any more.
    pub gone: ChannelTotals,
}

/// The counts of several sessions together, which only rise.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionTotals {
    /// The number of sessions.
    pub sessions: u64,
    /// The counts of their channels.
    pub channels: ChannelTotals,
    /// The counts of the sessions, without those of device ports, which sessions share.
    pub counters: SessionStats,
}

impl SessionTotals {
    /// Adds the counts of a session.
    pub fn add(&mut self, connection: &ConnectionStats) {
        self.sessions += 1;
        self.channels += connection.gone;
        connection
            .channels
            .iter()
            .for_each(|end| self.channels += end);
        self.counters.add_own(&connection.session.stats());
    }

    /// Adds the counts of other sessions.
    pub fn add_all(&mut self, others: &SessionTotals) {
        self.sessions += others.sessions;
        self.channels += others.channels;
        self.counters.add_own(&others.counters);
    }
}

impl Core {
    pub(crate) fn stats(&self) -> ConnectionStats {
        ConnectionStats {
            session: self.common.shared.clone(),
            is_up: !self.common.is_over(),
            channels: self.ends.stats(),
            gone: self.ends.gone(),
        }
    }
}
