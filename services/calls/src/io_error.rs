//! Errors of calls as errors of [`std::io`].
#![forbid(unsafe_code)]

use std::io;

use ibex_core::extend::errors;

use crate::{CallError, CallErrorKind, MetadataRefused};

/// Keeps the error within, and chooses the kind that a socket's error would have.
impl From<CallError> for io::Error {
    fn from(error: CallError) -> Self {
        Self::new(of_call(&error), error)
    }
}

fn of_call(error: &CallError) -> io::ErrorKind {
    match error.kind() {
        CallErrorKind::DeadlineExceeded => io::ErrorKind::TimedOut,
        CallErrorKind::Suspended => io::ErrorKind::NotConnected,
        CallErrorKind::NotSent => error
            .send_error()
            .map_or(io::ErrorKind::Other, errors::io_kind),
        CallErrorKind::InvalidRequest | CallErrorKind::InvalidReply => io::ErrorKind::InvalidData,
        CallErrorKind::ServiceEnded | CallErrorKind::Lost => io::ErrorKind::ConnectionReset,
        CallErrorKind::Overloaded
        | CallErrorKind::HandedBack
        | CallErrorKind::Draining
        | CallErrorKind::Refused => io::ErrorKind::ConnectionRefused,
        _ => io::ErrorKind::Other,
    }
}

/// Keeps the error within.
impl From<MetadataRefused> for io::Error {
    fn from(error: MetadataRefused) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
