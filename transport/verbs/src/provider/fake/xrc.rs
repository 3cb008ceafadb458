//! Extended reliable connections: domains by file, shared receive queues that senders name, and
//! receiving ends that several processes may hold.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, RawFd};

use rustix::fs::fstat;
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
    provider::{ContextHandle, PairHandle, QueuePairSizes, XrcDomainHandle, xrc::XrcProvider},
};

/// An open domain of extended connections.
#[derive(Debug)]
pub(super) struct FakeXrcDomain {
    pub(super) context: u64,
    /// The domain itself, which all that have opened the same file share.
    pub(super) shared: u64,
    file: Option<(u64, u64)>,
}

/// What a shared receive queue for extended connections has beside receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct FakeXrcReceives {
    /// The open domain, and the domain itself.
    pub(super) domain: (u64, u64),
    pub(super) completions: u64,
}

impl XrcProvider for FakeProvider {
    unsafe fn open_xrc_domain(
        &self,
        context: ContextHandle,
        file: Option<RawFd>,
        flags: i32,
    ) -> Result<XrcDomainHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::OpenXrcDomain)?;
        // SAFETY: the trait's contract.
        let context = unsafe { id_of(context.as_ptr()) };
        if !state.device_of(context).has_xrc {
            return Err(Errno::OPNOTSUPP);
        }
        let file = match file {
            // SAFETY: the caller holds the file open during the call.
            Some(fd) => Some(fstat(unsafe { BorrowedFd::borrow_raw(fd) })?),
            None => None,
        };
        let file = file.map(|found| (found.st_dev, found.st_ino));
        let mut open = state.xrc_domains.values();
        let present = open.find(|domain| file.is_some() && domain.file == file);
        let present = present.map(|domain| domain.shared);
        let shared = match present {
            Some(_) if flags & libc::O_EXCL != 0 => return Err(Errno::INVAL),
            Some(shared) => shared,
            None if flags & libc::O_CREAT == 0 => return Err(Errno::INVAL),
            None => state.new_id(),
        };
        let id = state.new_id();
        let opened = FakeXrcDomain {
            context,
            shared,
            file,
        };
        state.xrc_domains.insert(id, opened);
        Ok(XrcDomainHandle::new(self.handle(id)).expect("a box"))
    }

    unsafe fn create_xrc_receiver(
        &self,
        context: ContextHandle,
        domain: XrcDomainHandle,
    ) -> Result<(PairHandle, u32), Errno> {
        let mut state = self.world.lock();
        state.grant(Call::CreatePair)?;
        // SAFETY: the trait's contract.
        let (context, domain) = unsafe { (id_of(context.as_ptr()), id_of(domain.as_ptr())) };
        let id = state.new_id();
        let pair = FakePair {
            xrc: Some(state.xrc_domains[&domain].shared),
            ..FakePair::new(QueuePairKind::XrcReceive, context)
        };
        state.pairs.insert(id, pair);
        let handle = PairHandle::new(self.handle(id)).expect("a box");
        Ok((handle, id as u32))
    }

    unsafe fn open_xrc_receiver(
        &self,
        _: ContextHandle,
        domain: XrcDomainHandle,
        number: u32,
    ) -> Result<PairHandle, Errno> {
        let mut state = self.world.lock();
        state.grant(Call::OpenPair)?;
        // SAFETY: the trait's contract.
        let domain = unsafe { id_of(domain.as_ptr()) };
        let id = u64::from(number);
        let shared = state.xrc_domains[&domain].shared;
        let pair = state.pairs.get_mut(&id);
        let pair = pair.filter(|pair| pair.xrc == Some(shared));
        pair.ok_or(Errno::INVAL)?.handles += 1;
        Ok(PairHandle::new(self.handle(id)).expect("a box"))
    }
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
