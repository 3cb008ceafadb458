//! Errors of a stream that is not taken in: the kind is that of a socket's error, and the channel's
//! error is within.

use std::io;

use ibex_core::{EndCause, SendError, Suspension, WaitError, WaitErrorKind};

/// The listener was not there to take a stream in, or is gone.
pub(super) fn of_connect(error: SendError) -> io::Error {
    let kind = match error.cause() {
        Some(EndCause::PeerClosed(_)) => io::ErrorKind::ConnectionRefused,
        // No stream was there whose pipe could break.
        Some(EndCause::Goodbye | EndCause::EndedByPeer { .. }) => io::ErrorKind::ConnectionReset,
        _ => return error.into(),
    };
    io::Error::new(kind, error)
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
            Err(error) => error.into(),
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
