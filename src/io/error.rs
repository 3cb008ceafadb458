//! Errors of channels as errors of byte streams: the kind is that of a socket's error, and the
//! channel's error is within.

use std::{io, sync::Arc};

use ibex_transport::channel::{RecvError, RecvFailure, SendError, SendFailure, WaitAckedError};

use crate::{CloseReason, EndCause, OpenError, OpenErrorKind, Suspension};

pub(super) fn of_recv(error: RecvError) -> io::Error {
    let kind = match &error {
        RecvError::NotOpened(_) => io::ErrorKind::TimedOut,
        RecvError::Mismatch(_) | RecvError::Corrupt { .. } => io::ErrorKind::InvalidData,
        RecvError::Disconnected(disconnected) => match &disconnected.cause {
            // The peer closed its node or the session, and the stream had not ended.
            EndCause::Goodbye | EndCause::EndedByPeer { .. } => io::ErrorKind::UnexpectedEof,
            cause => of_cause(cause),
        },
        RecvError::Memory(_) => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, crate::RecvError::from(error))
}

pub(super) fn of_recv_timeout(failure: RecvFailure) -> io::Error {
    match failure {
        RecvFailure::Failed(error) => of_recv(error),
        late => io::Error::new(io::ErrorKind::TimedOut, crate::RecvError::from(late)),
    }
}

pub(super) fn of_send(error: SendError) -> io::Error {
    let kind = match &error {
        SendError::NotOpened(_) => io::ErrorKind::TimedOut,
        SendError::Mismatch(_) => io::ErrorKind::InvalidData,
        SendError::Disconnected(disconnected) => match &disconnected.cause {
            EndCause::PeerClosed(CloseReason::Dropped)
            | EndCause::Goodbye
            | EndCause::EndedByPeer { .. } => io::ErrorKind::BrokenPipe,
            cause => of_cause(cause),
        },
        SendError::Memory(_) => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, crate::SendError::from(error))
}

pub(super) fn of_send_timeout(failure: SendFailure) -> io::Error {
    match failure {
        SendFailure::Failed(error) => of_send(error),
        late => io::Error::new(io::ErrorKind::TimedOut, crate::SendError::from(late)),
    }
}

/// The kind for what ended a channel, at either end.
fn of_cause(cause: &EndCause) -> io::ErrorKind {
    match cause {
        EndCause::PeerClosed(_)
        | EndCause::PeerGone { .. }
        | EndCause::Goodbye
        | EndCause::EndedByPeer { .. } => io::ErrorKind::ConnectionReset,
        EndCause::Memory(_) => io::ErrorKind::OutOfMemory,
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
pub(super) fn of_connect(failure: SendFailure) -> io::Error {
    match failure {
        SendFailure::Failed(error) => refused(error),
        late => io::Error::new(io::ErrorKind::TimedOut, crate::SendError::from(late)),
    }
}

/// Makes an error of a failed wait for the listener to accept the stream.
pub(super) fn of_acceptance(error: WaitAckedError) -> io::Error {
    match error {
        WaitAckedError::Failed(error) => refused(error),
        WaitAckedError::Timeout {
            channel,
            peer,
            suspended,
            ..
        } => {
            let late = match suspended {
                Some(suspended) => StreamNotAccepted::Suspended(channel, peer, suspended),
                None => StreamNotAccepted::Late(channel, peer),
            };
            io::Error::new(io::ErrorKind::TimedOut, late)
        }
        // The listener was dropped while it held the request.
        WaitAckedError::Unacknowledged { channel, peer, .. } => {
            let refused = StreamNotAccepted::Dropped(channel, peer);
            io::Error::new(io::ErrorKind::ConnectionRefused, refused)
        }
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
    Suspended(String, String, Arc<Suspension>),
    #[error(
        "byte streams \"{0}\" with {1}: the peer dropped its listener before it accepted the \
         stream; connect again once it listens again"
    )]
    Dropped(String, String),
}

fn refused(error: SendError) -> io::Error {
    let kind = match &error {
        SendError::Disconnected(disconnected) => match &disconnected.cause {
            EndCause::PeerClosed(_) => io::ErrorKind::ConnectionRefused,
            cause => of_cause(cause),
        },
        SendError::Encode(_) => return unopened(error),
        _ => return of_send(error),
    };
    io::Error::new(kind, crate::SendError::from(error))
}

/// The ends of a stream are opened while its announcement is encoded.
fn unopened(error: SendError) -> io::Error {
    match error {
        SendError::Encode(error) => match error.downcast::<OpenError>() {
            Ok(error) => of_open(*error),
            Err(error) => io::Error::other(error),
        },
        error => of_send(error),
    }
}
