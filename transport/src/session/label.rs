//! What an end is in errors, if whoever opened it has no sender or receiver of messages.
#![forbid(unsafe_code)]

use ibex_protocol::format::control::Role;

/// What an end is in errors, in the words of whoever opened it. The end of a channel of messages has
/// no label.
///
/// A crate that stands on channels passes on their errors. Its user has no sender to drop and no
/// message to send again, so errors state fact and advice in the terms of the user's handle.
#[derive(Debug)]
pub struct EndLabel {
    /// What the node has by the channel's name, such as `a caller`. Labels with the same words are
    /// equal.
    pub holder: &'static str,
    /// Writes the channel with this name and peer as the user knows it.
    pub subject: fn(name: &str, peer: &str) -> String,
    /// What is opened, before the subject, such as `a caller of `.
    pub opened: &'static str,
    /// What to do if the node has another end of this label by the name.
    pub if_taken: &'static str,
    /// What the program at the peer does with what is sent, if all is well.
    pub until_taken: &'static str,
    /// What a call that sends is.
    pub attempt: &'static str,
    /// What the peer did not do in time, what is wrong if it opened the same end, and where to look.
    pub not_opened: [&'static str; 3],
    /// Writes that the types differ: here, and there.
    pub mismatch: fn(here: &str, there: &str) -> String,
    /// What a message is, and whose limits are this end's and the peer's. `None` for bytes without
    /// messages.
    pub message: Option<[&'static str; 3]>,
    /// `has` or `have`, for the subject.
    pub has: &'static str,
    /// What it means that the peer dropped its end.
    pub dropped: &'static str,
    /// What it means that the peer gave its end up in the middle of a message.
    pub gave_up: &'static str,
    /// What to do at this end if the node was closed, if the session goes on, and otherwise.
    pub advice: fn(end: Role) -> [&'static str; 3],
}

impl EndLabel {
    /// The words that fit most ends, to begin a label with.
    pub const COMMON: Self = Self {
        holder: "",
        subject: |name, peer| format!("\"{name}\" with {peer}"),
        opened: "",
        if_taken: "choose another name, or drop what has it first",
        until_taken: "",
        attempt: "attempt",
        not_opened: [""; 3],
        mismatch: |here, there| format!("here {here}, there {there}"),
        message: None,
        has: "has",
        dropped: "",
        gave_up: "the peer gave it up",
        advice: |_| [""; 3],
    };
}

impl PartialEq for EndLabel {
    fn eq(&self, other: &Self) -> bool {
        self.holder == other.holder
    }
}

impl Eq for EndLabel {}
