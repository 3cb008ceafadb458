//! Tests of what failures of channels say.

use std::time::Duration;

use ibex_protocol::format::{channel_window::ChannelWindow, message_version::MessageVersion};

use super::*;
use crate::Counts;

/// The label of an end that is no sender or receiver of messages.
static OTHER: EndLabel = EndLabel {
    holder: "a pipe",
    subject: |name, peer| format!("pipe \"{name}\" with {peer}"),
    if_taken: "close that one first",
    until_taken: "reads",
    attempt: "write",
    not_opened: [
        "the peer did not open it",
        "the peer writes it as well: one of the two has to read it",
        "see that the program there opens it",
    ],
    mismatch: |here, there| format!("here {here}, there {there}; choose another name"),
    message: Some(["piece", "this node", "that node"]),
    dropped: "the peer reads no more",
    advice: |_| {
        [
            "to go on, make a new node",
            "the session goes on: open another pipe",
            "connect again",
        ]
    },
    ..EndLabel::COMMON
};

/// Terms that apply to message channels only.
const OF_CHANNELS: [&str; 8] = [
    "sender",
    "receiver",
    "fan-in",
    "`versioned_",
    "acknowledged",
    "send what",
    "permit",
    "channel \"",
];

/// Returns what an error of an end with this label says of a failure.
fn notified(label: Option<&'static EndLabel>, end: Role, reason: FailureReason) -> String {
    let counts = Counts {
        sent: if end == Role::Sender { 9 } else { 0 },
        received: 7,
        released: 5,
        acknowledged: 4,
    };
    let failure = ChannelFailure {
        channel: "quotes".into(),
        peer: "10.0.0.2:7000".to_owned(),
        end,
        label,
        counts,
        suspended: None,
        reason,
    };
    Wording(&ChannelError::from(Box::new(failure))).to_string()
}

/// Checks that the text names the object and the remedy, and does not mention channels.
fn check(text: &str, advice: &str) {
    for word in OF_CHANNELS {
        assert!(!text.contains(word), "{word}: {text}");
    }
    for part in ["\"quotes", "10.0.0.2:7000", advice] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

fn ended(label: Option<&'static EndLabel>, end: Role, cause: EndCause) -> String {
    notified(label, end, FailureReason::Broken(cause))
}

fn lost(why: &str) -> EndCause {
    EndCause::PeerGone {
        why: why.to_owned(),
        certain: false,
    }
}

#[test]
fn every_end_with_a_label_is_told_without_the_words_of_channels() {
    let reasons = CloseReason::ALL;
    let text = || "as the test says".to_owned();
    let mut causes = reasons.map(EndCause::PeerClosed).to_vec();
    causes.extend([
        EndCause::Goodbye,
        EndCause::EndedByPeer { reason: text() },
        EndCause::EndedHere { reason: text() },
        lost("as the test says"),
        EndCause::DeviceLost { why: text() },
        EndCause::Refused { why: text() },
        EndCause::NodeClosed,
        EndCause::RuntimeEnded,
        EndCause::Memory(text()),
        EndCause::Unreadable {
            sequence: 1,
            read: 2,
            length: 3,
            file: Some(text()),
        },
    ]);
    for (cause, end) in causes
        .iter()
        .flat_map(|cause| [(cause, Role::Sender), (cause, Role::Receiver)])
    {
        let advice = match cause {
            EndCause::NodeClosed => "make a new node",
            EndCause::RuntimeEnded => "in a runtime that lives longer",
            cause if cause.spares_session() => "the session goes on",
            _ => "again",
        };
        check(&ended(Some(&OTHER), end, cause.clone()), advice);
    }
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
    let notified = |reason| notified(Some(&OTHER), Role::Sender, reason);
    let time = Duration::from_secs(10);
    for (is_same_there, other_names, advice) in [
        (false, vec![], "see that the program there"),
        (true, vec![], "one of the two has to"),
        (false, vec!["quota".to_owned()], "it has opened \"quota\""),
    ] {
        let reason = FailureReason::NotOpened {
            is_same_there,
            other_names,
            waited: time,
            open_timeout: time,
        };
        check(&notified(reason), advice);
    }
    let (ours, theirs) = (spec(), spec());
    check(&notified(FailureReason::Mismatch { ours, theirs }), "name");
    for here_to_there in [Ordering::Less, Ordering::Equal, Ordering::Greater] {
        let reason = FailureReason::TooLong {
            length: Some(1001),
            limit: 1000,
            here_to_there,
        };
        check(&notified(reason), "raise");
    }
    let reason = FailureReason::NoRoom {
        full: None,
        released_meanwhile: 0,
        stalled_for: Some(Duration::from_secs(3)),
    };
    let text = notified(reason);
    check(&text, "taken for 3s; ");
    check(&text, "see that the process there runs");
    for (lacks_room, advice) in [(false, "a later read goes on"), (true, "memory_limit")] {
        check(&notified(FailureReason::NoMessage { lacks_room }), advice);
    }
}

#[test]
fn each_ends_error_of_a_lost_session_has_its_counts_and_a_next_step() {
    let gone = |end| ended(None, end, lost("connection reset"));
    assert_eq!(
        gone(Role::Sender),
        "channel \"quotes\" with 10.0.0.2:7000 has ended: the connection to the peer was lost: \
         connection reset (9 sent, at least 7 received, 5 released and 4 acknowledged); \
         connect again and send what was not acknowledged"
    );
    assert_eq!(
        gone(Role::Receiver),
        "channel \"quotes\" with 10.0.0.2:7000 has ended: the connection to the peer was lost: \
         connection reset (7 received, 5 released, 4 acknowledged); \
         connect or accept again; the sender may send again what was not acknowledged"
    );
}

#[test]
fn nobody_is_told_to_connect_again_while_the_session_lives() {
    let mut causes = CloseReason::ALL.map(EndCause::PeerClosed).to_vec();
    causes.extend([
        EndCause::SlotLeaked,
        EndCause::Memory("no memory".to_owned()),
    ]);
    for cause in causes {
        for end in [Role::Sender, Role::Receiver] {
            let text = ended(None, end, cause.clone());
            assert!(!text.contains("connect"), "{text}");
        }
    }
}

#[test]
fn a_program_that_closed_its_own_node_is_told_to_make_another() {
    for end in [Role::Sender, Role::Receiver] {
        let text = ended(None, end, EndCause::NodeClosed);
        assert!(text.contains("to go on, make a new node"), "{text}");
    }
}

#[test]
fn no_receiver_is_told_to_send() {
    let causes = [
        EndCause::PeerClosed(CloseReason::NoRoom),
        EndCause::PeerClosed(CloseReason::SlotLeaked),
        EndCause::PeerClosed(CloseReason::Aborted),
        EndCause::Goodbye,
        EndCause::EndedByPeer {
            reason: "done".to_owned(),
        },
        EndCause::EndedHere {
            reason: String::new(),
        },
        EndCause::NodeClosed,
        EndCause::Memory("no memory".to_owned()),
    ];
    for cause in causes {
        let text = ended(None, Role::Receiver, cause);
        assert!(!text.contains("and send"), "{text}");
        assert!(!text.contains(" sent,"), "{text}");
    }
}
