//! Errors of logs as errors of [`std::io`].
#![forbid(unsafe_code)]

use std::io;

use ibex_core::extend::errors;

use crate::{LogError, LogErrorKind};

/// Keeps the error within, and chooses the kind that a socket's error would have.
impl From<LogError> for io::Error {
    fn from(error: LogError) -> Self {
        Self::new(of_log(&error), error)
    }
}

fn of_log(error: &LogError) -> io::ErrorKind {
    match error.kind() {
        LogErrorKind::Ahead => io::ErrorKind::InvalidData,
        LogErrorKind::NoSession => io::ErrorKind::NotConnected,
        LogErrorKind::Timeout => io::ErrorKind::TimedOut,
        LogErrorKind::Send => error
            .send_error()
            .map_or(io::ErrorKind::Other, errors::io_kind),
        LogErrorKind::Beyond => io::ErrorKind::InvalidInput,
        _ => io::ErrorKind::Other,
    }
}
