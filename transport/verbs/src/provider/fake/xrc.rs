//! Extended reliable connections: domains by file, shared receive queues that senders name, and
//! receiving ends that several processes may hold.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::{
    Call, FakeProvider, PostedSend,
    handle::{id_of, take_back},
    world::{FakePair, FakeReceives, State},
};
use crate::{
    abi::{
        queue_pair_attributes::QueuePairAttributes, queue_pair_kind::QueuePairKind,
        queue_pair_state::QueuePairState,
    },
    provider::{QueuePairSizes, XrcDomainHandle},
};

/// An open domain of extended connections.
#[derive(Debug)]
pub(super) struct FakeXrcDomain {
    pub(super) context: u64,
    /// The domain itself, which all that have opened the same file share.
    pub(super) shared: u64,
    pub(super) file: Option<(u64, u64)>,
}

/// What a shared receive queue for extended connections has beside receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeXrcReceives {
    /// The open domain, and the domain itself.
    pub(super) domain: (u64, u64),
    pub(super) completions: u64,
}

/// The ends of objects, by the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
    pub(super) unsafe fn close_xrc_domain(&self, domain: XrcDomainHandle) -> Result<(), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CloseXrcDomain)?;
        // SAFETY: the trait's contract.
        let id = unsafe { id_of(domain.as_ptr()) };
        let of_queue = |queue: &FakeReceives| queue.xrc.is_some_and(|xrc| xrc.domain.0 == id);
        let shared = state.xrc_domains[&id].shared;
        let open = state.xrc_domains.values();
        let is_last = open.filter(|domain| domain.shared == shared).count() == 1;
        let of_pair = |pair: &FakePair| pair.xrc == Some(shared);
        if state.shared.values().any(of_queue) || is_last && state.pairs.values().any(of_pair) {
            return Err(Errno::BUSY);
        }
        state.xrc_domains.remove(&id);
        // SAFETY: the trait's contract.
        unsafe { take_back(domain.as_ptr()) };
        Ok(())
    }
}

impl State {
    /// Lets a receiving end take from the queue that a request names; false if it is not one of its
    /// domain. Other queue pairs take from their own.
    pub(super) fn aim(&mut self, peer: u64, send: &PostedSend) -> bool {
        let Some(domain) = self.pairs[&peer].xrc else {
            return true;
        };
        let queue = u64::from(send.receive_queue);
        let named = self.shared.get(&queue).and_then(|queue| queue.xrc);
        let pair = self.pairs.get_mut(&peer).expect("a queue pair");
        match named.filter(|named| named.domain.1 == domain) {
            Some(named) => {
                pair.shared = Some(queue);
                pair.receive_completions = named.completions;
                true
            }
            None => false,
        }
    }

    /// Closes one of the handles of a queue pair; true if it was the last.
    pub(super) fn close_pair(&mut self, id: u64) -> bool {
        let pair = self.pairs.get_mut(&id).expect("a queue pair");
        pair.handles -= 1;
        pair.handles == 0
    }

    /// Returns whether a completion queue is one of a shared receive queue.
    pub(super) fn completes_xrc(&self, completions: u64) -> bool {
        let mut queues = self.shared.values().filter_map(|queue| queue.xrc);
        queues.any(|xrc| xrc.completions == completions)
    }
}

impl FakePair {
    pub(super) fn new(kind: QueuePairKind, context: u64) -> Self {
        Self {
            kind,
            q_key: 0,
            context,
            domain: 0,
            state: QueuePairState::Reset,
            attributes: QueuePairAttributes::to(QueuePairState::Reset),
            sizes: QueuePairSizes::default(),
            send_completions: 0,
            receive_completions: 0,
            shared: None,
            destination: 0,
            access: 0,
            responder_resources: 0,
            sends: VecDeque::new(),
            silent: 0,
            receives: VecDeque::new(),
            xrc: None,
            handles: 1,
        }
    }
}
