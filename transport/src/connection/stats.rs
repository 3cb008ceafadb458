//! The counters of a session and its channels, read out at once.
#![forbid(unsafe_code)]

use std::sync::Arc;

use super::core::Core;
use crate::{endpoint::stats::ChannelStats, session::SessionShared};

/// A session, and its channels' ends.
#[derive(Clone, Debug)]
pub struct LinkStats {
    /// The session.
    pub session: Arc<SessionShared>,
    /// It has not ended.
    pub is_up: bool,
    /// The ends that this node has.
    pub channels: Vec<ChannelStats>,
}

impl Core {
    pub(crate) fn stats(&self) -> LinkStats {
        let senders = self.senders.values().map(|sender| sender.end.stats());
        let receivers = self.receivers.values().map(|receiver| receiver.end.stats());
        let mut channels: Vec<_> = senders.chain(receivers).collect();
        channels.sort_by(|a, b| (&a.name, a.end).cmp(&(&b.name, b.end)));
        LinkStats {
            session: self.common.shared.clone(),
            is_up: !self.is_over(),
            channels,
        }
    }
}
