//! A newer run of a peer, beside a session with an older run that works on.
//!
//! A node that is started anew has ended before, so the older run's connection breaks soon. If the
//! older run goes on sending instead, two running nodes have one identity. Each then ends sessions
//! of the other: a session whose connection breaks counts as that of a run that is over.
#![forbid(unsafe_code)]

use std::mem;

use super::{context::Context, core::Core};
use crate::node::{Warning, warn_of};

/// The newest run of a peer, as a session with an older run knows it.
#[derive(Debug)]
pub(crate) struct NewerRun {
    /// The peer in its newest run.
    peer: String,
    /// The count of what the older run had sent at the first check; `None` before.
    heard: Option<u64>,
    is_notified: bool,
}

impl NewerRun {
    pub(super) fn new(peer: String) -> Self {
        Self {
            peer,
            heard: None,
            is_notified: false,
        }
    }

    /// Takes in a check at which the session works and `heard` counts what the older run has sent.
    /// Returns, once, whether the older run is running as well: it has sent since the first check.
    /// What came before may be the last of a run that was over already.
    fn is_beside_another(&mut self, heard: u64) -> bool {
        let before = *self.heard.get_or_insert(heard);
        heard != before && !mem::replace(&mut self.is_notified, true)
    }
}

impl Core {
    /// Looks, for a session that works, whether an older run of the peer goes on beside a newer.
    pub(super) fn check_newer_run(&mut self, context: &Context<'_>) {
        let shared = &self.common.shared;
        let Some(reconnect) = &mut self.reconnect else {
            return;
        };
        let Some(newer) = &mut reconnect.newer_run else {
            return;
        };
        let counters = &shared.counters;
        let mut heard = counters.bytes_received.get() + counters.control_bytes_received.get();
        // The connection of a process that has ended breaks before another check, so messages in
        // shared memory come from one that runs.
        let receivers = self.ends.receivers.ends.values();
        let taken = receivers.map(|receiver| receiver.end.path.taken_beside_wire(&receiver.end));
        heard += taken.sum::<u64>();
        if newer.is_beside_another(heard) {
            let (peer, other) = (shared.peer_in_log(), &newer.peer);
            warn_of!(
                context.node.warnings,
                Warning::OneIdentity,
                format_args!("{peer} and {other}"),
                %peer, %other,
                "two running nodes have one identity, and each ends sessions of the other: a \
                 session whose connection breaks counts as that of a run that is over; give each \
                 node an identity of its own, or stop one of them"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_comes_after_the_first_look_shows_that_both_run() {
        let mut newer = NewerRun::new("0707".to_owned());
        assert!(!newer.is_beside_another(100), "it may be the last of it");
        assert!(!newer.is_beside_another(100), "nothing has come");
        assert!(newer.is_beside_another(101));
        assert!(!newer.is_beside_another(102), "it was told");
    }
}
