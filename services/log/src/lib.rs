//! Senders that go on after the restart of their peer.
//!
//! A [`LogSender`] sends a log that the program keeps. When the peer's next process has answered how
//! far its log goes, the sender reads the rest from the program's [`LogSource`] and sends it. A
//! [`LogGroup`] does so for several peers, and waits for a quorum of them.
#![forbid(unsafe_code)]

mod error;
mod futures;
mod group;
mod io_error;
mod member_state;
mod progress;
mod sessions;
mod source;
mod steps;
mod until_quorum;

use std::{
    task::Waker,
    time::{Duration, Instant},
};

use ibex_core::{Peer, Selectable, Sender, ToAddress, codec::Codec, extend::DefaultCodec};
use ibex_peers::discovery::Peers;

use self::{
    progress::LogProgress,
    sessions::SessionSource,
    source::{Waiting, is_past, left},
    steps::{FarAnswer, PositionQuestion, SendStep, SendTurn},
};

pub use self::{
    error::{LogError, LogErrorKind},
    group::{LogGroup, LogMember, LogMemberLost},
    member_state::LogMemberState,
    source::{LogAnswer, LogSent, LogSource, LogTurn},
};

/// Sends a log that the program keeps, and goes on after a restart of the far end.
///
/// A [`Sender`] ends with its session, and a session with the process at its other end. A log
/// sender opens the channel again in the next session, and goes on where the far end's log ends.
/// The next session comes from an address that the node keeps connected ([`at`](Self::at)), or from
/// the program, for a far end that connects to this node ([`go_on_with`](Self::go_on_with)).
///
/// # How it works
///
/// The program appends to its log, and then calls [`send`](Self::send) with it. Each call brings
/// the far end up to the log's end: it asks the [`LogSource`] for one message after the other, from
/// the position that it keeps. In a new session, the source first opens the channel and asks the
/// far end how far its log goes, which becomes the position. So a far end that lacks one message
/// and one that lacks all are served by the same calls. ibex copies each message only into the
/// channel, and keeps no second log.
///
/// Positions are those of the log, over all sessions. [`wait_acked`](Self::wait_acked) waits until
/// the far end has acknowledged everything up to a position, or has answered in a later session
/// that it has it. If the far end returns with less than it had acknowledged,
/// [`acked`](Self::acked) goes back.
///
/// # What is promised
///
/// In one session each message arrives once and in order. Across a restart the far end's answer
/// decides: the messages behind it come, in order and without a gap, and none before it. The
/// effects depend on when the far end keeps its position:
///
/// | the far end keeps its position | a message takes effect |
/// |---|---|
/// | together with the effects: in one transaction, or because the log is all that it has | exactly once |
/// | after the effects | at least once |
/// | before the effects | at most once |
///
/// ```
/// # #[cfg(feature = "rkyv")]
/// # mod example {
/// use std::error::Error;
/// use ibex::{Node, Peer, log::{LogAnswer, LogError, LogSender, LogSent, LogSource, LogTurn}};
/// use ibex::prelude::*;
///
/// type Result<R, E = Box<dyn Error + Send + Sync>> = std::result::Result<R, E>;
///
/// #[ibex::message]
/// struct Entry { key: String, value: u64 }
///
/// struct Wal { entries: Vec<Entry> }
///
/// impl LogSource<Entry> for Wal {
///     fn end(&self) -> u64 {
///         self.entries.len() as u64
///     }
///
///     fn resume(&mut self, peer: Peer) -> LogAnswer<Entry> {
///         Box::pin(async move {
///             let asked = peer.caller::<(), u64>("wal position")?;
///             let position = asked.call_async(&()).await?.to_native();
///             Ok((peer.sender("wal")?, position))
///         })
///     }
///
///     fn send_next(&mut self, at: u64, turn: LogTurn<'_, Entry>) -> Result<LogSent> {
///         Ok(turn.send(&self.entries[at as usize], at + 1))
///     }
/// }
///
/// /// Returns once the replica has the entry, whichever process that is by then.
/// fn append(wal: &mut Wal, replica: &mut LogSender<Entry>, entry: Entry) -> Result<(), LogError> {
///     wal.entries.push(entry);
///     let end = wal.end();
///     replica.wait_acked(wal, end)
/// }
///
/// fn ship(node: &Node, entries: impl Iterator<Item = Entry>) -> Result<()> {
///     let peers = node.keep_connected(["replica:7000"])?;
///     let mut replica = LogSender::at(&peers, "replica:7000");
///     let mut wal = Wal { entries: Vec::new() };
///     for entry in entries {
///         append(&mut wal, &mut replica, entry)?;
///     }
///     Ok(())
/// }
/// # }
/// ```
///
/// # Two senders
///
/// Nothing here keeps two programs from sending to one far end. Where one takes the place of another
/// that may still run, each sends a term with the question for the position, and the far end refuses
/// older terms: see [two primaries](https://docs.rs/ibex/latest/ibex/guide/restarting/index.html#two-primaries).
///
/// Dropping a log sender ends its channel in order, as dropping a [`Sender`] does. The guide has a
/// far end as well: [`restarting`](https://docs.rs/ibex/latest/ibex/guide/restarting/index.html).
pub struct LogSender<T: ?Sized, C = DefaultCodec> {
    sessions: SessionSource,
    /// The question in the session that lasts, until the far end has answered.
    question: Option<PositionQuestion<T, C>>,
    /// The session in which the far end gave the last channel up, and how.
    given_up: Option<(Peer, String)>,
    /// The channel, once the far end has answered in the session that lasts.
    channel: Option<Sender<T, C>>,
    progress: LogProgress,
    /// The far end's answer, until the sender's group has noted it.
    answer: Option<FarAnswer>,
}

