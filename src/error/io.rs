//! Errors as errors of [`std::io`]: the kind that a socket's error would have, and the error itself
//! within.

use std::io::{self, ErrorKind};

use crate::{
    CloseReason, ConnectError, ConnectErrorKind, EndCause, ListenError, ListenErrorKind, OpenError,
    OpenErrorKind, RecvError, RecvErrorKind, SendError, SendErrorKind, WaitError, WaitErrorKind,
    calls::{CallError, CallErrorKind},
    log::{LogError, LogErrorKind},
};

/// Converts errors, each to the kind that a function returns for it.
macro_rules! into_io_error {
    ($($error:ty: $kind_of:ident),*) => {$(
        /// Keeps the error within, and chooses the kind that a socket's error would have.
        impl From<$error> for io::Error {
            fn from(error: $error) -> Self {
                Self::new($kind_of(&error), error)
            }
        }
    )*};
}

into_io_error!(
    ListenError: of_listen,
    ConnectError: of_connect,
    OpenError: of_open,
    SendError: of_send,
    RecvError: of_recv,
    WaitError: of_wait,
    CallError: of_call,
    LogError: of_log
);

fn of_listen(error: &ListenError) -> ErrorKind {
    match error.kind() {
        ListenErrorKind::InsecureAddress => ErrorKind::PermissionDenied,
        ListenErrorKind::Address => ErrorKind::AddrNotAvailable,
        ListenErrorKind::Setting | ListenErrorKind::Variable | ListenErrorKind::Security => {
            ErrorKind::InvalidInput
        }
        ListenErrorKind::NotCompiledIn | ListenErrorKind::Rdma => ErrorKind::Unsupported,
        _ => ErrorKind::Other,
    }
}

fn of_connect(error: &ConnectError) -> ErrorKind {
    match error.kind() {
        ConnectErrorKind::InvalidAddress
        | ConnectErrorKind::NoSuchEngine
        | ConnectErrorKind::NotListening => ErrorKind::InvalidInput,
        ConnectErrorKind::Unreachable | ConnectErrorKind::Timeout => ErrorKind::TimedOut,
        ConnectErrorKind::Foreign | ConnectErrorKind::Incompatible => ErrorKind::InvalidData,
        ConnectErrorKind::Unauthenticated => ErrorKind::PermissionDenied,
        ConnectErrorKind::Refused => ErrorKind::ConnectionRefused,
        ConnectErrorKind::Interrupted => ErrorKind::ConnectionReset,
        ConnectErrorKind::Stopped | ConnectErrorKind::Closed => ErrorKind::ConnectionAborted,
        _ => ErrorKind::Other,
    }
}

fn of_open(error: &OpenError) -> ErrorKind {
    match error.kind() {
        OpenErrorKind::Name
        | OpenErrorKind::Alignment
        | OpenErrorKind::SameVersions
        | OpenErrorKind::Setting => ErrorKind::InvalidInput,
        OpenErrorKind::AlreadyOpen => ErrorKind::AddrInUse,
        OpenErrorKind::SessionOver => ErrorKind::ConnectionReset,
        OpenErrorKind::NodeClosed => ErrorKind::ConnectionAborted,
        OpenErrorKind::Memory => ErrorKind::OutOfMemory,
        _ => ErrorKind::Other,
    }
}

fn of_send(error: &SendError) -> ErrorKind {
    match error.kind() {
        SendErrorKind::Full => ErrorKind::WouldBlock,
        SendErrorKind::Timeout | SendErrorKind::NotOpened => ErrorKind::TimedOut,
        SendErrorKind::Mismatch => ErrorKind::InvalidData,
        SendErrorKind::TooLong | SendErrorKind::Encode => ErrorKind::InvalidInput,
        SendErrorKind::Disconnected => of_sending(error.cause()),
        SendErrorKind::NoMembers => ErrorKind::NotConnected,
        SendErrorKind::Memory => ErrorKind::OutOfMemory,
        _ => ErrorKind::Other,
    }
}

fn of_recv(error: &RecvError) -> ErrorKind {
    match error.kind() {
        RecvErrorKind::Empty => ErrorKind::WouldBlock,
        RecvErrorKind::Timeout | RecvErrorKind::NotOpened => ErrorKind::TimedOut,
        RecvErrorKind::Ended => ErrorKind::UnexpectedEof,
        RecvErrorKind::Mismatch | RecvErrorKind::Corrupt => ErrorKind::InvalidData,
        RecvErrorKind::Disconnected => match error.cause() {
            // The peer closed its node or the session, and the channel had not ended.
            Some(EndCause::Goodbye | EndCause::EndedByPeer { .. }) => ErrorKind::UnexpectedEof,
            cause => of_cause(cause),
        },
        RecvErrorKind::Memory => ErrorKind::OutOfMemory,
        _ => ErrorKind::Other,
    }
}

