//! Settings of channels with several peers.

use std::{sync::Arc, time::Duration};

use ibex_protocol::format::control::MAX_NAME_BYTES;
use ibex_transport::node::SessionShared;

use crate::{
    ChannelBuilder, OpenError, Peer,
    error::{Interface, OpenFailure, REPLIES},
    peer::channel_defaults::ChannelDefaults,
    setting::SettingError,
};

/// A name and settings, from which the channel with each of several peers is opened.
#[derive(Clone, Debug)]
pub struct ChannelTemplate {
    name: String,
    pub(crate) defaults: ChannelDefaults,
    pub(crate) interface: Interface,
    /// The first setting that was out of its range.
    pub(crate) refused: Option<SettingError>,
}

impl ChannelTemplate {
    /// Creates a template with these settings.
    pub(crate) fn with(defaults: ChannelDefaults, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            defaults,
            interface: Interface::Channel,
            refused: None,
        }
    }

    /// Makes errors name this interface.
    pub fn told_as(mut self, interface: Interface) -> Self {
        self.interface = interface;
        // Calls carry theirs in their own frames.
        self.defaults.trace_context &= !matches!(interface, Interface::Caller | Interface::Service);
        self
    }

    pub(crate) fn note(&mut self, checked: Result<(), SettingError>) {
        self.refused = self.refused.or(checked.err());
    }

    /// Returns how long a blocking call waits for the peer to open its end.
    pub fn wait_for_open(&self) -> Duration {
        self.defaults.open_timeout
    }

    /// Returns the template if every setting is in its range.
    pub fn checked(self) -> Result<Self, OpenError> {
        Ok(self.check()?)
    }

    pub(crate) fn check(mut self) -> Result<Self, SettingError> {
        match self.refused.take() {
            Some(refused) => Err(refused),
            None => Ok(self),
        }
    }

    /// Returns [`ChannelBuilder::max_in_flight`].
    #[must_use]
    pub fn max_in_flight(&self) -> u64 {
        self.defaults.max_in_flight
    }

    /// Returns [`ChannelBuilder::max_message_bytes`].
    #[must_use]
    pub fn max_message_bytes(&self) -> u64 {
        self.defaults.max_message_bytes
    }

    /// Returns the name of the channel.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the template of a service's replies; this is that of its requests.
    pub fn for_replies(mut self) -> Self {
        self.name.push_str(REPLIES);
        self
    }

    /// Returns an error if the name is empty, or longer than the program may give.
    pub(crate) fn check_name(&self) -> Result<(), OpenFailure> {
        let is_of_calls = matches!(self.interface, Interface::Caller | Interface::Service);
        let suffix = match is_of_calls && self.name.ends_with(REPLIES) {
            true => REPLIES.len(),
            false => 0,
        };
        let (bytes, most) = (self.name.len() - suffix, MAX_NAME_BYTES - suffix);
        match (1..=most).contains(&bytes) {
            true => Ok(()),
            false => Err(OpenFailure::Name { bytes, most }),
        }
    }

    /// Returns the builder of the channel over `session`.
    pub fn over(&self, session: &Arc<SessionShared>) -> ChannelBuilder {
        ChannelBuilder::new(Peer::new(session.clone(), self.defaults), self.clone())
    }
}
