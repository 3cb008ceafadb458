//! Facts of a failed send, for the errors of sending and of waiting.

use ibex_transport::channel;

use super::Subject;
use crate::{Counts, NotOpened, SendErrorKind};

pub(super) fn kind_of(error: &channel::SendError) -> SendErrorKind {
    use channel::SendError;

    match error {
        SendError::NotOpened(_) => SendErrorKind::NotOpened,
        SendError::Mismatch(_) => SendErrorKind::Mismatch,
        SendError::TooLong(_) => SendErrorKind::TooLong,
        SendError::Encode(_) => SendErrorKind::Encode,
        SendError::Memory(_) => SendErrorKind::Memory,
        SendError::Nested => SendErrorKind::Nested,
        SendError::UsedAfterFork(_) => SendErrorKind::UsedAfterFork,
        SendError::Disconnected(_) => SendErrorKind::Disconnected,
    }
}

pub(super) fn subject_of(error: &channel::SendError) -> Option<Subject<'_>> {
    use channel::SendError;

    match error {
        SendError::NotOpened(error) => Subject::new(&error.channel, &error.peer),
        SendError::Mismatch(error) => Subject::new(&error.channel, &error.peer),
        SendError::TooLong(error) => Subject::new(&error.channel, &error.peer),
        SendError::Disconnected(error) => Subject::new(&error.channel, &error.peer),
        _ => None,
    }
}

pub(super) fn counts_of(error: &channel::SendError) -> Option<Counts> {
    match error {
        channel::SendError::Disconnected(error) => Some(error.counts),
        channel::SendError::Mismatch(error) => Some(error.counts),
        _ => None,
    }
}

pub(super) fn not_opened_of(error: &channel::SendError) -> Option<&NotOpened> {
    match error {
        channel::SendError::NotOpened(error) => Some(error),
        _ => None,
    }
}
