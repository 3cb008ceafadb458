//! A sending end that outlives its handles: it stays open as long as its session, and whoever
//! wants to send on its name next finds it.
//!
//! The end itself counts as one of its handles, and no handle of it is ever favoured. It is
//! found by its session's link, so nothing keeps it that the session does not keep anyway.

use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use ibex_base::fork;
use ibex_protocol::{format::control::ChannelSpec, session::CannotOpen};

use super::SendHandle;
use crate::{endpoint::send_end::SendEnd, node::SessionShared, runtime::Runtime};

impl Runtime {
    /// A handle of the sending end of `name` that all callers of this function share. The first
    /// of them opens it; so does the next one when the channel has ended.
    ///
    /// # Errors
    /// As [`open_sender`](Self::open_sender): the name is open already if it is not shared.
    pub fn shared_sender(
        &self,
        session: &Arc<SessionShared>,
        name: &str,
        spec: &ChannelSpec,
        open_timeout: Duration,
    ) -> Result<SendHandle, CannotOpen> {
        loop {
            let found = self.on_link(session.id, |link, context| {
                if let Some(end) = link.core.ends.senders.shared(name) {
                    return Ok((end, false));
                }
                let end = link
                    .core
                    .open_sender(name, spec.clone(), open_timeout, context)?;
                // Nobody else has seen it, and no handle of it is inside.
                end.bias.withdraw();
                end.shared.0.store(true, Ordering::Relaxed);
                Ok((end, true))
            });
            let (end, is_new) = found.unwrap_or(Err(CannotOpen::SessionOver))?;
            // A new one may be over as well: the caller is to hear why.
            if is_new || !end.state.is_over() {
                return Ok(SendHandle::of_shared(end));
            }
            end.forsake();
        }
    }
}

impl SendHandle {
    /// The longest message that the session's wires carry in one piece. Longer ones get memory of
    /// their own where wires carry them; in shared memory the ring takes longer ones too.
    #[must_use]
    pub fn eager_bytes(&self) -> usize {
        self.end.session.carrier.eager_bytes()
    }

    /// Lets out what was sent, where callers turn the engine and wires carry it.
    pub fn let_out(&self) {
        if !self.shares_memory() && !fork::is_child() {
            self.end.session.let_out();
        }
    }
}

impl SendEnd {
    /// Closes an end that is over, so that its name may be opened again. Handles that are left
    /// answer that it is over.
    fn forsake(&self) {
        // One of those who find it takes back what it counted as, and no handle does what is
        // done here once more.
        if self.shared.0.swap(false, Ordering::Relaxed) {
            self.handles.fetch_sub(1, Ordering::AcqRel);
            self.close(self.parting());
        }
    }
}
