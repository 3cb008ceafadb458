//! The interface by which a program uses a channel, and so the words that its errors are told in.
//!
//! Calls and byte streams use channels, and pass on their errors. A caller of a service has no
//! sender to drop and no message to send again. So an error states fact and advice in the words of
//! the handle that returned it. The certainty of a call is not stated here: the call knows it, and
//! adds it.
#![forbid(unsafe_code)]

use std::{cmp::Ordering, fmt};

use ibex_protocol::format::control::{CloseReason, Role};

use super::{Disconnected, EndCause};
use crate::endpoint::error::{MessageTooLong, NoMessage, NotOpened, SchemaMismatch, StayedFull};

/// The handle that a program has of a channel's end.
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
    /// A listener, or the end that asks it to accept a byte stream.
    Listener,
}

impl fmt::Display for Interface {
    /// Writes the interface as an error names it when a name is taken.
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
    /// The channel called `name` with `peer`, as it is known by this interface.
    #[must_use]
    pub fn subject(self, name: &str, peer: &str) -> String {
        match self {
            Self::Channel => format!("channel \"{name}\" with {peer}"),
            Self::Caller => format!("service \"{name}\" of {peer}"),
            Self::Service => format!("service \"{name}\" for {peer}"),
            Self::Stream => {
                // Behind the listener's name and the number stands which way the bytes go.
                let (stream, _way) = name.rsplit_once('/').unwrap_or((name, ""));
                format!("byte stream \"{stream}\" with {peer}")
            }
            Self::Listener => format!("byte streams \"{name}\" with {peer}"),
        }
    }

