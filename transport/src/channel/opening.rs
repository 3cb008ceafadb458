//! Opening of a channel's end, which returns its handle.

use std::{sync::Arc, time::Duration};

use ibex_protocol::{format::control::ChannelSpec, session::CannotOpen};

use super::{ReceiveHandle, SendHandle};
use crate::{node::SessionShared, runtime::Runtime};

impl Runtime {
    /// Opens the sending end of a channel. This announces the end and returns.
    pub fn open_sender(
        &self,
        session: &Arc<SessionShared>,
        name: &str,
        spec: ChannelSpec,
        open_timeout: Duration,
    ) -> Result<SendHandle, CannotOpen> {
        let end = session
            .requests
            .on_connection(|connection, context| {
                connection
                    .core
                    .open_sender(name, spec, open_timeout, context)
            })
            .unwrap_or(Err(CannotOpen::SessionOver))?;
        Ok(SendHandle::new(end))
    }

    /// Opens the receiving end of a channel. This announces the end and returns. The sender learns
    /// of released messages after `tell_every` of them, or after half a window, at the latest.
    pub fn open_receiver(
        &self,
        session: &Arc<SessionShared>,
        name: &str,
        spec: ChannelSpec,
        open_timeout: Duration,
        tell_every: u64,
    ) -> Result<ReceiveHandle, CannotOpen> {
        let end = session
            .requests
            .on_connection(|connection, context| {
                connection
                    .core
                    .open_receiver(name, spec, open_timeout, tell_every, context)
            })
            .unwrap_or(Err(CannotOpen::SessionOver))?;
        Ok(ReceiveHandle::new(end))
    }
}
