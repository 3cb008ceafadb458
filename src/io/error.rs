//! Errors of channels as errors of byte streams: the kind is that of a socket's error, and the
//! channel's error is within.

use std::{io, sync::Arc};

use ibex_transport::channel::{ChannelError, FailureReason};

use crate::{CloseReason, EndCause, OpenError, OpenErrorKind, RecvError, SendError, Suspension};

pub(super) fn of_recv(error: ChannelError) -> io::Error {
    let kind = match error.cause() {
        // The peer closed its node or the session, and the stream had not ended.
        Some(EndCause::Goodbye | EndCause::EndedByPeer { .. }) => io::ErrorKind::UnexpectedEof,
        _ => of_reason(&error),
    };
    io::Error::new(kind, RecvError::from(error))
}

pub(super) fn of_send(error: ChannelError) -> io::Error {
    let kind = match error.cause() {
        Some(
            EndCause::PeerClosed(CloseReason::Dropped)
            | EndCause::Goodbye
            | EndCause::EndedByPeer { .. },
        ) => io::ErrorKind::BrokenPipe,
        _ => of_reason(&error),
    };
    io::Error::new(kind, SendError::from(error))
}

/// The kind for a failure, at either end.
fn of_reason(error: &ChannelError) -> io::ErrorKind {
    if error.is_transient() || error.is_not_opened() {
        return io::ErrorKind::TimedOut;
    }
    match error.reason() {
        Some(FailureReason::Broken(cause)) => of_cause(cause),
        Some(FailureReason::Mismatch { .. } | FailureReason::Corrupt { .. }) => {
            io::ErrorKind::InvalidData
        }
        Some(FailureReason::Memory(_)) => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
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
pub(super) fn of_connect(error: ChannelError) -> io::Error {
    match error {
        ChannelError::Failed(failure) => match failure.reason {
            // The ends of a stream are opened while its announcement is encoded.
            FailureReason::Encode(error) => match error.downcast::<OpenError>() {
                Ok(error) => of_open(*error),
                Err(error) => io::Error::other(error),
            },
            FailureReason::Broken(EndCause::PeerClosed(_)) => {
                let error = SendError::from(ChannelError::from(failure));
                io::Error::new(io::ErrorKind::ConnectionRefused, error)
            }
            FailureReason::Broken(ref cause) => {
                let kind = of_cause(cause);
                io::Error::new(kind, SendError::from(ChannelError::from(failure)))
            }
            _ => of_send(failure.into()),
        },
        late => of_send(late),
    }
}

/// Makes an error of a failed wait for the listener to accept the stream.
pub(super) fn of_acceptance(error: ChannelError) -> io::Error {
    let Some(failure) = error.failure() else {
        return of_connect(error);
    };
    let (channel, peer) = (failure.channel.to_string(), failure.peer.clone());
    match (&failure.reason, &failure.suspended) {
        (FailureReason::NotDone { .. }, Some(suspended)) => io::Error::new(
            io::ErrorKind::TimedOut,
            StreamNotAccepted::Suspended(channel, peer, suspended.clone()),
        ),
        (FailureReason::NotDone { .. }, None) => io::Error::new(
            io::ErrorKind::TimedOut,
            StreamNotAccepted::Late(channel, peer),
        ),
        // The listener was dropped while it held the request.
        (FailureReason::Unacknowledged(_), _) => io::Error::new(
            io::ErrorKind::ConnectionRefused,
            StreamNotAccepted::Dropped(channel, peer),
        ),
        _ => of_connect(error),
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
