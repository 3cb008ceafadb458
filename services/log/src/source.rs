//! The program's part of a log sender: its log, and the far end's answers.

use std::{
    error::Error,
    future::Future,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use ibex_core::{
    Peer, RegionMessage, SendError, Sender,
    codec::{Codec, Raw},
    extend::DefaultCodec,
};

/// The result of a [`LogSource`]. An error reaches the caller as
/// [`LogErrorKind::Source`](crate::LogErrorKind::Source).
pub(crate) type SourceResult<R> = Result<R, Box<dyn Error + Send + Sync>>;

/// The channel of a session, and the position up to which its far end has the log, once that has
/// answered. [`LogSource::resume`] returns it.
pub type LogAnswer<T, C = DefaultCodec> =
    Pin<Box<dyn Future<Output = SourceResult<(Sender<T, C>, u64)>> + Send>>;

/// A log that the program keeps, for a [`LogSender`](crate::LogSender) or a
/// [`LogGroup`](crate::LogGroup).
///
/// Positions count from the beginning of the log, which is 0. A log that counts messages is at
/// position *n* behind its *n*-th message. A log may also count bytes, or records of which a
/// message holds several.
///
/// A log only grows. A far end's position means that its log equals this one up to there, and what
/// was sent is not compared again. A program that cuts its log or writes a part of it anew therefore
/// also begins anew: it takes the log senders out of their [group](crate::LogGroup::leave), aborts
/// their channels, and makes new senders and a new group. The source then answers
/// positions up to which both logs are equal. A log that ends before what was sent is the error
/// [`Ahead`](crate::LogErrorKind::Ahead). A log that was cut and has grown again is not noticed.
///
/// The methods run in the call that sends, on its thread or in its task. A panic comes through that
/// call, and the next call goes on from what was sent.
pub trait LogSource<T: ?Sized, C: Codec<T> = DefaultCodec> {
    /// The position behind the last message.
    fn end(&self) -> u64;

    /// Asks the far end of a new session up to which position it has the log, and opens the
    /// channel: the future's output. The position is 0 if the far end has nothing.
    ///
    /// An implementation asks by a call or by a message on another channel. If the answer has to be
    /// compared with the log, a checksum say, the program takes it by a [`FanIn`](ibex_core::FanIn)
    /// before the peer joins, and this method returns the position that it has noted. The answer
    /// decides which messages come again. Ask first and open the channel last, because a channel
    /// that is opened and dropped is an orderly end to the far end.
    ///
    /// The future may wait for as long as the far end takes; it does not borrow the log, which can
    /// be sent to others meanwhile. Blocking calls poll it on their thread, so it must not block,
    /// and must not need an executor of its own, as timers of tokio do. A call whose time is up or that
    /// is cancelled leaves the future to the next call.
    ///
    /// The future is dropped, and the method called again, if the session ends meanwhile or the
    /// future panics. It must wake its task when the session ends: calls and channels of the session
    /// do, and a future that waits for something else has to wait for one of them as well. If it
    /// fails, the next call of a log sender calls the method again. A group does so after a second
    /// where the error is one of this crate's, and loses the member for any other.
    ///
    /// # Errors
    ///
    /// Any, if there is no answer.
    fn resume(&mut self, peer: Peer) -> LogAnswer<T, C>;

    /// Sends the message behind `position` by `turn`, which also takes the position behind that
    /// message. It is called for positions below [`end`](Self::end), and again for a message that
    /// found no room.
    ///
    /// # Errors
    ///
    /// Any, if the log does not have it any more, because what lies before a snapshot was dropped,
    /// say. A group loses the member that lacks it, and no other one.
    fn send_next(&mut self, position: u64, turn: LogTurn<'_, T, C>) -> SourceResult<LogSent>;
}

/// The right to send one message of a log. See [`LogSource::send_next`].
#[must_use = "a log without an end is not sent to its end"]
pub struct LogTurn<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    pub(super) sender: &'a mut Sender<T, C>,
    pub(super) waiting: Waiting<'a>,
    pub(super) position: u64,
}

/// The way in which a turn waits for room.
#[derive(Clone, Copy)]
pub(super) enum Waiting<'a> {
    No,
    /// Until the deadline, if there is one.
    Until(Option<Instant>),
    Task(&'a Waker),
}

/// Returns the time that is left until a deadline.
pub(super) fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Checks whether a deadline has passed.
pub(super) fn is_past(deadline: Option<Instant>) -> bool {
    deadline.is_some_and(|deadline| deadline <= Instant::now())
}

/// Proof that a message of a log was sent, or that the log sender knows why not. A [`LogTurn`]
/// makes it.
#[must_use]
#[derive(Debug)]
pub struct LogSent {
    pub(super) message: Poll<Result<u64, SendError>>,
    pub(super) end: u64,
}

impl<T: ?Sized, C: Codec<T>> LogTurn<'_, T, C> {
    /// Sends a message that ends at position `end`. Waits for room as long as the call that gave
    /// the turn may wait.
    ///
    /// # Panics
    ///
    /// If `end` is not behind the position of the turn.
    #[track_caller]
    pub fn send(self, value: &T, end: u64) -> LogSent {
        self.check(end);
        let sender = self.sender;
        let message = match self.waiting {
            Waiting::No => Poll::Ready(sender.try_send(value)),
            Waiting::Until(None) => Poll::Ready(sender.send(value)),
            Waiting::Until(Some(deadline)) => {
                Poll::Ready(sender.send_timeout(value, left(deadline)))
            }
            Waiting::Task(waker) => sender.poll_send(&mut Context::from_waker(waker), value),
        };
        LogSent { message, end }
    }

    #[track_caller]
    fn check(&self, end: u64) {
        let position = self.position;
        assert!(
            end > position,
            "the message behind position {position} of a log cannot end at {end}"
        );
    }
}

