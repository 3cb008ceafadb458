//! The error of opening an end.

use std::fmt;

use super::{
    failure::{ErrorReport, kinds, shell},
    subject,
};
use crate::setting::SettingError;
use ibex_base::fork::UsedAfterFork;
use ibex_protocol::{format::control::Role, session::CannotOpen};
use ibex_transport::channel::EndLabel;

/// The error of a call that opens an end: of a channel, a fan-in, a group, a publisher, a caller or a service.
///
/// The text names the end, the channel, the peer, the reason and the next step.
/// [`kind`](Self::kind) is for programs that decide by it. A peer whose message type differs is no
/// such error: the first call that waits for the peer tells of it.
///
/// ```
/// use ibex::{OpenError, OpenErrorKind, Peer, Raw, Sender};
///
/// /// Opens the channel, unless the session is over.
/// fn open(peer: &Peer) -> Result<Option<Sender<[u8], Raw>>, OpenError> {
///     match peer.channel("wal").codec::<Raw>().sender() {
///         Ok(sender) => Ok(Some(sender)),
///         Err(error) if error.kind() == OpenErrorKind::SessionOver => Ok(None),
///         Err(error) => Err(error),
///     }
/// }
/// ```
///
/// | kind | what helps |
/// |---|---|
/// | [`AlreadyOpen`](OpenErrorKind::AlreadyOpen) | to use or drop the first handle, or another name |
/// | [`TooMany`](OpenErrorKind::TooMany) | to drop some, or a higher `max_channels` |
/// | [`SessionOver`](OpenErrorKind::SessionOver) | to connect or accept again |
/// | [`NodeClosed`](OpenErrorKind::NodeClosed) | another node |
/// | [`Memory`](OpenErrorKind::Memory) | smaller settings, or a later attempt |
/// | [`Name`](OpenErrorKind::Name) | another name |
/// | [`Alignment`](OpenErrorKind::Alignment), [`SameVersions`](OpenErrorKind::SameVersions) | another message type |
/// | [`Setting`](OpenErrorKind::Setting) | another value of the [setting](OpenError::setting) |
/// | [`UsedAfterFork`](OpenErrorKind::UsedAfterFork) | the process that made the node |
#[derive(Clone)]
pub struct OpenError(Box<ErrorReport<OpenErrorKind, RefusedEnd>>);

kinds! {
    /// The kinds of an [`OpenError`].
    pub enum OpenErrorKind {
        /// The node has this end already, or a service or publisher of this name. A name may be used once in each
        /// direction.
        AlreadyOpen => AddrInUse,
        /// The session has as many open ends as its limit allows.
        TooMany => Other,
        /// The session has ended, or is ending.
        SessionOver => ConnectionReset,
        /// The node of this process was closed.
        NodeClosed => ConnectionAborted,
        /// The kernel refused memory for the end.
        Memory => OutOfMemory,
        /// The name is empty or too long.
        Name => InvalidInput,
        /// The message type needs an alignment that channels do not carry.
        Alignment => InvalidInput,
        /// The two versions of a message type are the same bytes.
        SameVersions => InvalidInput,
        /// A setting is out of its range.
        Setting => InvalidInput,
        /// The process is a fork of the one that made the node.
        UsedAfterFork => Other,
    }
}

/// What is known of an end that could not be opened.
#[derive(Clone, Default)]
struct RefusedEnd {
    channel: Option<String>,
    peer: Option<String>,
    end: Option<Role>,
    setting: Option<&'static str>,
}

/// An end that was refused for one peer.
pub(crate) struct Refusal {
    /// The channel's name.
    pub(crate) channel: String,
    /// The peer, as an address.
    pub(crate) peer: String,
    /// The end that was to be opened.
    pub(crate) end: Role,
    /// The reason.
    pub(crate) reason: OpenFailure,
    /// What the end was to be; `None` for a channel of messages.
    pub(crate) label: Option<&'static EndLabel>,
    /// What the end is that is open already, if it is.
    pub(crate) holder: Option<&'static EndLabel>,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            channel,
            peer,
            end,
            reason,
            label,
            holder,
        } = self;
        let subject = subject(*label, channel, peer);
        match label {
            None => write!(f, "cannot open the {end} of {subject}: ")?,
            Some(label) => write!(f, "cannot open {}{subject}: ", label.opened)?,
        }
        if *reason != OpenFailure::AlreadyOpen || (label.is_none() && holder.is_none()) {
            return reason.fmt(f);
        }
        let what = holder.map_or("a channel of messages", |holder| holder.holder);
        let advice = match label {
            Some(label) if Some(*label) == *holder => label.if_taken,
            _ => "choose another name, or drop what has it first",
        };
        write!(
            f,
            "this node has {what} of this name with that peer already; {advice}"
        )
    }
}

impl OpenError {
    /// Makes the error of a name that an end with all peers cannot have.
    pub(crate) fn of_name(name: &str, kind: OpenErrorKind, text: impl fmt::Display) -> Self {
        let mut report = ErrorReport::<_, RefusedEnd>::new(kind, text);
        report.facts.channel = Some(name.to_owned());
        Self(report)
    }

    /// Makes the error of opening a publisher.
    pub(crate) fn of_publisher(name: &str, reason: &OpenFailure) -> Self {
        let kind = reason.kind();
        match kind {
            OpenErrorKind::AlreadyOpen => Self::of_name(
                name,
                kind,
                format_args!(
                    "this node has a publisher of channel \"{name}\" already; use that one, or \
                     drop it first"
                ),
            ),
            _ => Self::of_name(
                name,
                kind,
                format_args!("cannot open a publisher of channel \"{name}\": {reason}"),
            ),
        }
    }

