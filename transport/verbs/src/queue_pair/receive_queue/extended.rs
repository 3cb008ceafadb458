//! Shared receive queues of extended connections.

use std::sync::Arc;

use super::{RECEIVE_BATCH, ReceiveQueue, ReceiveQueueOwner, SharedReceiveQueueObject};
use crate::{
    completion::queue::{CompletionQueue, CompletionQueueObject},
    device::{new_tag, requested_size::RequestedSize},
    error::VerbsError,
    memory::protection_domain::ProtectionDomain,
    provider::xrc::XrcReceivesInit,
    queue_pair::{
        request_table::RequestTable,
        xrc::{OpenXrcDomain, XrcDomain},
    },
};

/// The objects that a queue of extended connections keeps alive.
pub(super) type Parts = (Arc<CompletionQueueObject>, Arc<OpenXrcDomain>);

impl ReceiveQueue {
    /// Makes a queue of extended connections; returns its number too.
    pub(in crate::queue_pair) fn of_xrc(
        domain: &ProtectionDomain,
        xrc: &XrcDomain,
        completions: &CompletionQueue,
        requests: u32,
        entries: u32,
    ) -> Result<(Self, u32), VerbsError> {
        let domain = Arc::clone(domain.inner());
        let (xrc, completions) = (Arc::clone(xrc.inner()), Arc::clone(completions.inner()));
        let context = Arc::clone(&domain.context);
        context.check_same("XRC domain", xrc.context())?;
        context.check_same("completion queue of receives", &completions.context)?;
        let limits = context.attributes();
        let limits = [
            RequestedSize::new(
                "a shared receive queue of that depth",
                requests,
                limits.max_shared_receive_requests,
                "its depth",
            ),
            RequestedSize::new(
                "a shared receive queue with that many scatter entries",
                entries,
                limits.max_shared_receive_entries,
                "the entries of one receive",
            ),
        ];
        let tag = new_tag();
        let init = XrcReceivesInit {
            xrc_domain: xrc.handle,
            completions: completions.handle,
            requests,
            entries,
            tag,
        };
        // SAFETY: both domains and the completion queue are alive, and of one context.
        let made = unsafe { context.provider().create_xrc_receives(domain.handle, &init) };
        let made = made.map_err(|errno| context.refused("ibv_create_srq_ex", errno, &limits))?;
        let queue = Self {
            target: ReceiveQueueOwner::Shared(Arc::new(SharedReceiveQueueObject {
                handle: made.handle,
                tag,
                domain,
                _xrc: Some((completions, xrc)),
            })),
            post: context.opened().hot.post_shared_receive,
            table: RequestTable::new(RECEIVE_BATCH, made.entries as usize),
            capacity: made.requests,
            outstanding: 0,
        };
        Ok((queue, made.number))
    }
}
