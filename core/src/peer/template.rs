//! Settings of channels with several peers.

use std::{sync::Arc, time::Duration};

use ibex_protocol::format::control::MAX_NAME_BYTES;
use ibex_transport::{channel::EndLabel, node::SessionShared};

use crate::{
    ChannelBuilder, OpenError, Peer, error::OpenFailure, peer::channel_defaults::ChannelDefaults,
    setting::SettingError,
};

/// A name and settings, from which the channel with each of several peers is opened.
#[derive(Clone, Debug)]
pub struct ChannelTemplate {
    name: String,
    pub(crate) defaults: ChannelDefaults,
    /// What the ends are in errors.
    pub(crate) label: Option<&'static EndLabel>,
    /// The bytes at the end of the name that the program did not give.
    suffix: usize,
    /// The first setting that was out of its range.
    pub(crate) refused: Option<SettingError>,
}

impl ChannelTemplate {
    /// Creates a template with these settings.
    pub(crate) fn with(defaults: ChannelDefaults, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            defaults,
            label: None,
            suffix: 0,
            refused: None,
        }
    }

    /// Says what the ends are in errors.
    pub fn labeled(mut self, label: &'static EndLabel) -> Self {
        self.label = Some(label);
        self
    }

    /// Leaves trace contexts out of messages, whatever the program has set: its frames carry them.
    pub fn untraced(mut self) -> Self {
        self.defaults.trace_context = false;
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

    /// Adds to the name that the program gave.
    pub fn with_suffix(mut self, suffix: &str) -> Self {
        self.name.push_str(suffix);
        self.suffix += suffix.len();
        self
    }

    /// Returns an error if the name is empty, or longer than the program may give.
    pub(crate) fn check_name(&self) -> Result<(), OpenFailure> {
        let bytes = self.name.len() - self.suffix;
        let most = MAX_NAME_BYTES - self.suffix;
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
