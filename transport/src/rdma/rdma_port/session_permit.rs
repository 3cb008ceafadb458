//! What a session takes of an RDMA port, until its queue pair is gone.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
};

use ibex_protocol::credit::reserved_buffer::reserved_buffers;
use ibex_verbs::VerbsError;

use super::{super::port_error::PortError, RdmaPort};

/// A session's share of an RDMA port's capacity, given back when its queue pair is gone.
#[derive(Debug)]
pub(crate) struct SessionPermit {
    pub(crate) rdma_port: Arc<RdmaPort>,
    /// Places that the session takes; 0 once it has given them back. Each place has receive buffers
    /// in addition to the session's credit.
    places: u32,
    /// The queue pair was drained before it was destroyed.
    is_drained: bool,
}

impl SessionPermit {
    pub(super) fn take(rdma_port: &Arc<RdmaPort>, dialed: bool) -> Result<Self, VerbsError> {
        let places = match rdma_port.settings.shared_receives {
            true => reserved_buffers(dialed) as u32,
            false => 1,
        };
        let take =
            |taken: u32| (taken + places <= rdma_port.max_sessions).then_some(taken + places);
        // Relaxed, because the number only guards a sum and orders no other access.
        let taken = rdma_port
            .sessions
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        match taken {
            Ok(_) => Ok(Self {
                rdma_port: rdma_port.clone(),
                places,
                is_drained: false,
            }),
            Err(taken) => Err(PortError::NoSeat {
                device: rdma_port.device().to_owned(),
                sessions: taken + places,
                limit: rdma_port.max_sessions,
                next_step: rdma_port.next_step_for_more(),
            }
            .into()),
        }
    }

    /// Notes that the queue pair was drained, so that none of its receives is missing.
    pub(crate) fn was_drained(&mut self) {
        self.is_drained = true;
    }

    /// Gives the places back, because the queue pair is destroyed. The rest of its wire is freed
    /// behind the turn, and whoever learns before of the session's end may want a place.
    pub(crate) fn give_back(&mut self) {
        let places = mem::take(&mut self.places);
        if places == 0 {
            return;
        }
        if !self.is_drained {
            self.rdma_port.has_undrained.store(true, Ordering::Relaxed);
        }
        self.rdma_port.sessions.fetch_sub(places, Ordering::Relaxed);
    }
}

impl Drop for SessionPermit {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Mark of a queue pair that waits for its last completion.
pub(crate) struct DrainGuard(pub(super) Arc<RdmaPort>);

impl Drop for DrainGuard {
    fn drop(&mut self) {
        self.0.draining_pairs.fetch_sub(1, Ordering::Relaxed);
    }
}
