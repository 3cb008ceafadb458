//! The failure of a channel that the errors of its handles have within.

use std::fmt;

use ibex_transport::channel::{ChannelError, ChannelFailure, FailureReason};

use super::{NotOpened, wording::Wording};
use crate::{Counts, EndCause, Suspension};

/// A failure of a channel, and what its handle's errors say of it.
pub(crate) enum ChannelFault {
    /// The peer has not opened its end in time.
    NotOpened(Box<NotOpened>),
    /// Any other failure.
    Other(ChannelError),
}

impl ChannelFault {
    /// Returns the failure, unless the peer has not opened its end in time.
    #[inline]
    pub(super) fn other(&self) -> Option<&ChannelError> {
        match self {
            Self::NotOpened(_) => None,
            Self::Other(error) => Some(error),
        }
    }

    /// Returns whether the call did not wait and would have had to.
    pub(super) fn would_block(&self) -> bool {
        matches!(self, Self::Other(ChannelError::WouldBlock))
    }

    fn facts(&self) -> Option<&ChannelFailure> {
        self.other()?.failure()
    }

    /// Returns the reason, where there are facts.
    pub(super) fn reason(&self) -> Option<&FailureReason> {
        self.other()?.reason()
    }

    /// Returns whether the same call may succeed later.
    #[inline]
    pub(super) fn is_transient(&self) -> bool {
        match self {
            Self::NotOpened(missing) => missing.waited < missing.open_timeout,
            Self::Other(error) => error.is_transient(),
        }
    }

    pub(super) fn channel(&self) -> Option<&str> {
        match self {
            Self::NotOpened(missing) => Some(&missing.channel),
            Self::Other(error) => error.failure().map(|failure| &*failure.channel),
        }
    }

    pub(super) fn peer(&self) -> Option<&str> {
        match self {
            Self::NotOpened(missing) => Some(&missing.peer),
            Self::Other(error) => error.failure().map(|failure| &*failure.peer),
        }
    }

    pub(super) fn counts(&self) -> Option<Counts> {
        let failure = self.facts()?;
        (!matches!(failure.reason, FailureReason::UsedAfterFork)).then_some(failure.counts)
    }

    pub(super) fn cause(&self) -> Option<&EndCause> {
        self.other()?.cause()
    }

    pub(super) fn not_opened(&self) -> Option<&NotOpened> {
        match self {
            Self::NotOpened(missing) => Some(missing),
            Self::Other(_) => None,
        }
    }

    pub(super) fn suspended(&self) -> Option<&Suspension> {
        match self {
            Self::NotOpened(missing) => missing.suspended.as_deref(),
            Self::Other(error) => error.failure()?.suspended.as_deref(),
        }
    }
}

impl From<ChannelError> for ChannelFault {
    #[inline]
    fn from(error: ChannelError) -> Self {
        match error {
            ChannelError::Failed(failure) => match NotOpened::of(failure) {
                Ok(missing) => Self::NotOpened(missing),
                Err(failure) => Self::Other(failure.into()),
            },
            other => Self::Other(other),
        }
    }
}

impl fmt::Display for ChannelFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotOpened(missing) => missing.fmt(f),
            // The error says what the call found.
            Self::Other(ChannelError::WouldBlock) => f.write_str("it would block"),
            Self::Other(ChannelError::NotOpenYet) => {
                f.write_str("the peer has not opened its end yet")
            }
            Self::Other(ChannelError::Ended) => f.write_str(
                "the channel has ended in order: every sender is gone and everything was received",
            ),
            Self::Other(ChannelError::Failed(failure)) => Wording(failure).fmt(f),
        }
    }
}