fn of_wait(error: &WaitError) -> ErrorKind {
    match error.kind() {
        WaitErrorKind::Timeout | WaitErrorKind::NotOpened => ErrorKind::TimedOut,
        WaitErrorKind::NotSent => ErrorKind::InvalidInput,
        WaitErrorKind::Mismatch => ErrorKind::InvalidData,
        WaitErrorKind::Disconnected => of_sending(error.cause()),
        _ => ErrorKind::Other,
    }
}

fn of_call(error: &CallError) -> ErrorKind {
    match error.kind() {
        CallErrorKind::DeadlineExceeded => ErrorKind::TimedOut,
        CallErrorKind::Suspended => ErrorKind::NotConnected,
        CallErrorKind::NotSent => error.send_error().map_or(ErrorKind::Other, of_send),
        CallErrorKind::InvalidRequest
        | CallErrorKind::InvalidReply
        | CallErrorKind::ReplyTooLong
        | CallErrorKind::ReplyNotEncoded => ErrorKind::InvalidData,
        CallErrorKind::ServiceEnded | CallErrorKind::Lost => ErrorKind::ConnectionReset,
        CallErrorKind::Overloaded
        | CallErrorKind::HandedBack
        | CallErrorKind::Draining
        | CallErrorKind::Refused => ErrorKind::ConnectionRefused,
        _ => ErrorKind::Other,
    }
}

fn of_log(error: &LogError) -> ErrorKind {
    match error.kind() {
        LogErrorKind::Ahead => ErrorKind::InvalidData,
        LogErrorKind::NoSession => ErrorKind::NotConnected,
        LogErrorKind::Timeout => ErrorKind::TimedOut,
        LogErrorKind::Send => error.send_error().map_or(ErrorKind::Other, of_send),
        LogErrorKind::Beyond => ErrorKind::InvalidInput,
        _ => ErrorKind::Other,
    }
}

/// Returns the kind for what ended a channel, at its sender.
fn of_sending(cause: Option<&EndCause>) -> ErrorKind {
    match cause {
        Some(
            EndCause::PeerClosed(CloseReason::Dropped)
            | EndCause::Goodbye
            | EndCause::EndedByPeer { .. },
        ) => ErrorKind::BrokenPipe,
        cause => of_cause(cause),
    }
}

/// Returns the kind for what ended a channel, at either end.
fn of_cause(cause: Option<&EndCause>) -> ErrorKind {
    match cause {
        Some(
            EndCause::PeerClosed(_)
            | EndCause::PeerGone { .. }
            | EndCause::Goodbye
            | EndCause::EndedByPeer { .. },
        ) => ErrorKind::ConnectionReset,
        Some(EndCause::Memory(_)) => ErrorKind::OutOfMemory,
        _ => ErrorKind::ConnectionAborted,
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error;

    use ibex_transport::session::ChannelError;

    use super::*;

    fn into_io(error: impl Into<io::Error>) -> io::Error {
        error.into()
    }

    /// A program that asks a socket's error for its kind, and reports the text, loses nothing.
    #[test]
    fn the_kind_is_that_of_a_socket_and_the_error_is_within() {
        let kinds = [
            (
                into_io(SendError::from(ChannelError::WouldBlock)),
                ErrorKind::WouldBlock,
            ),
            (
                into_io(RecvError::from(ChannelError::WouldBlock)),
                ErrorKind::WouldBlock,
            ),
            (
                into_io(RecvError::from(ChannelError::NotOpenYet)),
                ErrorKind::TimedOut,
            ),
            (
                into_io(RecvError::from(ChannelError::Ended)),
                ErrorKind::UnexpectedEof,
            ),
            (
                into_io(ConnectError::lost_runtime("replica:7000".to_owned())),
                ErrorKind::ConnectionAborted,
            ),
        ];
        for (error, kind) in kinds {
            assert_eq!(error.kind(), kind, "{error}");
        }
        let ended = RecvError::from(ChannelError::Ended);
        let text = ended.to_string();
        let error = into_io(ended);
        assert_eq!(error.to_string(), text);
        assert!(
            error
                .into_inner()
                .is_some_and(|inner| inner.is::<RecvError>())
        );
        let inner: Box<dyn Error + Send + Sync> =
            into_io(RecvError::from(ChannelError::Ended)).into();
        assert!(inner.downcast::<io::Error>().is_ok());
    }
}
