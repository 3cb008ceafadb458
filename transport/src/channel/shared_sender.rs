//! A sending end that outlives its handles. It stays open as long as its session, and the next
//! caller that wants to send on its name finds it.
//!
//! The end itself counts as one of its handles, and no handle of it is ever favoured. Its session's
//! connection finds it, so nothing but the session keeps it alive.

use std::sync::{Arc, atomic::Ordering};
use std::time::Duration;

use ibex_base::fork;
use ibex_protocol::{format::control::ChannelSpec, session::CannotOpen};

use super::SendHandle;
use crate::{endpoint::send_end::SendEnd, node::SessionShared, runtime::Runtime};

impl Runtime {
    /// Returns a handle of the sending end of `name`, which all callers of this function share. The
    /// first caller opens it. After the channel has ended, the next caller opens it again.
    ///
    /// # Errors
    /// Fails as [`open_sender`](Self::open_sender) does. An end of this name that is not shared
    /// counts as open already.
    pub fn shared_sender(
        &self,
        session: &Arc<SessionShared>,
        name: &str,
        spec: &ChannelSpec,
        open_timeout: Duration,
    ) -> Result<SendHandle, CannotOpen> {
        loop {
            let found = session.requests.on_connection(|connection, context| {
                if let Some(end) = connection.core.ends.senders.shared(name) {
                    return Ok((end, false));
                }
                let end = connection
                    .core
                    .open_sender(name, spec.clone(), open_timeout, context)?;
                // No other thread has seen the new end, and no handle of it is inside.
                end.bias.withdraw();
                end.shared.0.store(true, Ordering::Relaxed);
                Ok((end, true))
            });
            let (end, is_new) = found.unwrap_or(Err(CannotOpen::SessionOver))?;
            // A new end may be over as well. It is returned, so that the caller learns why.
            if is_new || !end.state.is_over() {
                return Ok(SendHandle::of_shared(end));
            }
            end.forsake();
        }
    }
}

impl SendHandle {
    /// Returns the length of the longest message that the session's wire carries in one piece. Over
    /// a wire, longer messages get separate memory. In shared memory the ring takes longer ones
    /// too.
    #[must_use]
    pub fn eager_bytes(&self) -> usize {
        self.end.session.frame_path.eager_bytes()
    }

    /// Transmits published messages, where callers turn the engine and a wire carries the messages.
    pub fn let_out(&self) {
        if !fork::is_child() {
            self.end.session.let_out();
        }
    }
}

impl SendEnd {
    /// Closes an end that is over, so that its name may be opened again. Remaining handles report
    /// that the channel is over.
    fn forsake(&self) {
        // Several callers may find the end over. Only the first of them takes back the count of the
        // end itself and closes it.
        if self.shared.0.swap(false, Ordering::Relaxed) {
            // HANDLES, pairs with the drop of the last `SendHandle`.
            self.handles.fetch_sub(1, Ordering::Release);
            self.close(self.parting());
        }
    }
}