impl<T: ?Sized, C: Codec<T>> LogSender<T, C> {
    /// Makes a log sender for the peer at `address`, which is one of those that a node [keeps
    /// connected](ibex_peers::KeepConnected::keep_connected), written as the discovery writes it. Its calls wait
    /// until the peer is connected, and again after the end of a session. An address that is not one
    /// of those is waited for without end.
    ///
    /// Its calls fail with [`NoSession`](LogErrorKind::NoSession) once `peers` are dropped or the
    /// node is closed.
    #[must_use]
    pub fn at(peers: &Peers, address: impl ToAddress) -> Self {
        Self::from(SessionSource::Kept(peers.kept_peer(address)))
    }

    /// Makes a log sender for sessions that the program gives it one after the other, by
    /// [`go_on_with`](Self::go_on_with). It is meant for a far end that connects to this node.
    ///
    /// While it has none its calls fail with [`NoSession`](LogErrorKind::NoSession).
    #[must_use]
    pub fn new() -> Self {
        Self::from(SessionSource::Given(Err(
            "it was given none: give it one by `go_on_with`".to_owned(),
        )))
    }

    fn from(sessions: SessionSource) -> Self {
        Self {
            sessions,
            question: None,
            given_up: None,
            channel: None,
            progress: LogProgress::default(),
            answer: None,
        }
    }

    /// Goes on in this session, beginning with the next call. The channel in the session before is
    /// aborted, since the log goes on elsewhere, and a kept address is no longer followed.
    pub fn go_on_with(&mut self, peer: Peer) {
        self.question = None;
        self.abort_channel();
        self.given_up = None;
        self.sessions = SessionSource::Given(Ok(peer));
    }

    /// Sends all of `log` that the far end lacks, and returns the position behind it. Waits for the
    /// session, the source's answer and room in the channel.
    ///
    /// [`Sender::send`] says what wakes it, and what its return means for a message.
    ///
    /// # Errors
    ///
    /// [`LogError`]. The end of a session is none, as long as another may follow.
    pub fn send<L: LogSource<T, C>>(&mut self, log: &mut L) -> Result<u64, LogError> {
        self.send_by(log, None)
    }

