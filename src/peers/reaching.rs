//! An attempt to connect, and the session that it leads to.

use std::{io, sync::Arc};

use ibex_bootstrap::{Local, dial_once};
use ibex_transport::{engine::Admission, runtime::Runtime};

use crate::{
    ConnectError, Peer, PeerId,
    channel_defaults::ChannelDefaults,
    listener::{admission, admit},
    resuming::{ATTEMPT, Resuming},
};

/// Parts of a node that its keepers connect with.
#[derive(Clone)]
pub(crate) struct Reaching {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) local: Local,
    pub(crate) resuming: Resuming,
    pub(crate) max_channels: u32,
    pub(crate) channel: ChannelDefaults,
}

impl Reaching {
    /// Dials on another thread, which calls `done`.
    pub(super) fn dial(
        &self,
        address: String,
        is_stopped: impl Fn() -> bool + Send + 'static,
        done: impl FnOnce(Result<Box<Admission>, ConnectError>) + Send + 'static,
    ) -> io::Result<()> {
        let this = self.clone();
        self.resuming.dialers.run(Box::new(move || {
            let is_cancelled = || is_stopped() || this.runtime.is_closed();
            let dialed = dial_once(&address, &this.local, ATTEMPT, &is_cancelled);
            let admit = |established| admission(established, this.max_channels, &this.resuming);
            done(dialed.map(|one| Box::new(admit(one))).map_err(Into::into));
        }))
    }

    pub(super) fn admit(&self, address: &str, admission: Admission) -> Result<Peer, ConnectError> {
        admit(&self.runtime, self.channel, address, admission)
    }
}

/// Identity of the node that answered.
pub(super) fn who(admission: &Admission) -> PeerId {
    PeerId::of(&admission.peer)
}