impl LogTurn<'_, [u8], Raw> {
    /// Sends a message of `length` bytes that `fill` writes in place, as [`send`](Self::send) does.
    /// `fill` is called once there is room; until it writes them, the bytes are those of earlier
    /// messages.
    ///
    /// # Panics
    ///
    /// The panics of [`send`](Self::send).
    #[track_caller]
    pub fn build(self, length: usize, end: u64, fill: impl FnOnce(&mut [u8])) -> LogSent {
        self.check(end);
        let sender = self.sender;
        let reserved = match self.waiting {
            Waiting::No => Poll::Ready(sender.try_loan(length)),
            Waiting::Until(None) => Poll::Ready(sender.loan(length)),
            Waiting::Until(Some(deadline)) => {
                Poll::Ready(sender.loan_timeout(length, left(deadline)))
            }
            Waiting::Task(waker) => sender.poll_loan(&mut Context::from_waker(waker), length),
        };
        let message = reserved.map(|reserved| {
            let mut bytes = reserved?;
            fill(&mut bytes);
            bytes.send()
        });
        LogSent { message, end }
    }

    /// Sends a slice of the program's memory as [`Sender::send_region`] does, from where it lies if
    /// it can. Waits as [`send`](Self::send) does.
    ///
    /// # Panics
    ///
    /// The panics of [`send`](Self::send).
    #[track_caller]
    pub fn send_region<'a>(self, message: impl Into<RegionMessage<'a>>, end: u64) -> LogSent {
        let message = message.into();
        self.check(end);
        let sender = self.sender;
        let message = match self.waiting {
            Waiting::No => Poll::Ready(sender.try_send_region(message)),
            Waiting::Until(None) => Poll::Ready(sender.send_region(message)),
            Waiting::Until(Some(deadline)) => {
                Poll::Ready(sender.send_region_timeout(message, left(deadline)))
            }
            Waiting::Task(waker) => {
                sender.poll_send_region(&mut Context::from_waker(waker), message)
            }
        };
        LogSent { message, end }
    }
}

ibex_core::extend::debug_fields! {
    [T: ?Sized, C: Codec<T>] LogTurn<'_, T, C>: |turn|
        position = turn.position
}
