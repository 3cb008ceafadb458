//! How queue pairs and shared receive queues of the fake are made.

use std::collections::VecDeque;

use rustix::io::Errno;

use super::{
    Call, FakeProvider,
    handle::id_of,
    world::{FakePair, FakeReceives, Maker},
    xrc::FakeXrcReceives,
};
use crate::{
    abi::queue_pair_kind::QueuePairKind,
    provider::{
        CompletionHandle, CreatedPair, CreatedSharedReceive, PairHandle, QueuePairInit,
        SharedReceiveHandle, SharedReceiveInit, XrcDomainHandle,
    },
};

/// By the contract of [`Provider`](crate::provider::Provider).
impl FakeProvider {
    pub(super) unsafe fn new_pair(&self, init: &QueuePairInit) -> Result<CreatedPair, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let (domain, send_completions, receive_completions, shared) = unsafe {
            (
                id_of(init.domain.as_ptr()),
                id_of(init.send_queue.as_ptr()),
                id_of(init.receive_queue.as_ptr()),
                init.shared.map(|queue| id_of(queue.as_ptr())),
            )
        };
        let context = state.domains[&domain].context;
        state.grant_at(Call::CreatePair, context)?;
        let device = state.device_of(context);
        let (limits, mut sizes) = (&device.attributes, init.sizes);
        let most = limits.max_queue_pair_requests;
        if sizes.send_requests > most
            || sizes.receive_requests > most
            || sizes.send_entries.max(sizes.receive_entries) > limits.max_entries
            || sizes.inline_bytes > device.max_inline_bytes
        {
            return Err(Errno::INVAL);
        }
        if state.pairs.len() >= limits.max_queue_pairs as usize {
            return Err(Errno::NOMEM);
        }
        if init.kind == QueuePairKind::XrcSend && !device.has_xrc {
            return Err(Errno::OPNOTSUPP);
        }
        let (sends, receives) = (sizes.send_requests, sizes.receive_requests);
        sizes.send_requests = device.queue_size(sends);
        if shared.is_none() {
            sizes.receive_requests = device.queue_size(receives);
        }
        let id = state.new_id();
        state.pairs.insert(
            id,
            FakePair {
                domain,
                sizes,
                send_completions,
                receive_completions,
                shared,
                ..FakePair::new(init.kind, context)
            },
        );
        Ok(CreatedPair {
            handle: PairHandle::new(self.handle(id)).expect("a box"),
            number: id as u32,
            sizes,
        })
    }

    pub(super) unsafe fn new_shared_receive(
        &self,
        init: &SharedReceiveInit,
    ) -> Result<CreatedSharedReceive, Errno> {
        let mut state = self.world.lock();
        // SAFETY: the trait's contract.
        let (domain, xrc) = unsafe {
            let ids = |(xrc, completions): (XrcDomainHandle, CompletionHandle)| {
                (id_of(xrc.as_ptr()), id_of(completions.as_ptr()))
            };
            (id_of(init.domain.as_ptr()), init.xrc.map(ids))
        };
        let context = state.domains[&domain].context;
        let call = match xrc {
            None => Call::CreateSharedReceive,
            Some(_) => Call::CreateXrcReceives,
        };
        state.grant_at(call, context)?;
        let limits = &state.device_of(context).attributes;
        if limits.max_shared_receive_queues == 0 {
            return Err(Errno::OPNOTSUPP);
        }
        if init.requests > limits.max_shared_receive_requests
            || init.entries > limits.max_shared_receive_entries
        {
            return Err(Errno::INVAL);
        }
        let requests = state.device_of(context).queue_size(init.requests);
        let id = state.new_id();
        let xrc = xrc.map(|(xrc, completions)| FakeXrcReceives {
            domain: (xrc, state.xrc_domains[&xrc].shared),
            completions,
        });
        let queue = FakeReceives {
            domain,
            context,
            tag: init.tag,
            capacity: requests as usize,
            entries: init.entries as usize,
            limit: 0,
            posted: VecDeque::new(),
            maker: Maker::calls(),
            xrc,
        };
        state.shared.insert(id, queue);
        Ok(CreatedSharedReceive {
            handle: SharedReceiveHandle::new(self.handle(id)).expect("a box"),
            number: id as u32,
            requests,
            entries: init.entries,
        })
    }
}
