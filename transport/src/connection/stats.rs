//! A snapshot of the counters of a session and its channels.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::core::Core;
use crate::{endpoint::stats::ChannelStats, node::SessionShared};

/// Counters of a session and of its channels' ends.
#[derive(Clone, Debug)]
pub struct LinkStats {
    /// The session that the counters belong to.
    pub session: Arc<SessionShared>,
    /// The session has not ended.
    pub is_up: bool,
    /// The ends that this node has.
    pub channels: Vec<ChannelStats>,
}

impl Core {
    pub(crate) fn stats(&self) -> LinkStats {
        LinkStats {
            session: self.common.shared.clone(),
            is_up: !self.common.is_over(),
            channels: self.ends.stats(),
        }
    }
}
