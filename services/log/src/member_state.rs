//! The state of the session with a member of a group, as a log sender has it.
#![forbid(unsafe_code)]

/// The state of the session with a [`LogMember`](crate::LogMember).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LogMemberState {
    /// The member is sent the log.
    Sending,
    /// The member's far end has answered, and has not opened its end of the channel yet. The group
    /// waits for it as it waits for room: until then, or the end of the session, however long that
    /// is. After `open_timeout` [an event](ibex_core::Event::NotOpened) tells of the missing end.
    NotOpened,
    /// There is a session that the member was not asked in yet. The next call asks it.
    NotAsked,
    /// The member was asked up to which position it has the log, and has not answered yet.
    Asked {
        /// How its far end gave the channel before up, if it did: it dropped a message, say.
        after: Option<String>,
    },
    /// The member did not answer up to which position it has the log. It is asked again a second
    /// later, or in its next session.
    Unanswered {
        /// The reason.
        why: String,
    },
    /// There is no session that the member was asked in.
    NoSession {
        /// The reason, and what to do.
        why: String,
    },
}
