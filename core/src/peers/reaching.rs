//! An attempt to connect, and the session that it leads to.

use std::{sync::Arc, time::Duration};

use ibex_bootstrap::{DialRequest, Local};
use ibex_transport::{engine::Admission, runtime::Runtime};

use crate::{
    ConnectError, Peer, PeerId,
    channel_defaults::ChannelDefaults,
    dialing::{Connecting, Desk},
    listener::admit,
    resuming::ATTEMPT,
};

/// Parts of a node that its keepers connect with.
#[derive(Clone)]
pub(crate) struct Reaching {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) local: Local,
    pub(crate) desk: Desk,
    pub(crate) channel: ChannelDefaults,
    /// Time that the end of a session waits until everything is delivered.
    pub(crate) linger: Duration,
}

impl Reaching {
    /// Begins one attempt.
    pub(super) fn dial(&self, address: &str) -> Result<Connecting, ConnectError> {
        let request = DialRequest {
            address: address.to_owned(),
            local: self.local.clone(),
            timeout: ATTEMPT,
            tries_again: false,
        };
        Connecting::begin(&self.runtime, &self.desk, request)
    }

    pub(super) fn admit(&self, address: &str, admission: Admission) -> Result<Peer, ConnectError> {
        admit(&self.runtime, self.channel, address, admission)
    }
}

/// Identity of the node that answered.
pub(super) fn who(admission: &Admission) -> PeerId {
    PeerId::of(&admission.peer)
}
