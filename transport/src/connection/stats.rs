//! The counters of a session and its channels, read out at once.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::core::Core;
use crate::{endpoint::stats::ChannelStats, node::SessionShared};

/// A session, and its channels' ends.
#[derive(Clone, Debug)]
pub struct LinkStats {
    /// The session that was counted.
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
