//! What the ends of calls are in errors.
#![forbid(unsafe_code)]

use ibex_core::extend::EndLabel;

/// Suffix of a channel of replies. The channel of a service's requests has the service's name, and
/// that of its replies has this behind it. So two nodes can each call a service of one name of the
/// other.
pub(crate) const REPLIES: &str = "/replies";

/// An end of a caller.
pub(crate) static CALLER: EndLabel = EndLabel {
    holder: "a caller",
    subject: |name, peer| format!("service \"{}\" of {peer}", service(name)),
    opened: "a caller of ",
    if_taken: "clone that one, or drop it and its clones first",
    until_taken: "asks its service for the next request",
    not_opened: [
        "the peer did not open it",
        "the peer calls a service of this name as well: one of the two has to serve it",
        "see that the program there has a service of this name and asks it for its next request",
    ],
    mismatch,
    message: Some(["request", "the caller", "the service"]),
    dropped: "the peer dropped its service",
    advice: |_| {
        [
            "to go on, make a new node, connect, and make the caller anew",
            "the session goes on: drop this caller and its clones, make another, which waits for \
             the next service of this name",
            "connect again and make the caller anew, as a `PeersCaller` does",
        ]
    },
    ..EndLabel::COMMON
};

/// An end of a service.
pub(crate) static SERVICE: EndLabel = EndLabel {
    holder: "a service",
    subject: |name, peer| format!("service \"{}\" for {peer}", service(name)),
    if_taken: "take requests from that one, or drop it first",
    until_taken: "takes its replies",
    not_opened: [
        "the peer did not open a caller of it",
        "the peer serves this name as well: one of the two has to call it",
        "see that the program there makes a caller of this name",
    ],
    mismatch,
    message: Some(["reply", "the service", "the caller"]),
    dropped: "the peer dropped its caller",
    advice: |_| {
        [
            "to go on, make a new node and the service with it",
            "the session goes on: drop this service and make another, which waits for the next \
             caller",
            "connect or accept again, and make the service anew with that peer",
        ]
    },
    ..EndLabel::COMMON
};

/// Returns the name of the service that has a channel of this name.
fn service(name: &str) -> &str {
    name.strip_suffix(REPLIES).unwrap_or(name)
}

fn mismatch(here: &str, there: &str) -> String {
    format!(
        "its requests, its replies or their codecs differ; here {here}, there {there}; no call was \
         executed; make both programs' the same, or give the service of the new types a new name"
    )
}

#[cfg(test)]
mod tests {
    use ibex_core::Role;

    use super::*;

    #[test]
    fn both_directions_are_told_by_the_name_of_the_service() {
        for name in ["quotes", "quotes/replies"] {
            let [called, served] =
                [&CALLER, &SERVICE].map(|label| (label.subject)(name, "replica"));
            assert_eq!(called, "service \"quotes\" of replica");
            assert_eq!(served, "service \"quotes\" for replica");
        }
    }

    #[test]
    fn no_advice_has_the_words_of_channels() {
        for label in [&CALLER, &SERVICE] {
            let advice = [Role::Sender, Role::Receiver].map(label.advice).concat();
            for text in advice.iter().chain(&label.not_opened) {
                for word in ["sender", "receiver", "fan-in", "acknowledged", "channel \""] {
                    assert!(!text.contains(word), "{word}: {text}");
                }
            }
        }
    }
}
