//! The program's part of a log sender: its log, and the far end's answers.

use std::{error::Error, fmt, future::Future, task::Poll, task::Waker};

use ibex_codec::{Codec, Raw};
use ibex_ring::parking::Patience;
use ibex_transport::channel::SendFailure;

use crate::{Peer, Sender, Sequence, message::DefaultCodec};

/// An answer of a [`LogSource`], or its error, which reaches the caller as
/// [`LogError::Source`](crate::log::LogError::Source).
pub type SourceResult<R> = Result<R, Box<dyn Error + Send + Sync>>;

/// A log that the program keeps, for a [`LogSender`](crate::log::LogSender).
///
/// Positions count from the beginning of the log, which is 0. Behind its *n*-th message a log that
/// counts messages is at position *n*. One may as well count bytes, or records of which several go
/// in a message.
///
/// The methods run in the call that sends, on its thread or in its task. A panic comes through
/// that call; the next one goes on from what was sent.
pub trait LogSource<T: ?Sized, C: Codec<T> = DefaultCodec> {
    /// The position behind the last message.
    fn end(&self) -> Sequence;

    /// Opens the channel in a session that is new, and says up to which position the far end has
    /// the log: 0 if it has nothing of it.
    ///
    /// It asks the far end, by a call or by a message on another channel; whoever answers says
    /// which messages come again. It asks first and opens the channel last: one that it opened and
    /// dropped is an orderly end to the far end. It may wait. It is asked anew where the session
    /// ends meanwhile, and by the next call where it fails or that call is cancelled.
    ///
    /// # Errors
    ///
    /// Any, if there is no answer.
    fn resume(&mut self, peer: &Peer) -> SourceResult<(Sender<T, C>, Sequence)>;

    /// Does the same for the asynchronous calls. As it is provided it calls
    /// [`resume`](Self::resume): a program that waits for the far end there writes its own.
    ///
    /// # Errors
    ///
    /// As [`resume`](Self::resume).
    fn resume_async(
        &mut self,
        peer: &Peer,
    ) -> impl Future<Output = SourceResult<(Sender<T, C>, Sequence)>> {
        async { self.resume(peer) }
    }

    /// Sends the message behind `position` by `turn`, which also takes the position behind that
    /// message. It is called for positions below [`end`](Self::end), and again for one whose
    /// message found no room.
    ///
    /// # Errors
    ///
    /// Any, if the log does not have it: because it was cut off, say.
    fn send_next(&mut self, position: Sequence, turn: LogTurn<'_, T, C>) -> SourceResult<LogSent>;
}

/// The right to send one message of a log. See [`LogSource::send_next`].
#[must_use = "a log without an end is not sent to its end"]
pub struct LogTurn<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    pub(super) sender: &'a mut Sender<T, C>,
    pub(super) waiting: Waiting<'a>,
    pub(super) position: Sequence,
}

/// How a turn waits for room.
#[derive(Clone, Copy)]
pub(super) enum Waiting<'a> {
    Blocking(Patience),
    Task(&'a Waker),
}

/// A message of a log was sent, or the log sender knows why not. Made by a [`LogTurn`].
#[must_use]
#[derive(Debug)]
pub struct LogSent {
    pub(super) message: Poll<Result<Sequence, SendFailure>>,
    pub(super) end: Sequence,
}

impl<T: ?Sized, C: Codec<T>> LogTurn<'_, T, C> {
    /// Sends a message that ends at position `end`; waits for room as long as the call may that
    /// gave the turn.
    ///
    /// # Panics
    ///
    /// If `end` is not behind the position of the turn.
    #[track_caller]
    pub fn send(self, value: &T, end: Sequence) -> LogSent {
        self.check(end);
        let encode = Sender::<T, C>::encoder(value);
        let handle = &mut self.sender.handle;
        let message = match self.waiting {
            Waiting::Blocking(patience) => {
                Poll::Ready(handle.send(C::size(value), patience, encode))
            }
            Waiting::Task(waker) => handle
                .poll_send(waker, C::size(value), encode)
                .map_err(SendFailure::from),
        };
        LogSent { message, end }
    }

    #[track_caller]
    fn check(&self, end: Sequence) {
        let position = self.position;
        assert!(
            end > position,
            "the message behind position {position} of a log cannot end at {end}"
        );
    }
}

impl LogTurn<'_, [u8], Raw> {
    /// Sends a message of `length` bytes that `fill` writes in place, as
    /// [`send`](Self::send) does. `fill` is called once there is room; the bytes are those of
    /// earlier messages until it writes them.
    ///
    /// # Panics
    ///
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn build(self, length: usize, end: Sequence, fill: impl FnOnce(&mut [u8])) -> LogSent {
        self.check(end);
        let handle = &mut self.sender.handle;
        let reserved = match self.waiting {
            Waiting::Blocking(patience) => handle.reserve(length, patience),
            Waiting::Task(waker) => match handle.poll_reserve(waker, Some(length)) {
                Ok(reserved) => reserved.map_err(SendFailure::from),
                Err(_) => {
                    return LogSent {
                        message: Poll::Pending,
                        end,
                    };
                }
            },
        };
        let message = reserved.and_then(|mut bytes| {
            fill(bytes.bytes_mut());
            bytes.publish().map_err(SendFailure::from)
        });
        LogSent {
            message: Poll::Ready(message),
            end,
        }
    }
}

impl<T: ?Sized, C: Codec<T>> fmt::Debug for LogTurn<'_, T, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogTurn")
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
