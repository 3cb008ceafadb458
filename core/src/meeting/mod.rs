//! How nodes meet: the listener and the dialer as engines turn them, and sessions that resume.

pub(crate) mod connector;
pub(crate) mod dialing;
pub(crate) mod listener;
pub(crate) mod resuming;
