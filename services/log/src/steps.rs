//! The steps of a log sender, which its blocking calls, its tasks and a group share.
#![forbid(unsafe_code)]

use std::{
    sync::{Mutex, PoisonError},
    task::{Context, Poll, Waker, ready},
    time::Instant,
};

use ibex_core::{
    Peer, SendError, Sender, WaitError, WaitErrorKind,
    codec::Codec,
    extend::{self, Untyped, WakeUps, errors},
};

use super::{
    LogAnswer, LogError, LogMemberState, LogSender, LogSent, LogSource, LogTurn,
    error::{Ended, LogFailure},
    sessions::SessionSource,
    source::{SourceResult, Waiting, is_past},
};

/// The question up to which position the far end of a session has the log.
pub(super) struct PositionQuestion<T: ?Sized, C> {
    peer: Peer,
    /// Never locked: the lock lets threads share a log sender whose answer is pending.
    answer: Mutex<LogAnswer<T, C>>,
}

/// The far end's answer up to which position it has the log.
#[derive(Clone, Copy)]
pub(super) struct FarAnswer {
    pub(super) position: u64,
    /// It had acknowledged more.
    pub(super) has_lost: bool,
}

/// Result of an attempt to send the next message.
pub(super) enum SendStep {
    Sent,
    AtEnd,
    /// There is no room, or the time is up. A call with a time-out has the reason.
    NotYet(Option<SendError>),
    /// Another session may follow.
    Restarted,
}

/// Result of sending a few messages.
pub(super) enum SendTurn {
    /// There is more to send, and perhaps room for it.
    More,
    AtEnd,
    /// There is no session, no answer or no room.
    Pending,
}

