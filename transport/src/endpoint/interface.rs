//! The texts of errors of channels that belong to a call or a byte stream.
#![forbid(unsafe_code)]

use std::{cmp::Ordering, fmt};

use super::error::{MessageTooLong, NoMessage, SchemaMismatch, StayedFull};
use crate::session::Interface;

impl Interface {
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
        let subject = self.subject(&error.channel, &error.peer);
        write!(f, "{subject}: nothing was sent within the time-out: ")?;
        let attempt = self.attempt();
        match (&error.suspended, error.released_meanwhile) {
            (Some(suspended), _) => write!(f, "{suspended}; a later {attempt} may succeed"),
            (None, 0) => write!(
                f,
                "there is no room behind what was sent before, and nothing of it was taken {}; a \
                 later {attempt} may succeed; {}",
                error.for_how_long(),
                self.see_that_it_runs()
            ),
            (None, _) => write!(
                f,
                "there is no room behind what was sent before, of which some was taken in that \
                 time: the program there works, and is slower than this one; a later {attempt} \
                 may succeed"
            ),
        }
    }

    pub(crate) fn no_message(self, error: &NoMessage, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let subject = self.subject(&error.channel, &error.peer);
        match (error.lacks_room, &error.suspended) {
            (false, Some(suspended)) => write!(
                f,
                "{subject}: nothing came within the time-out: {suspended}; a later read goes on"
            ),
            (false, None) => write!(
                f,
                "{subject}: nothing came within the time-out; a later read goes on"
            ),
            (true, _) => write!(
                f,
                "{subject}: what has come waits for memory: what this process holds of long \
                 messages leaves it no room within the node's memory_limit; it is not lost, and a \
                 later read goes on; drop messages that are held, on whatever channel, or raise \
                 memory_limit"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{
        channel::SendError,
        session::{Counts, Disconnected, EndCause, NotOpened},
    };
    use ibex_protocol::format::{
        channel_window::ChannelWindow,
        control::{ChannelSpec, CloseReason, Role},
        message_version::MessageVersion,
    };

    const OTHERS: [Interface; 4] = [
        Interface::Caller,
        Interface::Service,
        Interface::Stream,
        Interface::Listener,
    ];

    /// Terms that apply to message channels only.
    const OF_CHANNELS: [&str; 8] = [
        "sender",
        "receiver",
        "fan-in",
        "`versioned_",
        "acknowledged",
        "send what",
        "reservation",
        "channel \"",
    ];

    /// Checks that the text names the object and the remedy, and does not mention channels.
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
            EndCause::EndedByPeer { reason: text() },
            EndCause::EndedHere { reason: text() },
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
    fn failed_opens_and_messages_are_told_without_the_words_of_channels() {
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
            is_traced: false,
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
                    suspended: None,
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
                released_meanwhile: 0,
                stalled_for: Some(Duration::from_secs(3)),
                suspended: None,
                full: None,
                interface,
            };
            check(&error.to_string(), "taken for 3s; ");
            check(&error.to_string(), "see that the process there runs");
            for (lacks_room, advice) in [(false, "a later read goes on"), (true, "memory_limit")] {
                let (channel, peer) = who();
                let error = NoMessage {
                    channel,
                    peer,
                    received: 3,
                    lacks_room,
                    suspended: None,
                    interface,
                };
                check(&error.to_string(), advice);
            }
        }
    }
}
