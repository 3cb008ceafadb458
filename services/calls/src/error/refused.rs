//! Why a request was given to no handler.

#![forbid(unsafe_code)]

use std::fmt;

use super::CallErrorKind;

/// The reason for which a request was given to no handler, as its number in a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused(pub(crate) u16);

impl Refused {
    /// The call's deadline had passed before a handler could get the request.
    pub(crate) const EXPIRED: Self = Self(1);
    /// The caller has more calls under way than the service takes from one peer.
    pub(crate) const OVERLOADED: Self = Self(2);
    /// The request's bytes are not valid.
    pub(crate) const INVALID: Self = Self(3);
    /// The service ended before a handler got it.
    pub(crate) const CLOSED: Self = Self(4);
    /// The handler handed the request back.
    pub(crate) const BY_HANDLER: Self = Self(5);
    /// The serving node drains and begins no more calls.
    pub(crate) const DRAINING: Self = Self(6);

    /// By the times of the calls before it, its deadline would pass before a handler has answered it.
    pub(crate) const TOO_LATE: Self = Self(7);

    /// Returns the kind of the call's error, and what its text says. `None` for a number that this
    /// release does not know.
    pub(super) fn meaning(self) -> Option<(CallErrorKind, &'static str)> {
        Some(match self {
            Self::EXPIRED => (
                CallErrorKind::DeadlineExceeded,
                "its deadline passed before a handler got it; call again, with more time",
            ),
            Self::OVERLOADED => (
                CallErrorKind::Overloaded,
                "the service takes fewer calls of one peer at a time; lower the caller's \
                 max_in_flight, or raise the service's",
            ),
            Self::INVALID => (
                CallErrorKind::InvalidRequest,
                "the service found its bytes not valid; see that both programs have the same codec",
            ),
            Self::CLOSED => (
                CallErrorKind::ServiceEnded,
                "the service ended before a handler got it; make the caller anew, in another \
                 session if this one has ended, and call again",
            ),
            Self::BY_HANDLER => (
                CallErrorKind::HandedBack,
                "the handler handed it back; call again later",
            ),
            Self::DRAINING => (
                CallErrorKind::Draining,
                "its node drains and begins no call any more; send it to another node, or again \
                 after the restart",
            ),
            Self::TOO_LATE => (
                CallErrorKind::Overloaded,
                "the service has too many calls to answer this one before its deadline; call less, \
                 or give the service more handlers",
            ),
            Self(_) => return None,
        })
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.meaning() {
            Some((_, text)) => f.write_str(text),
            None => write!(
                f,
                "reason {}, which this release does not know; update this program, or call again \
                 later",
                self.0
            ),
        }
    }
}
