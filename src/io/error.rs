//! Errors of channels as errors of byte streams: the kind is that of a socket's error, and the
//! channel's error is within.

use std::io;

use crate::{
    CloseReason, EndCause, OpenError, OpenErrorKind, RecvError, RecvErrorKind, SendError,
    SendErrorKind, Suspension, WaitError, WaitErrorKind,
};

pub(super) fn of_recv(error: RecvError) -> io::Error {
    let kind = match error.kind() {
        RecvErrorKind::Timeout | RecvErrorKind::NotOpened => io::ErrorKind::TimedOut,
        RecvErrorKind::Mismatch | RecvErrorKind::Corrupt => io::ErrorKind::InvalidData,
        RecvErrorKind::Disconnected => match error.cause() {
            // The peer closed its node or the session, and the stream had not ended.
            Some(EndCause::Goodbye | EndCause::EndedByPeer { .. }) => io::ErrorKind::UnexpectedEof,
            cause => of_cause(cause),
        },
        RecvErrorKind::Memory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

pub(super) fn of_send(error: SendError) -> io::Error {
    let kind = match error.kind() {
        SendErrorKind::Timeout | SendErrorKind::NotOpened => io::ErrorKind::TimedOut,
        SendErrorKind::Mismatch => io::ErrorKind::InvalidData,
        SendErrorKind::Disconnected => match error.cause() {
            Some(
                EndCause::PeerClosed(CloseReason::Dropped)
                | EndCause::Goodbye
                | EndCause::EndedByPeer { .. },
            ) => io::ErrorKind::BrokenPipe,
            cause => of_cause(cause),
        },
        SendErrorKind::Memory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// The kind for what ended a channel, at either end.
fn of_cause(cause: Option<&EndCause>) -> io::ErrorKind {
    match cause {
        Some(
            EndCause::PeerClosed(_)
            | EndCause::PeerGone { .. }
            | EndCause::Goodbye
            | EndCause::EndedByPeer { .. },
        ) => io::ErrorKind::ConnectionReset,
        Some(EndCause::Memory(_)) => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::ConnectionAborted,
    }
}

/// An end of a stream cannot be opened here.
pub(super) fn of_open(error: OpenError) -> io::Error {
    let kind = match error.kind() {
        OpenErrorKind::Name => io::ErrorKind::InvalidInput,
        OpenErrorKind::AlreadyOpen => io::ErrorKind::AddrInUse,
        OpenErrorKind::SessionOver => io::ErrorKind::ConnectionReset,
        OpenErrorKind::NodeClosed => io::ErrorKind::ConnectionAborted,
        OpenErrorKind::Memory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error)
}

/// The listener was not there to take a stream in, or is gone.
pub(super) fn of_connect(error: SendError) -> io::Error {
    match error.cause() {
        Some(EndCause::PeerClosed(_)) => io::Error::new(io::ErrorKind::ConnectionRefused, error),
        Some(_) => io::Error::new(of_cause(error.cause()), error),
        None => of_send(error),
    }
}

/// Makes an error of a failed wait for the listener to accept the stream.
pub(super) fn of_acceptance(error: WaitError) -> io::Error {
    let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
    let (channel, peer) = (text(error.channel()), text(error.peer()));
    match error.kind() {
        WaitErrorKind::Timeout => {
            let late = match error.suspended() {
                Some(suspended) => StreamNotAccepted::Suspended(channel, peer, suspended.clone()),
                None => StreamNotAccepted::Late(channel, peer),
            };
            io::Error::new(io::ErrorKind::TimedOut, late)
        }
        // The listener was dropped while it held the request.
        WaitErrorKind::Unacknowledged => {
            let refused = StreamNotAccepted::Dropped(channel, peer);
            io::Error::new(io::ErrorKind::ConnectionRefused, refused)
        }
        _ => match error.into_send_error() {
            Ok(error) => of_connect(error),
            Err(error) => io::Error::other(error),
        },
    }
}

/// A listener holds a request for a stream and does not accept it. Names the listener and its node.
#[derive(Debug, thiserror::Error)]
enum StreamNotAccepted {
    #[error(
        "byte streams \"{0}\" with {1}: the listener there did not accept the stream within the \
         time-out, so it was taken back; see that the program there accepts, or raise \
         open_timeout, and connect again"
    )]
    Late(String, String),
    #[error(
        "byte streams \"{0}\" with {1}: it is not known whether the listener there accepted the \
         stream within the time-out, so it was taken back: {2}; connect again"
    )]
    Suspended(String, String, Suspension),
    #[error(
        "byte streams \"{0}\" with {1}: the peer dropped its listener before it accepted the \
         stream; connect again once it listens again"
    )]
    Dropped(String, String),
}