    /// Returns advice for a wait in which the peer's program takes nothing.
    fn until_taken(self) -> &'static str {
        match self {
            Self::Channel => "takes messages and drops them",
            Self::Caller => "asks its service for the next request",
            Self::Service => "takes its replies",
            Self::Stream => "reads",
            Self::Listener => "accepts",
        }
    }

    fn attempt(self) -> &'static str {
        match self {
            Self::Stream => "write",
            _ => "attempt",
        }
    }

    // ---- The texts of errors, for what is no channel of messages -------------------------

    pub(crate) fn mismatch(
        self,
        error: &SchemaMismatch,
        f: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        let subject = self.subject(&error.channel, &error.peer);
        let (ours, theirs) = (&error.ours.newest, &error.theirs.newest);
        match self {
            Self::Stream | Self::Listener => write!(
                f,
                "{subject}: the peer has something else by this name, {theirs}; nothing was \
                 transferred; choose another name for one of the two, at both nodes"
            ),
            _ => write!(
                f,
                "{subject}: its requests, its replies or their codecs differ; here {ours}, there \
                 {theirs}; no call was executed; make both programs' the same, or give the \
                 service of the new types a new name"
            ),
        }
    }

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
        // They are the peer's words, so they are escaped.
        let names = error.other_names.iter().map(|name| format!("{name:?}"));
        match names.collect::<Vec<_>>().join(", ") {
            names if names.is_empty() => format!("{subject}: {fact} within {waited}; {advice}, "),
            names => format!(
                "{subject}: {fact} within {waited}; it has opened {names}, of which this node has \
                 not opened the other side: check the name at both nodes, "
            ),
        }
    }

    pub(crate) fn too_long(self, error: &MessageTooLong, length: &str) -> String {
        let subject = self.subject(&error.channel, &error.peer);
        let limit = error.limit;
        let (what, here, there) = match self {
            Self::Caller => ("request", "the caller", "the service"),
            Self::Service => ("reply", "the service", "the caller"),
            _ => {
                return format!(
                    "{subject}: a write of {length} bytes is above its limit of {limit}, to which \
                     memory_limit of a node lowers it; raise that, or write less at a time"
                );
            }
        };
        let whose = match error.here_to_there {
            Ordering::Less => format!("that of {here}; raise max_message_bytes here"),
            Ordering::Equal => "that of both nodes; raise max_message_bytes at both".to_owned(),
            Ordering::Greater => format!(
                "that of {there}; raise max_message_bytes there, or memory_limit of its node if \
                 that is what lowers it"
            ),
        };
        format!(
            "{subject}: a {what} of {length} bytes is above its limit of {limit}, {whose}, or \
             split it"
        )
    }

    pub(crate) fn stayed_full(self, error: &StayedFull, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}: nothing was sent within the time-out: there is no room behind what was sent \
             before; a later {} may succeed; see that the program there {}",
            self.subject(&error.channel, &error.peer),
            self.attempt(),
            self.until_taken()
        )
    }

    pub(crate) fn no_message(self, error: &NoMessage, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.subject(&error.channel, &error.peer);
        match error.lacks_room {
            false => write!(
                f,
                "{subject}: nothing came within the time-out; a later read goes on"
            ),
            true => write!(
                f,
                "{subject}: what has come waits for memory: what this process holds of long \
                 messages leaves it no room within the node's memory_limit; it is not lost, and a \
                 later read goes on; drop messages that are held, on whatever channel, or raise \
                 memory_limit"
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

    /// The peer closed its side.
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
            // The crate of the protocol may know more reasons than this one.
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
                "the session goes on: take what was read for cut off, and connect another stream"
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
            (_, Self::Stream) => "connect or accept again, and take what was read for cut off",
            (_, _) => "connect to the node again, and to its listener",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{channel::SendError, session::Counts};
    use ibex_protocol::format::{
        channel_window::ChannelWindow, control::ChannelSpec, message_version::MessageVersion,
    };

    const OTHERS: [Interface; 4] = [
        Interface::Caller,
        Interface::Service,
        Interface::Stream,
        Interface::Listener,
    ];

    /// Words that belong to channels of messages alone.
    const OF_CHANNELS: [&str; 8] = [
        "sender",
        "receiver",
        "fan-in",
        "`versions`",
        "acknowledged",
        "send what",
        "reservation",
        "channel \"",
    ];

    /// Texts name peer and advice, and do not speak of channels.
    fn check(text: &str, advice: &str) {
        for word in OF_CHANNELS {
            assert!(!text.contains(word), "{word}: {text}");
        }
        for part in ["\"quotes", "10.0.0.2:7000", advice] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    fn names(interface: Interface) -> (String, String) {
        let name = match interface {
            Interface::Stream => "quotes/5/there",
            _ => "quotes",
        };
        (name.to_owned(), "10.0.0.2:7000".to_owned())
    }

    #[test]
    fn every_end_of_every_interface_is_told_without_the_words_of_channels() {
        let reasons = CloseReason::ALL;
        let text = || "as the test says".to_owned();
        let mut causes = reasons.map(EndCause::PeerClosed).to_vec();
        causes.extend([
            EndCause::Goodbye,
            EndCause::lost(text()),
            EndCause::DeviceLost { why: text() },
            EndCause::Refused { why: text() },
            EndCause::NodeClosed,
            EndCause::RuntimeEnded,
            EndCause::Memory(text()),
        ]);
        for (cause, end) in causes
            .iter()
            .flat_map(|cause| [(cause, Role::Sender), (cause, Role::Receiver)])
        {
            for interface in OTHERS {
                let (channel, peer) = names(interface);
                let error = Disconnected {
                    channel,
                    peer,
                    end,
                    cause: cause.clone(),
                    counts: Counts::default(),
                    interface,
                };
                let advice = match cause {
                    EndCause::NodeClosed => "make a new node",
                    EndCause::RuntimeEnded => "in a runtime that lives longer",
                    cause if cause.spares_session() => "the session goes on",
                    _ => "again",
                };
                check(&error.to_string(), advice);
            }
        }
    }

    #[test]
    fn a_stream_that_breaks_off_says_which_and_how_to_go_on() {
        let (channel, peer) = names(Interface::Stream);
        let error = Disconnected {
            channel,
            peer,
            end: Role::Sender,
            cause: EndCause::PeerClosed(CloseReason::Dropped),
            counts: Counts::default(),
            interface: Interface::Stream,
        };
        assert_eq!(
            error.to_string(),
            "byte stream \"quotes/5\" with 10.0.0.2:7000 has ended: the peer reads no more; the \
             session goes on: ask the peer how much it has read, and connect another stream for \
             the rest"
        );
    }

    #[test]
    fn what_does_not_open_fit_or_pass_is_told_likewise() {
        let spec = || ChannelSpec {
            newest: MessageVersion {
                fingerprint: [7; 16],
                schema: "call of u64 for u64".to_owned(),
                alignment: 8,
            },
            older: Vec::new(),
            window: ChannelWindow {
                messages: 1,
                bytes: 1 << 16,
            },
            max_message_bytes: 1000,
            max_unreleased_bytes: 1 << 20,
        };
        for interface in OTHERS {
            let (channel, peer) = names(interface);
            let who = || (channel.clone(), peer.clone());
            let open_timeout = Duration::from_secs(10);
            for (is_same_there, other_names, advice) in [
                (false, vec![], "see that the program there"),
                (true, vec![], "one of the two has to"),
                (false, vec!["quota".to_owned()], "it has opened \"quota\""),
            ] {
                let (channel, peer) = who();
                let error = NotOpened {
                    channel,
                    peer,
                    missing: Role::Receiver,
                    is_same_there,
                    other_names,
                    waited: open_timeout,
                    open_timeout,
                    interface,
                };
                check(&error.to_string(), advice);
            }
            let (channel, peer) = who();
            let error = SchemaMismatch {
                channel,
                peer,
                ours: spec(),
                theirs: spec(),
                counts: Counts::default(),
                interface,
            };
            check(&error.to_string(), "name");
            let (channel, peer) = who();
            let error = MessageTooLong {
                channel,
                peer,
                length: Some(1001),
                limit: 1000,
                here_to_there: Ordering::Less,
                interface,
            };
            check(&SendError::TooLong(Box::new(error)).to_string(), "raise");
            let (channel, peer) = who();
            let error = StayedFull {
                channel,
                peer,
                counts: Counts::default(),
                is_behind_clone: false,
                full: None,
                interface,
            };
            check(&error.to_string(), "see that the program there");
            for (lacks_room, advice) in [(false, "a later read goes on"), (true, "memory_limit")] {
                let (channel, peer) = who();
                let error = NoMessage {
                    channel,
                    peer,
                    received: 3,
                    lacks_room,
                    interface,
                };
                check(&error.to_string(), advice);
            }
        }
    }
}
