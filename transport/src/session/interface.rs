//! The interface by which a program uses a channel, which determines the wording of its errors.
//!
//! Calls and byte streams use channels, and pass on their errors. A caller of a service has no
//! sender to drop and no message to send again. So an error states fact and advice in the terms of
//! the handle that returned it. Errors here do not state whether a call was executed; the call adds
//! that.
#![forbid(unsafe_code)]

use std::fmt;

use ibex_protocol::format::control::{CloseReason, Role};

use super::{Disconnected, EndCause, NotOpened};

/// The kind of handle that a program has for a channel's end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Interface {
    /// A sender or a receiver of messages.
    #[default]
    Channel,
    /// A caller of a service.
    Caller,
    /// A service.
    Service,
    /// A direction of a byte stream.
    Stream,
    /// A listener, or the end that asks a listener to accept a byte stream.
    Listener,
}

/// Suffix of a channel of replies. The channel of a service's requests has the service's name, and
/// that of its replies has this behind it. So two nodes can each call a service of one name of the
/// other.
pub const REPLIES: &str = "/replies";

/// Returns the name of the service that a channel belongs to.
fn service_of(channel: &str) -> &str {
    channel.strip_suffix(REPLIES).unwrap_or(channel)
}

impl fmt::Display for Interface {
    /// Writes the interface as the error for a taken name calls it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Channel => "a channel of messages",
            Self::Caller => "a caller",
            Self::Service => "a service",
            Self::Stream | Self::Listener => "byte streams",
        })
    }
}

impl Interface {
    /// Returns the text for the channel `name` with `peer` in the terms of this interface.
    #[must_use]
    pub fn subject(self, name: &str, peer: &str) -> String {
        match self {
            Self::Channel => format!("channel \"{name}\" with {peer}"),
            Self::Caller => format!("service \"{}\" of {peer}", service_of(name)),
            Self::Service => format!("service \"{}\" for {peer}", service_of(name)),
            Self::Stream => {
                // The name ends with the listener's name, the stream's number and the direction of
                // the bytes.
                let (stream, _way) = name.rsplit_once('/').unwrap_or((name, ""));
                format!("byte stream \"{stream}\" with {peer}")
            }
            Self::Listener => format!("byte streams \"{name}\" with {peer}"),
        }
    }

    /// Returns what the program at the peer has to do so that sent data is taken.
    pub(crate) fn until_taken(self) -> &'static str {
        match self {
            Self::Channel => "takes messages and drops them",
            Self::Caller => "asks its service for the next request",
            Self::Service => "takes its replies",
            Self::Stream => "reads",
            Self::Listener => "accepts",
        }
    }

    /// Returns what to look for if the peer is there and takes nothing. A stopped process keeps its
    /// connections, so no time-out of the session applies.
    pub(crate) fn see_that_it_runs(self) -> String {
        format!(
            "see that the process there runs, is not stopped, and {}; the session does not end \
             for that",
            self.until_taken()
        )
    }

    pub(crate) fn attempt(self) -> &'static str {
        match self {
            Self::Stream => "write",
            _ => "attempt",
        }
    }

    // ---- Error texts for interfaces other than message channels --------------------------

    pub(crate) fn not_opened(self, error: &NotOpened, waited: fmt::Arguments<'_>) -> String {
        let subject = self.subject(&error.channel, &error.peer);
        let (fact, same, advice) = match self {
            Self::Caller => (
                "the peer did not open it",
                "the peer calls a service of this name as well: one of the two has to serve it",
                "see that the program there has a service of this name and asks it for its next \
                 request",
            ),
            Self::Service => (
                "the peer did not open a caller of it",
                "the peer serves this name as well: one of the two has to call it",
                "see that the program there makes a caller of this name",
            ),
            _ => (
                "the peer did not listen for them",
                "the peer connects by this name as well: one of the two has to listen",
                "see that the program there has a listener of this name and accepts",
            ),
        };
        if error.is_same_there {
            return format!("{subject}: {fact} within {waited}; {same}");
        }
        // The names come from the peer, so they are escaped.
        let names = error.other_names.iter().map(|name| format!("{name:?}"));
        match names.collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => format!("{subject}: {fact} within {waited}; {advice}, "),
            names => format!(
                "{subject}: {fact} within {waited}; it has opened {names}, of which this node has \
                 not opened the other side: check the name at both nodes, "
            ),
        }
    }

    pub(crate) fn disconnected(
        self,
        error: &Disconnected,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let subject = self.subject(&error.channel, &error.peer);
        let have = if self == Self::Listener {
            "have"
        } else {
            "has"
        };
        write!(f, "{subject} {have} ended: ")?;
        match &error.cause {
            EndCause::PeerClosed(reason) => f.write_str(self.closed(*reason))?,
            cause => write!(f, "{cause}")?,
        }
        write!(f, "; {}", self.advice(&error.cause, error.end))
    }

    /// Returns the text for a peer that closed its side.
    fn closed(self, reason: CloseReason) -> &'static str {
        match (reason, self) {
            (CloseReason::Dropped, Self::Caller) => "the peer dropped its service",
            (CloseReason::Dropped, Self::Service) => "the peer dropped its caller",
            (CloseReason::Dropped, Self::Stream) => "the peer reads no more",
            (CloseReason::Dropped, _) => "the peer dropped its listener",
            (CloseReason::Corrupt, _) => "the peer got bytes that are not valid",
            (CloseReason::NoRoom, _) => "the peer has no room",
            (CloseReason::SlotLeaked | CloseReason::Aborted, Self::Stream) => {
                "the peer gave the stream up, or panicked, before it had written all"
            }
            // The protocol crate may know more reasons than this crate.
            (_, _) => "the peer gave it up",
        }
    }

    fn advice(self, cause: &EndCause, end: Role) -> &'static str {
        let has_to_know = end == Role::Sender;
        match (cause, self) {
            (EndCause::RuntimeEnded, _) => {
                "close the node before its runtime is shut down, or make it in a runtime that \
                 lives longer"
            }
            (EndCause::NodeClosed, Self::Caller) => {
                "to go on, make a new node, connect, and make the caller anew"
            }
            (EndCause::NodeClosed, Self::Service) => {
                "to go on, make a new node and the service with it"
            }
            (EndCause::NodeClosed, _) => "to go on, make a new node, and connect or listen with it",
            (cause, Self::Caller) if cause.spares_session() => {
                "the session goes on: drop this caller and its clones, make another, which \
                 waits for the next service of this name"
            }
            (cause, Self::Service) if cause.spares_session() => {
                "the session goes on: drop this service and make another, which waits for the \
                 next caller"
            }
            (cause, Self::Stream) if cause.spares_session() && has_to_know => {
                "the session goes on: ask the peer how much it has read, and connect another \
                 stream for the rest"
            }
            (cause, Self::Stream) if cause.spares_session() => {
                "the session goes on: treat what was read as cut off, and connect another stream"
            }
            (cause, _) if cause.spares_session() => {
                "the session goes on: connect again once the peer listens again"
            }
            (_, Self::Caller) => "connect again and make the caller anew",
            (_, Self::Service) => {
                "connect or accept again, and make the service anew with that peer"
            }
            (_, Self::Stream) if has_to_know => {
                "connect or accept again, and ask the peer how much it has read"
            }
            (_, Self::Stream) => "connect or accept again, and treat what was read as cut off",
            (_, _) => "connect to the node again, and to its listener",
        }
    }
}
