//! What the errors of sending, receiving and waiting have within, and the accessors that they share.

use std::{fmt, io::ErrorKind, sync::Arc, time::Duration};

use ibex_transport::channel::{ChannelError, ChannelFailure, FailureReason, InTheWay, Votes};

use super::wording::Wording;
use crate::{CloseReason, Counts, EndCause, NotOpened, OpenError, PeerAt, Region, Suspension};

/// A failure, of a kind `K` for programs that decide by it.
pub(super) enum Failure<K> {
    /// A failure of one channel. Those of the hot path allocate nothing.
    Channel(ChannelError),
    /// A member of a group stands in the way, or the first of several; a call may meet it again and
    /// again.
    Member(K, InTheWay<Arc<PeerAt>>),
    /// A failure of which no more is known. It allocates nothing.
    Plain(K, &'static str),
    /// Any other failure.
    Other(K, Box<Facts>),
}

/// What is known of a failure that is not of one channel alone.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) text: String,
    /// The channel's failure, which the text has within.
    pub(super) fault: Option<ChannelError>,
    pub(super) channel: Option<String>,
    pub(super) peer: Option<String>,
    pub(super) member: Option<PeerAt>,
    pub(super) cause: Option<EndCause>,
    /// The time for which the window of a group's member was full.
    pub(super) full_for: Option<Duration>,
    /// The suspensions of peers from which an answer might have come.
    pub(super) suspended: Vec<Arc<Suspension>>,
    /// A message of a group, and how many acknowledgements of it were asked for.
    pub(super) quorum: Option<(u64, usize)>,
    pub(super) votes: Option<Votes<PeerAt>>,
    /// A region that was not provided.
    pub(super) region: Option<Region>,
    /// The error of opening an end.
    pub(super) opening: Option<OpenError>,
}

/// The kinds of an error.
pub(super) trait ChannelErrorKind: Copy {
    /// What the error says of a channel at which a call would have to wait.
    const WOULD_BLOCK: &'static str;
    /// The kind of a socket's error whose peer has ended the connection in order.
    const ENDED_BY_PEER: ErrorKind;

    /// Returns the kind of a channel's failure.
    fn of(error: &ChannelError) -> Self;

    /// Returns the text before a group's member and behind it, and what follows that before a
    /// suspension, or without one.
    fn of_member(self) -> [&'static str; 4] {
        Default::default()
    }
}

impl<K: ChannelErrorKind> Failure<K> {
    /// Makes a failure with this text; `note` adds what else is known of it.
    pub(super) fn other(kind: K, text: impl fmt::Display, note: impl FnOnce(&mut Facts)) -> Self {
        let mut facts = Box::new(Facts::default());
        facts.text = text.to_string();
        note(&mut facts);
        Self::Other(kind, facts)
    }

    #[inline]
    pub(super) fn kind(&self) -> K {
        match self {
            Self::Channel(fault) => K::of(fault),
            Self::Member(kind, _) | Self::Plain(kind, _) | Self::Other(kind, _) => *kind,
        }
    }

    /// Returns the kind that a socket's error would have, which is `of_kind` unless a cause has one.
    pub(super) fn io_kind(&self, of_kind: ErrorKind) -> ErrorKind {
        match self.cause() {
            Some(EndCause::Goodbye | EndCause::EndedByPeer { .. }) => K::ENDED_BY_PEER,
            Some(EndCause::PeerClosed(CloseReason::Dropped))
                if K::ENDED_BY_PEER == ErrorKind::BrokenPipe =>
            {
                ErrorKind::BrokenPipe
            }
            Some(EndCause::PeerClosed(_) | EndCause::PeerGone { .. }) => ErrorKind::ConnectionReset,
            Some(EndCause::Memory(_)) => ErrorKind::OutOfMemory,
            _ => of_kind,
        }
    }

    pub(super) fn facts(&self) -> Option<&Facts> {
        match self {
            Self::Other(_, facts) => Some(facts),
            Self::Channel(_) | Self::Member(..) | Self::Plain(..) => None,
        }
    }

    /// Returns the failure of the channel, if it is one of a channel.
    pub(super) fn fault(&self) -> Option<&ChannelError> {
        match self {
            Self::Channel(error) => Some(error),
            _ => self.facts()?.fault.as_ref(),
        }
    }

    fn channel_failure(&self) -> Option<&ChannelFailure> {
        self.fault()?.failure()
    }

    /// Returns the reason, where there are facts.
    pub(super) fn reason(&self) -> Option<&FailureReason> {
        self.fault()?.reason()
    }

    pub(super) fn channel(&self) -> Option<&str> {
        let named = self.facts().and_then(|facts| facts.channel.as_deref());
        named.or_else(|| Some(&*self.channel_failure()?.channel))
    }

    pub(super) fn peer(&self) -> Option<&str> {
        let named = self.facts().and_then(|facts| facts.peer.as_deref());
        named.or_else(|| Some(&*self.channel_failure()?.peer))
    }

    pub(super) fn counts(&self) -> Option<Counts> {
        let failure = self.channel_failure()?;
        let has_none = matches!(
            failure.reason,
            FailureReason::UsedAfterFork | FailureReason::NotOpened { .. }
        );
        (!has_none).then_some(failure.counts)
    }

