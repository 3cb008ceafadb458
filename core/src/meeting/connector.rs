//! Attempts to connect that are made and judged one by one, for those that keep peers connected.

use std::{sync::Arc, time::Duration};

use ibex_bootstrap::{DialRequest, Local};
use ibex_transport::{engine::Admission, runtime::Runtime};

use crate::{
    ConnectError, Peer, PeerId,
    meeting::{
        dialing::{Connecting, Desk},
        listener::admit,
        resuming::ATTEMPT,
    },
    peer::{channel_defaults::ChannelDefaults, template::ChannelTemplate},
};

/// The means of a node to make single attempts to connect. It does not keep the node open.
#[derive(Clone)]
pub struct Connector {
    pub(crate) runtime: Arc<Runtime>,
    pub(crate) local: Local,
    pub(crate) desk: Desk,
    pub(crate) channel: ChannelDefaults,
    pub(crate) linger: Duration,
}

impl Connector {
    /// Begins one attempt, which takes up to 3 s.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: the node was closed.
    pub fn dial(&self, address: &str) -> Result<Connecting, ConnectError> {
        let request = DialRequest {
            address: address.to_owned(),
            local: self.local.clone(),
            timeout: ATTEMPT,
            tries_again: false,
        };
        Connecting::begin(&self.runtime, &self.desk, request)
    }

    /// Makes a session of what an attempt at `address` has led to.
    ///
    /// # Errors
    ///
    /// [`ConnectError`]: the node was closed, or lacks memory or descriptors.
    pub fn admit(&self, address: &str, admission: Admission) -> Result<Peer, ConnectError> {
        admit(&self.runtime, self.channel, address, admission)
    }

    /// Returns the identity of the node that answered an attempt, as it claims it.
    #[must_use]
    pub fn peer_id(admission: &Admission) -> PeerId {
        PeerId::of(&admission.peer)
    }

    /// Returns the time that the end of a session waits until everything is delivered.
    #[must_use]
    pub fn linger(&self) -> Duration {
        self.linger
    }

    /// Begins the settings of a channel with any of the node's peers.
    #[must_use]
    pub fn channel(&self, name: &str) -> ChannelTemplate {
        ChannelTemplate::with(self.channel, name)
    }

    /// Returns what turns the node's engines.
    #[must_use]
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }
}
