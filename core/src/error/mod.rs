//! Errors: one for each thing that a program asks for.
//!
//! A text has its cause in it, so `source()` does not give that once more: a field that would
//! be taken for the source by its name is written `r#source`.

pub use self::{
    connect::{ConnectError, ConnectErrorKind},
    listen::{ListenError, ListenErrorKind},
    not_opened::NotOpened,
    open::OpenFailure,
    open::{OpenError, OpenErrorKind},
    receive::{RecvError, RecvErrorKind},
    send::{SendError, SendErrorKind},
    wait::{WaitError, WaitErrorKind},
};
pub(crate) use self::{
    listen::{ListenFailure, Required},
    open::Refusal,
    variable::VariableError,
};

use std::{fmt, sync::Arc};

use ibex_transport::channel::EndLabel;

use crate::Suspension;

mod connect;
mod failure;
mod listen;
mod not_opened;
mod open;
mod receive;
mod send;
mod variable;
mod wait;
mod wording;

/// Returns the channel with this name and peer as the user of its end knows it.
fn subject(label: Option<&EndLabel>, name: &str, peer: &str) -> String {
    match label {
        Some(label) => (label.subject)(name, peer),
        None => format!("channel \"{name}\" with {peer}"),
    }
}

/// The suspensions of several peers that a call waited for, each behind a semicolon.
struct Suspensions<'a>(&'a [Arc<Suspension>]);

impl fmt::Display for Suspensions<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (notified, others) = self.0.split_at(self.0.len().min(MOST_SUSPENSIONS));
        notified.iter().try_for_each(|one| write!(f, "; {one}"))?;
        match others.len() {
            0 => Ok(()),
            1 => f.write_str("; 1 more peer has no connection either"),
            more => write!(f, "; {more} more peers have no connection either"),
        }
    }
}

/// Most suspensions that an error describes. A cut of the network suspends all sessions at once.
const MOST_SUSPENSIONS: usize = 3;

#[cfg(test)]
mod tests {
    use std::{error::Error, io};

    use ibex_transport::session::ChannelError;

    use super::*;
    use crate::{ConnectError, Role};

    /// A program that prints an error with its sources, as anyhow does, shows each cause once.
    #[test]
    fn a_cause_that_the_text_tells_is_not_told_again_as_the_source() {
        let refused = || io::Error::from(io::ErrorKind::PermissionDenied);
        let address = || "replica:7000".to_owned();
        let errors: [Box<dyn Error>; 5] = [
            Box::new(ListenError::from(ListenFailure::Address {
                address: address(),
                source: refused(),
            })),
            Box::new(ListenError::from(refused())),
            Box::new(ConnectError::environment(&address(), &refused())),
            Box::new(ConnectError::from(
                ibex_bootstrap::DialError::InvalidAddress {
                    address: address(),
                    source: refused(),
                },
            )),
            Box::new(OpenError::from(Refusal {
                channel: "wal".to_owned(),
                peer: address(),
                end: Role::Sender,
                reason: OpenFailure::SessionOver,
                label: None,
                holder: None,
            })),
        ];
        for error in errors {
            assert!(error.source().is_none(), "{error}");
        }
    }

    fn into_io(error: impl Into<io::Error>) -> io::Error {
        error.into()
    }

    /// A program that asks a socket's error for its kind, and reports the text, loses nothing.
    #[test]
    fn the_kind_is_that_of_a_socket_and_the_error_is_within() {
        let kinds = [
            (
                into_io(SendError::from(ChannelError::WouldBlock)),
                io::ErrorKind::WouldBlock,
            ),
            (
                into_io(RecvError::from(ChannelError::WouldBlock)),
                io::ErrorKind::WouldBlock,
            ),
            (
                into_io(RecvError::from(ChannelError::NotOpenYet)),
                io::ErrorKind::TimedOut,
            ),
            (
                into_io(RecvError::from(ChannelError::Ended)),
                io::ErrorKind::UnexpectedEof,
            ),
            (
                into_io(ConnectError::lost_runtime("replica:7000")),
                io::ErrorKind::ConnectionAborted,
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