    /// Sends as [`send`](Self::send) does, for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send), and [`Timeout`](LogErrorKind::Timeout).
    pub fn send_timeout<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        timeout: Duration,
    ) -> Result<u64, LogError> {
        self.send_by(log, Instant::now().checked_add(timeout))
    }

    /// Sends the next message of `log` if there is a session, the far end has answered in it, and
    /// there is room now. Returns whether it did; it does not if the far end lacks nothing. It
    /// never waits.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn try_send<L: LogSource<T, C>>(&mut self, log: &mut L) -> Result<bool, LogError> {
        loop {
            match self.poll_some(log, (1, Waiting::No), Waker::noop())? {
                (0, SendTurn::More) => {}
                (sent, _) => return Ok(sent > 0),
            }
        }
    }

    fn send_by<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        deadline: Option<Instant>,
    ) -> Result<u64, LogError> {
        loop {
            if !self.resume(log, deadline)? {
                return Err(self.timed_out(log, self.missing()));
            }
            match self.step(log, Waiting::Until(deadline))? {
                SendStep::Sent | SendStep::Restarted
                    if is_past(deadline) && self.position() < log.end() =>
                {
                    return Err(self.timed_out(log, "there was more to send".to_owned()));
                }
                SendStep::Sent | SendStep::Restarted => {}
                SendStep::AtEnd => return Ok(self.position()),
                SendStep::NotYet(late) => {
                    let why = late.map_or_else(String::new, |late| late.to_string());
                    return Err(self.timed_out(log, why));
                }
            }
        }
    }

    /// Sends as [`send`](Self::send) does, and waits until the far end has acknowledged the log up
    /// to `position`.
    ///
    /// If the far end dropped one of those messages without acknowledging it, the far end does not
    /// have that message. The sender then aborts the channel and asks the far end again where the
    /// log goes on. This happens in the same session if the far end opens its end again.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send), and [`Beyond`](LogErrorKind::Beyond) if the log ends
    /// before `position`.
    pub fn wait_acked<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
    ) -> Result<(), LogError> {
        self.wait_acked_by(log, position, None)
    }

    /// Does the same for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`wait_acked`](Self::wait_acked), and [`Timeout`](LogErrorKind::Timeout).
    pub fn wait_acked_timeout<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        timeout: Duration,
    ) -> Result<(), LogError> {
        self.wait_acked_by(log, position, Instant::now().checked_add(timeout))
    }

    fn wait_acked_by<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
        deadline: Option<Instant>,
    ) -> Result<(), LogError> {
        loop {
            self.send_by(log, deadline)?;
            let message = self.unacked(position)?;
            let (Some(message), Some(channel)) = (message, &mut self.channel) else {
                return Ok(());
            };
            let waited = match deadline {
                None => channel.wait_acked(message),
                Some(deadline) => channel.wait_acked_timeout(message, left(deadline)),
            };
            self.waited(log, waited)?;
        }
    }

    /// Returns the position up to which everything was sent, or the far end has answered that it
    /// has it.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.progress.position()
    }

    /// The far end has the log up to here, as far as this end knows.
    #[must_use]
    pub fn acked(&self) -> u64 {
        let counts = self.channel.as_ref().map(Sender::counts);
        self.progress.acked(counts.unwrap_or_default())
    }

    /// Returns the wait for the acknowledgement of `position`, for a [`Select`](ibex_core::Select).
    /// `None` if it is acknowledged, was not sent, or there is no session. The end of the session
    /// ends this wait too.
    #[must_use]
    pub fn until_acked(&self, position: u64) -> Option<impl Selectable + Copy> {
        let channel = self.channel.as_ref().filter(|_| self.acked() < position)?;
        let message = self.progress.message_at(position)?;
        Some(channel.until_acked(message))
    }

    /// Returns the channel in the present session, so that the program can end it in its own way:
    /// by a last message that is no part of the log, by [`Sender::close`] or by [`Sender::abort`].
    /// `None` if there is no session now, or the far end was not asked in it.
    #[must_use]
    pub fn into_channel(self) -> Option<Sender<T, C>> {
        self.channel
    }
}

impl<T: ?Sized, C: Codec<T>> Default for LogSender<T, C> {
    fn default() -> Self {
        Self::new()
    }
}

ibex_core::extend::debug_fields! {
    [T: ?Sized, C] LogSender<T, C>: |sender|
        channel = sender.channel, position = sender.progress.position()
}
