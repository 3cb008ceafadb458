//! The kind of handle that a program has for a channel's end, which determines the terms of its
//! errors.
//!
//! Calls and byte streams use channels, and pass on their errors. A caller of a service has no
//! sender to drop and no message to send again. So an error states fact and advice in the terms of
//! the handle that returned it. Errors here do not state whether a call was executed; the call adds
//! that.

use std::fmt;

/// The kind of handle that a program has for a channel's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interface {
    /// A sender or a receiver of messages.
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
pub(crate) const REPLIES: &str = "/replies";

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
    /// Returns the number by which an end carries its interface.
    pub fn tag(self) -> u8 {
        self as u8
    }

    /// Returns the interface of an end with this tag.
    pub fn of_tag(tag: u8) -> Self {
        let others = [Self::Caller, Self::Service, Self::Stream, Self::Listener];
        let tagged = others.into_iter().find(|other| other.tag() == tag);
        tagged.unwrap_or(Self::Channel)
    }

    /// Returns the text for the channel `name` with `peer` in the terms of this interface.
    pub fn subject(self, name: &str, peer: &str) -> String {
        let service = name.strip_suffix(REPLIES).unwrap_or(name);
        match self {
            Self::Channel => format!("channel \"{name}\" with {peer}"),
            Self::Caller => format!("service \"{service}\" of {peer}"),
            Self::Service => format!("service \"{service}\" for {peer}"),
            Self::Stream => {
                // The name ends with the listener's name, the stream's number and the direction of
                // the bytes.
                let (stream, _way) = name.rsplit_once('/').unwrap_or((name, ""));
                format!("byte stream \"{stream}\" with {peer}")
            }
            Self::Listener => format!("byte streams \"{name}\" with {peer}"),
        }
    }

    /// Returns what to look for if the peer is there and takes nothing. A stopped process keeps its
    /// connections, so no time-out of the session applies.
    pub(super) fn see_that_it_runs(self) -> String {
        let until_taken = match self {
            Self::Channel => "takes messages and drops them",
            Self::Caller => "asks its service for the next request",
            Self::Service => "takes its replies",
            Self::Stream => "reads",
            Self::Listener => "accepts",
        };
        format!(
            "see that the process there runs, is not stopped, and {until_taken}; the session does \
             not end for that"
        )
    }

    /// Returns what a program does with an end that had no room.
    pub(super) fn attempt(self) -> &'static str {
        match self {
            Self::Stream => "write",
            _ => "attempt",
        }
    }
}