impl<T: ?Sized, C: Codec<T>> LogSender<T, C> {
    /// Polls until there is a channel.
    pub(super) fn poll_resume<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        waker: &Waker,
    ) -> Poll<Result<(), LogError>> {
        while self.channel.is_none() {
            // A future that panics is not polled again.
            let mut question = match self.question.take() {
                Some(question) => question,
                None => {
                    let peer = ready!(self.sessions.poll_next(waker))?;
                    let answer = Mutex::new(log.resume(peer.clone()));
                    PositionQuestion { peer, answer }
                }
            };
            let answer = question.answer.get_mut();
            let answer = answer.unwrap_or_else(PoisonError::into_inner);
            let answer = match answer.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(answer) => answer,
                Poll::Pending if question.peer.is_gone() => Err("its session has ended".into()),
                Poll::Pending => {
                    self.question = Some(question);
                    return Poll::Pending;
                }
            };
            self.take_answer(log, &question.peer, answer)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until there is a channel; false if there is none by the deadline.
    pub(super) fn resume<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        deadline: Option<Instant>,
    ) -> Result<bool, LogError> {
        if self.channel.is_some() {
            return Ok(true);
        }
        let changes = WakeUps::new();
        loop {
            changes.forget();
            if let Poll::Ready(resumed) = self.poll_resume(log, changes.waker()) {
                return resumed.map(|()| true);
            }
            let has_changes = match self.sessions.runtime() {
                Some(runtime) if !is_past(deadline) => changes.wait(runtime, deadline),
                _ => false,
            };
            if !has_changes {
                return Ok(false);
            }
        }
    }

    /// Polls to send up to `most` messages, each of which waits for room as `waiting` says. Returns
    /// how many were sent, and why no more. `waker` is left where the next session or the far end's
    /// answer comes.
    pub(super) fn poll_some<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        (most, waiting): (usize, Waiting<'_>),
        waker: &Waker,
    ) -> Result<(usize, SendTurn), LogError> {
        let mut sent = 0;
        for _ in 0..most {
            if self.poll_resume(log, waker)?.is_pending() {
                return Ok((sent, SendTurn::Pending));
            }
            match self.step(log, waiting)? {
                SendStep::Sent => sent += 1,
                SendStep::Restarted => {}
                SendStep::AtEnd => return Ok((sent, SendTurn::AtEnd)),
                SendStep::NotYet(_) => return Ok((sent, SendTurn::Pending)),
            }
        }
        Ok((sent, SendTurn::More))
    }

    /// Looks whether the far end has given up a message before `position` without acknowledging it.
    /// Returns true if the wait for `position` begins anew. Leaves no waker.
    pub(super) fn poll_acked<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        position: u64,
    ) -> Result<bool, LogError> {
        let message = self.unacked(position).unwrap_or_default();
        let channel = self.channel.as_mut().map(Untyped::untyped_mut);
        let Some((channel, message)) = channel.zip(message) else {
            return Ok(false);
        };
        if !channel.is_answered(message) {
            return Ok(false);
        }
        match channel.poll_acked(Waker::noop(), message) {
            Poll::Ready(waited) => self
                .waited(log, waited.map_err(WaitError::from))
                .map(|()| true),
            Poll::Pending => Ok(false),
        }
    }

    /// Returns the sessions, and the present channel.
    pub(super) fn sessions_and_channel(&mut self) -> (&SessionSource, Option<&mut Sender<T, C>>) {
        (&self.sessions, self.channel.as_mut())
    }

    /// Leaves a session that is over although the whole log was sent in it, and nothing else would
    /// notice: the far end may return with less.
    pub(super) fn leave_session_over(&mut self, end: u64) {
        // The channel is asked first, since the session's answer takes the lock of its engine.
        let is_closed = self.channel.as_ref().is_some_and(Sender::is_closed);
        if is_closed && self.position() >= end && self.peer().is_some_and(Peer::is_gone) {
            self.leave_channel();
            self.sessions.end("its last session has ended");
        }
    }

    /// Returns whether a message was refused because the far end takes shorter ones than this end
    /// sends.
    pub(super) fn is_narrow_for(&self, error: &LogError) -> bool {
        let refused = error.send_error();
        let channel = self.channel.as_ref().zip(refused);
        channel.is_some_and(|(channel, refused)| errors::is_narrow_for(channel.untyped(), refused))
    }

    /// Takes back the wakers that polls left.
    pub(super) fn drop_wakers(&mut self) {
        self.sessions.leave();
        if let Some(channel) = &mut self.channel {
            channel.drop_wakers();
        }
    }

    /// Returns the peer in the present session.
    pub(super) fn peer(&self) -> Option<&Peer> {
        self.sessions.present()
    }

    /// Returns the peer in the present session, unless the session has ended and nothing has
    /// noticed it yet. Takes the lock of its engine.
    pub(super) fn lasting_peer(&self) -> Option<&Peer> {
        self.peer().filter(|peer| !peer.is_gone())
    }

    /// Returns the address of the far end, if it is known.
    pub(super) fn far_end(&self) -> Option<String> {
        let address = self.sessions.address().map(str::to_owned);
        address.or_else(|| self.peer().map(|peer| peer.at().to_string()))
    }

    /// Has `waker` called at `at`, or at once if there is no session.
    pub(super) fn wake_at(&self, at: Instant, waker: &Waker) {
        let peer = self.peer();
        if !peer.is_some_and(|peer| extend::session(peer).wake_at(at, waker)) {
            waker.wake_by_ref();
        }
    }

    /// Returns the state of the session, given [`lasting_peer`](Self::lasting_peer).
    pub(super) fn state(&self, lasting: Option<&Peer>) -> LogMemberState {
        match (&self.channel, &self.question) {
            _ if lasting.is_none() => LogMemberState::NoSession {
                why: self.sessions.missing(),
            },
            (Some(channel), _) if channel.untyped().is_open() => LogMemberState::Sending,
            (Some(_), _) => LogMemberState::NotOpened,
            (None, Some(question)) => LogMemberState::Asked {
                after: self.given_up_in(&question.peer).map(str::to_owned),
            },
            (None, None) => LogMemberState::NotAsked,
        }
    }

    /// Returns the obstacle to sending while there is no channel.
    pub(super) fn missing(&self) -> String {
        match &self.question {
            Some(PositionQuestion { peer, .. }) => {
                let after = self.given_up_in(peer).map(|why| format!(" ({why})"));
                format!(
                    "{peer} has not answered yet up to which position it has the log{}",
                    after.unwrap_or_default()
                )
            }
            None => self.sessions.missing(),
        }
    }

    fn take_answer<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        peer: &Peer,
        answer: SourceResult<(Sender<T, C>, u64)>,
    ) -> Result<(), LogError> {
        let (channel, position) = match answer {
            Ok(answer) => answer,
            Err(error) if peer.is_gone() || extend::is_ending(peer) => {
                self.sessions.end(error);
                return Ok(());
            }
            Err(error) => return Err(LogFailure::Source(error).into()),
        };
        let end = log.end();
        if position > end {
            channel.abort();
            let peer = peer.to_string();
            let ahead = LogFailure::Ahead {
                peer,
                position,
                end,
            };
            return Err(ahead.into());
        }
        self.given_up = None;
        self.answer = Some(FarAnswer {
            position,
            has_lost: position < self.acked()
                || self.answer.as_ref().is_some_and(|before| before.has_lost),
        });
        self.progress.resume(position);
        self.channel = Some(channel);
        Ok(())
    }

    /// Sends the next message, if there is one.
    pub(super) fn step<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        waiting: Waiting<'_>,
    ) -> Result<SendStep, LogError> {
        let (position, end) = (self.position(), log.end());
        if position > end {
            return Err(self.shortened(position, end));
        }
        let Some(sender) = self.channel.as_mut().filter(|_| position < end) else {
            return Ok(SendStep::AtEnd);
        };
        if self.progress.is_full() {
            self.progress.settle(sender.counts(), sender.counts());
        }
        let turn = LogTurn {
            sender,
            waiting,
            position,
        };
        let LogSent { message, end } = log.send_next(position, turn).map_err(LogFailure::Source)?;
        match message {
            Poll::Ready(Ok(message)) => {
                self.progress.sent(message, end);
                Ok(SendStep::Sent)
            }
            Poll::Ready(Err(late)) if late.is_transient() => Ok(SendStep::NotYet(Some(late))),
            Poll::Ready(Err(error)) => self.failed(error).map(|()| SendStep::Restarted),
            Poll::Pending => Ok(SendStep::NotYet(None)),
        }
    }

    /// Returns the error of a log that ends before what was sent. The channel is aborted, since what
    /// follows there is another log, and the next call asks the far end for its position again.
    #[cold]
    fn shortened(&mut self, position: u64, end: u64) -> LogError {
        self.abort_channel();
        let peer = self.far_end().unwrap_or_default();
        let shortened = LogFailure::Shortened {
            peer,
            position,
            end,
        };
        shortened.into()
    }

    /// Returns the error, unless another session may follow, which is asked for then.
    fn failed(&mut self, error: SendError) -> Result<(), LogError> {
        if !error.spares_channel() {
            self.leave_channel();
        }
        if let Some(cause) = error.cause() {
            match Ended::of(cause) {
                Ended::Channel => {
                    self.gave_up(error.to_string());
                    return Ok(());
                }
                Ended::Session => {
                    let peer = error.peer().unwrap_or_default();
                    self.sessions.end(format_args!("{peer}: {cause}"));
                    return Ok(());
                }
                Ended::ForGood => {}
            }
        }
        Err(error.into())
    }

    /// Notes how the far end gave the channel up.
    fn gave_up(&mut self, how: String) {
        self.given_up = self.peer().cloned().zip(Some(how));
    }

    /// Returns how the far end gave a channel up in this session, if it did.
    fn given_up_in(&self, peer: &Peer) -> Option<&str> {
        let given_up = self.given_up.as_ref();
        let here = given_up.filter(|(session, _)| session.is_same_session(peer))?;
        Some(&here.1)
    }

    /// Takes the channel away. The channel's last counts are final: no later ones will be known.
    pub(super) fn leave_channel(&mut self) -> Option<Sender<T, C>> {
        let channel = self.channel.take()?;
        self.progress.settle(channel.counts(), channel.counts());
        Some(channel)
    }

    /// Ends the channel without an orderly end, which would mean that the log ends here.
    pub(super) fn abort_channel(&mut self) {
        if let Some(channel) = self.leave_channel() {
            channel.abort();
        }
    }

    /// Returns the message of the channel to wait for until `position` is acknowledged. `None` if it
    /// is, or if there is no channel.
    pub(super) fn unacked(&self, position: u64) -> Result<Option<u64>, LogError> {
        let end = self.position();
        if position > end {
            return Err(LogFailure::Beyond { position, end }.into());
        }
        if position <= self.acked() {
            return Ok(None);
        }
        // A message that the far end dropped may be forgotten here. The last message is then
        // dropped too, so the wait is for that one.
        let last = || self.channel.as_ref().map(|channel| channel.counts().sent);
        Ok(self.progress.message_at(position).or_else(last))
    }

    /// Returns an error unless the wait for an acknowledgement is over or begins anew.
    pub(super) fn waited<L: LogSource<T, C>>(
        &mut self,
        log: &mut L,
        waited: Result<(), WaitError>,
    ) -> Result<(), LogError> {
        match waited {
            Ok(()) => Ok(()),
            // The far end does not have the messages that it dropped, and says where the log goes
            // on. The end of this channel is not the end of the log.
            Err(error) if error.kind() == WaitErrorKind::Unacknowledged => {
                self.gave_up(error.to_string());
                self.abort_channel();
                Ok(())
            }
            Err(error) => match error.into_send_error() {
                Ok(error) => self.failed(error),
                Err(late) => Err(self.timed_out(log, late.to_string())),
            },
        }
    }

    pub(super) fn timed_out<L: LogSource<T, C>>(&self, log: &mut L, why: String) -> LogError {
        let late = LogFailure::Timeout {
            position: self.position(),
            end: log.end(),
            why,
        };
        late.into()
    }
}