    /// Returns the kind of failure.
    #[must_use]
    pub fn kind(&self) -> OpenErrorKind {
        self.0.kind
    }

    /// Returns whether a later attempt in the same session may succeed: there was no memory, or
    /// too many ends were open.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self.kind(), OpenErrorKind::Memory | OpenErrorKind::TooMany)
    }

    /// Returns the name of the channel or service, where the error has it.
    #[must_use]
    pub fn channel(&self) -> Option<&str> {
        self.0.facts.channel.as_deref()
    }

    /// Returns the peer as an address, unless the end was to be one with all peers.
    #[must_use]
    pub fn peer(&self) -> Option<&str> {
        self.0.facts.peer.as_deref()
    }

    /// Returns the end of a channel that was to be opened.
    #[must_use]
    pub fn end(&self) -> Option<Role> {
        self.0.facts.end
    }

    /// Returns the name of the setting that is out of its range, that of the builder's method.
    #[must_use]
    pub fn setting(&self) -> Option<&'static str> {
        self.0.facts.setting
    }

    /// Returns whether no end of the session can be opened any more.
    #[must_use]
    pub fn is_end(&self) -> bool {
        let kind = self.kind();
        matches!(kind, OpenErrorKind::SessionOver | OpenErrorKind::NodeClosed)
    }
}

impl OpenFailure {
    fn kind(&self) -> OpenErrorKind {
        match self {
            Self::AlreadyOpen => OpenErrorKind::AlreadyOpen,
            Self::TooMany { .. } => OpenErrorKind::TooMany,
            Self::SessionOver => OpenErrorKind::SessionOver,
            Self::NodeClosed => OpenErrorKind::NodeClosed,
            Self::Memory(_) => OpenErrorKind::Memory,
            Self::Name { .. } => OpenErrorKind::Name,
            Self::Alignment { .. } => OpenErrorKind::Alignment,
            Self::SameVersions { .. } => OpenErrorKind::SameVersions,
            Self::Setting(_) => OpenErrorKind::Setting,
            Self::UsedAfterFork(_) => OpenErrorKind::UsedAfterFork,
        }
    }
}

impl From<Refusal> for OpenError {
    fn from(refusal: Refusal) -> Self {
        let mut report = ErrorReport::new(refusal.reason.kind(), &refusal);
        report.facts = RefusedEnd {
            channel: Some(refusal.channel),
            peer: Some(refusal.peer),
            end: Some(refusal.end),
            setting: match refusal.reason {
                OpenFailure::Setting(error) => Some(error.setting),
                _ => None,
            },
        };
        Self(report)
    }
}

impl From<SettingError> for OpenError {
    fn from(error: SettingError) -> Self {
        let mut report = ErrorReport::<_, RefusedEnd>::new(OpenErrorKind::Setting, error);
        report.facts.setting = Some(error.setting);
        Self(report)
    }
}

impl From<UsedAfterFork> for OpenError {
    fn from(error: UsedAfterFork) -> Self {
        Self(ErrorReport::new(OpenErrorKind::UsedAfterFork, error))
    }
}

shell!(OpenError, |error| error.kind().io());

/// The reason for which a channel's end could not be opened.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenFailure {
    /// The node has this end already. A name may be used once in each direction.
    #[error(
        "it is open already; use or drop the first handle (a sender can be cloned; a publisher of \
         the node has the senders of its name, a fan-in or a service the receivers)"
    )]
    AlreadyOpen,
    /// The session has as many open ends as its limit allows.
    #[error(
        "the session has {limit} open ends, its limit, with those that were dropped and that the \
         peer has not opened yet; drop some, let the peer open its own, or raise max_channels at \
         both nodes"
    )]
    TooMany {
        /// The limit, the smaller of both nodes'.
        limit: usize,
    },
    /// The session has ended, or is ending.
    #[error(
        "the session has ended, for the reason that the node's events tell; connect or accept \
         again, with a node that has not been closed"
    )]
    SessionOver,
    /// The node of this process was closed.
    #[error("this node was closed; make another and connect or accept with it")]
    NodeClosed,
    /// The kernel refused memory; the text says for what, and what would need less.
    #[error("{0}")]
    Memory(String),
    /// The name is empty or too long.
    #[error("its name has {bytes} bytes; it may have 1 to {most}")]
    Name {
        /// The name's length.
        bytes: usize,
        /// The longest that it may be.
        most: usize,
    },
    /// The message type needs an alignment that channels do not carry.
    #[error("the message type is aligned to {alignment}; channels carry 8, 16, 32 or 64")]
    Alignment {
        /// The alignment, in bytes.
        alignment: usize,
    },
    /// The two versions of a message type are the same bytes.
    #[error(
        "both of its versions are {schema}, so nothing tells their messages apart; open it with \
         one type, or rename a field whose meaning has changed"
    )]
    SameVersions {
        /// The schema of both.
        schema: String,
    },
    /// A setting is out of its range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The process is a fork of the one that made the node.
    #[error(transparent)]
    UsedAfterFork(#[from] UsedAfterFork),
}

impl From<CannotOpen> for OpenFailure {
    fn from(refused: CannotOpen) -> Self {
        match refused {
            CannotOpen::AlreadyOpen => OpenFailure::AlreadyOpen,
            CannotOpen::TooMany { limit } => OpenFailure::TooMany { limit },
            CannotOpen::SessionOver => OpenFailure::SessionOver,
            CannotOpen::Memory(why) => OpenFailure::Memory(why),
        }
    }
}

ibex_base::debug_as_display!(OpenFailure);