    pub(super) fn not_opened(&self) -> Option<NotOpened> {
        NotOpened::of(self.channel_failure()?)
    }

    pub(super) fn member(&self) -> Option<PeerAt> {
        match self {
            Self::Member(_, member) => Some(*member.peer),
            _ => self.facts()?.member,
        }
    }

    pub(super) fn cause(&self) -> Option<&EndCause> {
        let known = self.facts().and_then(|facts| facts.cause.as_ref());
        known.or_else(|| self.fault()?.cause())
    }

    pub(super) fn suspended(&self) -> Option<&Suspension> {
        match self {
            Self::Member(_, member) => member.suspended.as_deref(),
            Self::Other(_, facts) if !facts.suspended.is_empty() => Some(&facts.suspended[0]),
            _ => self.channel_failure()?.suspended.as_deref(),
        }
    }
}

impl<K: ChannelErrorKind> fmt::Display for Failure<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Channel(ChannelError::WouldBlock) => f.write_str(K::WOULD_BLOCK),
            Self::Channel(error) => Wording(error).fmt(f),
            Self::Plain(_, text) => f.write_str(text),
            Self::Other(_, facts) => f.write_str(&facts.text),
            Self::Member(kind, InTheWay { peer, suspended }) => {
                let [before, behind, joint, alone] = kind.of_member();
                write!(f, "{before}{peer}{behind}")?;
                match suspended {
                    Some(suspended) => write!(f, "{joint}{suspended}"),
                    None => f.write_str(alone),
                }
            }
        }
    }
}

/// An error that no call meets again and again: its kind, its text, and facts beside them.
#[derive(Clone)]
pub(super) struct ErrorReport<K, F> {
    pub(super) kind: K,
    text: String,
    pub(super) facts: F,
}

impl<K, F: Default> ErrorReport<K, F> {
    pub(super) fn new(kind: K, text: impl fmt::Display) -> Box<Self> {
        let (text, facts) = (text.to_string(), F::default());
        Box::new(Self { kind, text, facts })
    }
}

impl<K, F> fmt::Display for ErrorReport<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Writes the kinds of an error, each with the kind that a socket's error would have.
macro_rules! kinds {
    (
        $(#[$about:meta])*
        pub enum $ChannelErrorKind:ident {
            $($(#[doc = $doc:literal])* $kind:ident => $io:ident,)+
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum $ChannelErrorKind {
            $($(#[doc = $doc])* $kind,)+
        }

        impl $ChannelErrorKind {
            pub(super) fn io(self) -> ::std::io::ErrorKind {
                match self {
                    $(Self::$kind => ::std::io::ErrorKind::$io,)+
                }
            }
        }
    };
}

/// Writes what errors about channels have in common.
macro_rules! error_of_channel {
    ($Error:ident, $ChannelErrorKind:ident) => {
        impl $Error {
            /// Returns the kind of failure.
            #[must_use]
            #[inline]
            pub fn kind(&self) -> $ChannelErrorKind {
                self.0.kind()
            }

            /// Returns the channel's name, where the error has it.
            #[must_use]
            pub fn channel(&self) -> Option<&str> {
                self.0.channel()
            }

            /// Returns the peer as an address, where the error has it.
            #[must_use]
            pub fn peer(&self) -> Option<&str> {
                self.0.peer()
            }

            /// Returns how far the channel is, or came, where the error has it. At a receiving end
            /// `sent` is 0, because that end does not know that number.
            #[must_use]
            pub fn counts(&self) -> Option<$crate::Counts> {
                self.0.counts()
            }

            /// Returns what ended the channel, if it broke.
            #[must_use]
            pub fn cause(&self) -> Option<&$crate::EndCause> {
                self.0.cause()
            }

            /// Returns what is known of an end that the peer has not opened in time.
            #[must_use]
            pub fn not_opened(&self) -> Option<$crate::NotOpened> {
                self.0.not_opened()
            }

            /// Returns the suspension of the session, if the call had no chance because the session
            /// has no connection, or one over which the peer's host is silent: since when, why, and
            /// what this node does about it. The program at the other end is not to blame then. Of a
            /// group or a fan-in, it is that of a peer that might have answered.
            #[must_use]
            pub fn suspended(&self) -> Option<&$crate::Suspension> {
                self.0.suspended()
            }
        }

        impl From<ibex_transport::channel::ChannelError> for $Error {
            #[inline]
            fn from(error: ibex_transport::channel::ChannelError) -> Self {
                Self(Failure::Channel(error))
            }
        }

        $crate::error::failure::shell!($Error, |error| error.0.io_kind(error.kind().io()));
    };
}

/// Writes the traits of an error that wraps one with its text.
macro_rules! shell {
    ($Error:ident, |$error:ident| $io_kind:expr) => {
        impl ::std::fmt::Display for $Error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.0.fmt(f)
            }
        }

        impl ::std::error::Error for $Error {}

        ibex_base::debug_as_display!($Error);

        /// Keeps the error within, and chooses the kind that a socket's error would have.
        impl From<$Error> for ::std::io::Error {
            fn from($error: $Error) -> Self {
                Self::new($io_kind, $error)
            }
        }
    };
}

pub(super) use {error_of_channel, kinds, shell};
