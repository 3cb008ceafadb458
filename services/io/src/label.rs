//! What the ends of byte streams are in errors.
#![forbid(unsafe_code)]

use ibex_core::{Role, extend::EndLabel};

/// A direction of a byte stream.
pub(crate) static STREAM: EndLabel = EndLabel {
    subject: |name, peer| {
        // The name ends with the listener's name, the stream's number and the direction of the bytes.
        let (stream, _way) = name.rsplit_once('/').unwrap_or((name, ""));
        format!("byte stream \"{stream}\" with {peer}")
    },
    until_taken: "reads",
    attempt: "write",
    has: "has",
    dropped: "the peer reads no more",
    gave_up: "the peer gave the stream up, or panicked, before it had written all",
    advice: |end| match end {
        // It has to know how much has arrived.
        Role::Sender => [
            NEW_NODE,
            "the session goes on: ask the peer how much it has read, and connect another stream for \
             the rest",
            "connect or accept again, and ask the peer how much it has read",
        ],
        Role::Receiver => [
            NEW_NODE,
            "the session goes on: treat what was read as cut off, and connect another stream",
            "connect or accept again, and treat what was read as cut off",
        ],
    },
    ..LISTENER_WORDS
};

/// A listener, or the end that asks a listener to accept a byte stream.
pub(crate) static LISTENER: EndLabel = LISTENER_WORDS;

const LISTENER_WORDS: EndLabel = EndLabel {
    holder: "byte streams",
    subject: |name, peer| format!("byte streams \"{name}\" with {peer}"),
    until_taken: "accepts",
    not_opened: [
        "the peer did not listen for them",
        "the peer connects by this name as well: one of the two has to listen",
        "see that the program there has a listener of this name and accepts",
    ],
    mismatch: |_, there| {
        format!(
            "the peer has something else by this name, {there}; nothing was transferred; choose \
             another name for one of the two, at both nodes"
        )
    },
    has: "have",
    dropped: "the peer dropped its listener",
    advice: |_| {
        [
            NEW_NODE,
            "the session goes on: connect again once the peer listens again",
            "connect to the node again, and to its listener",
        ]
    },
    ..EndLabel::COMMON
};

const NEW_NODE: &str = "to go on, make a new node, and connect or listen with it";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_told_without_its_direction() {
        let notified = (STREAM.subject)("quotes/5/there", "10.0.0.2:7000");
        assert_eq!(notified, "byte stream \"quotes/5\" with 10.0.0.2:7000");
    }

    #[test]
    fn no_advice_has_the_words_of_channels() {
        for label in [&STREAM, &LISTENER] {
            let advice = [Role::Sender, Role::Receiver].map(label.advice).concat();
            for text in advice.iter().chain(&label.not_opened) {
                for word in ["sender", "receiver", "fan-in", "acknowledged", "channel \""] {
                    assert!(!text.contains(word), "{word}: {text}");
                }
            }
        }
    }
}
