//! The reasons why a value did not become bytes, and why bytes did not become a value.
//!
//! These errors are causes, not yet diagnoses: the channel that meets one adds the peer, the
//! channel's name and the sequence, and says what happens next.

#![forbid(unsafe_code)]

use std::error::Error;

/// A write did not fit into the rest of the slot; nothing of it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value needs more room than its slot has")]
pub struct Overflow;

/// The reason why a value was not encoded.
#[derive(Debug, thiserror::Error)]
pub enum EncodeError {
    /// The slot is too small. This is not a fault: the caller tries again with more room, or
    /// reports that the value exceeds the channel's limit.
    #[error(transparent)]
    Overflow(#[from] Overflow),

    /// The value refused to be encoded, and will again however large the slot.
    #[error(transparent)]
    Failed(Box<dyn Error + Send + Sync>),
}

/// The reason why bytes from a peer are not a message of the channel's type.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct Invalid(pub(crate) Box<dyn Error + Send + Sync>);

impl Invalid {
    /// Wraps a decoder's error, or a text that names what was expected and what
    /// was found.
    pub fn new(reason: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(reason.into())
    }
}
