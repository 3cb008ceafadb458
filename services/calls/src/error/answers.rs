//! Errors of answers that are not sent, and of a service that cannot be opened.
#![forbid(unsafe_code)]

use ibex_core::{
    OpenError, OpenErrorKind, SendError, SendErrorKind,
    extend::{ChannelError, errors},
};

/// Makes the error of an answer whose caller does not wait for it any more.
pub(crate) fn cancelled() -> SendError {
    errors::unsent(
        SendErrorKind::Cancelled,
        "the caller does not wait any more: it cancelled the call, its deadline passed, or it is \
         gone",
    )
}

/// Makes the error of a further reply to a call that takes one.
pub(crate) fn not_a_stream() -> SendError {
    errors::unsent(
        SendErrorKind::NotAStream,
        "the call takes one reply and no stream; answer it with `reply`",
    )
}

/// Makes the error of an answer that the channel of replies did not take. The caller is told that
/// there is no answer.
pub(crate) fn of_answer(error: ChannelError) -> SendError {
    errors::unsent_by_channel("the answer was not sent", error)
}

/// Makes the error of a service for all peers whose name another service has.
pub(crate) fn name_taken(name: &str) -> OpenError {
    errors::unopened(
        name,
        OpenErrorKind::AlreadyOpen,
        format_args!(
            "this node has a service \"{name}\" already, for all peers or for one of them; drop it, \
             or choose another name"
        ),
    )
}
