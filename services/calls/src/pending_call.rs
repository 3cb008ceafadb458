//! A call that has not ended. Dropping it cancels the call.

use std::{
    ops::Deref,
    task::{Poll, Waker, ready},
    time::Instant,
};

use ibex_core::{
    codec::Codec,
    extend::{
        CallTime,
        parking::{Ticket, TimedOut},
    },
};

use super::{
    error::{CallError, CallFailure, MAX_FAILURE_BYTES, Refused, RepliesOver},
    frame::{Content, DecodedPayload, Extended},
    header::{CallId, Header, Kind},
    late_notice,
    line::Line,
    line_ref::LineRef,
    no_reply::NoReply,
    options::{CallOptions, Extras},
    outbox::Unsent,
    slots::{ArrivedFrame, CallKey, CallPoll},
};
use crate::{Reply, call_extension::WrittenExtension};

/// The next reply, or the end of a stream.
pub(super) type NextReply<R, C> = Result<Option<Reply<R, C>>, CallError>;

/// A call's place. Dropping it cancels the call, if it went out and has not ended.
pub(super) struct PendingCall<L: Deref<Target = Line>> {
    pub(super) line: L,
    key: CallKey,
    id: Option<CallId>,
    kind: Kind,
    window: u16,
    deadline: Option<Instant>,
    extras: Extras,
    /// The request went out.
    pub(super) is_sent: bool,
    /// The last frame has come, or none will.
    pub(super) is_over: bool,
    /// The wait for room, if a task has one.
    room: Option<Ticket>,
    /// The time of the call, if somebody wants to know it.
    time: Option<CallTime>,
}

impl<L: Deref<Target = Line>> PendingCall<L> {
    /// A place for a call of one reply ([`Kind::Call`]), or of a stream. Nothing is sent yet.
    pub(super) fn new(
        line: L,
        kind: Kind,
        deadline: Option<Instant>,
        options: &CallOptions,
    ) -> Self {
        let window = match kind {
            Kind::Stream => options.items(),
            _ => 0,
        };
        let (key, id) = line.slots().claim(deadline, window);
        Self {
            time: CallTime::start(line.times.as_ref()),
            line,
            key,
            id,
            kind,
            window,
            deadline,
            extras: options.extras(),
            is_sent: false,
            is_over: false,
            room: None,
        }
    }

    fn header(&self, id: CallId) -> Header {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        Header::new(id, self.kind)
            .with_count(self.window)
            .with_time_left(self.deadline.map(left))
    }

    // ---- In a thread -----------------------------------------------------------------

    /// Waits for its turn and for room, and sends the request, with what the caller's share of the
    /// line carries.
    #[inline]
    pub(super) fn send(&mut self, value: impl Content, share: &LineRef) -> Result<(), CallError> {
        match self.extras.are_none() {
            true => self.send_content(value),
            false => self.send_with_extras(value, share),
        }
    }

    #[cold]
    fn send_with_extras(&mut self, value: impl Content, share: &LineRef) -> Result<(), CallError> {
        self.check_suspended()?;
        match self.extension(share) {
            Some(extension) => self.send_content(Extended { value, extension }),
            None => self.send_content(value),
        }
    }

    fn send_content(&mut self, content: impl Content) -> Result<(), CallError> {
        let id = match self.id {
            Some(id) => id,
            None => match self.line.wait_for_turn(self.key, self.deadline) {
                Ok(Some(id)) => *self.id.insert(id),
                Ok(None) => return Err(self.over_before_sent()),
                Err(TimedOut) => return Err(self.late()),
            },
        };
        let header = || (!self.line.session.peer_drains()).then(|| self.header(id));
        let sent = self.line.outbox.send(header, content, self.deadline);
        self.was_sent(sent)
    }

    /// Waits for the next reply. `None` is the end of a stream.
    pub(super) fn answer<R: ?Sized, C: Codec<R>>(&mut self) -> NextReply<R, C> {
        let answer = self.answer_by(self.deadline);
        answer.unwrap_or_else(|| Err(self.late()))
    }

    /// Waits as [`answer`](Self::answer) does, up to this time, which is not after the deadline.
    pub(super) fn answer_by<R: ?Sized, C: Codec<R>>(
        &mut self,
        at: Option<Instant>,
    ) -> Option<NextReply<R, C>> {
        let Some(id) = self.id else {
            unreachable!("a call that was sent has a name")
        };
        match self.line.wait_for_answer(self.key, id, at) {
            Ok(look) => self.looked(look),
            Err(TimedOut) => None,
        }
    }

    // ---- In a task -------------------------------------------------------------------

    /// Sends the request, once it is its turn and there is room.
    pub(super) fn poll_send(
        &mut self,
        waker: &Waker,
        value: impl Content,
        share: &LineRef,
    ) -> Poll<Result<(), CallError>> {
        if self.is_late() {
            return Poll::Ready(Err(self.late()));
        }
        match self.extras.are_none() {
            true => self.poll_send_content(waker, value),
            false => self.poll_send_with_extras(waker, value, share),
        }
    }

    #[cold]
    fn poll_send_with_extras(
        &mut self,
        waker: &Waker,
        value: impl Content,
        share: &LineRef,
    ) -> Poll<Result<(), CallError>> {
        self.check_suspended()?;
        match self.extension(share) {
            Some(extension) => self.poll_send_content(waker, Extended { value, extension }),
            None => self.poll_send_content(waker, value),
        }
    }

    fn poll_send_content(
        &mut self,
        waker: &Waker,
        content: impl Content,
    ) -> Poll<Result<(), CallError>> {
        if self.line.session.peer_drains() {
            return Poll::Ready(Err(self.over_before_sent()));
        }
        let id = match self.id {
            Some(id) => id,
            None => match ready!(self.line.poll_turn(self.key, waker, self.deadline)) {
                Some(id) => *self.id.insert(id),
                None => return Poll::Ready(Err(self.over_before_sent())),
            },
        };
        let mut room = self.room.take();
        let header = || self.header(id);
        let sent = self
            .line
            .outbox
            .poll_send(&mut room, waker, header, content);
        self.room = room;
        if sent.is_pending() && self.deadline.is_some() {
            self.line.wake_late(self.key, waker, self.deadline);
        }
        Poll::Ready(self.was_sent(ready!(sent)))
    }

    /// Returns ready when the limit on calls under way lets the request go out.
    #[cfg(feature = "tower")]
    pub(super) fn poll_turn(&mut self, waker: &Waker) -> Poll<Result<(), CallError>> {
        if self.id.is_none() {
            self.id = ready!(self.line.poll_turn(self.key, waker, self.deadline));
        }
        Poll::Ready(match self.id.is_none() || self.line.is_over() {
            true => Err(self.over_before_sent()),
            false => Ok(()),
        })
    }

    /// Counts the time from now on.
    pub(super) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.time = CallTime::start(self.line.times.as_ref());
        self.line.slots().set_deadline(self.key, deadline);
    }

    /// The next reply. `None` is the end of a stream.
    pub(super) fn poll_answer<R: ?Sized, C: Codec<R>>(
        &mut self,
        waker: &Waker,
    ) -> Poll<NextReply<R, C>> {
        let look = self.line.poll_answer(self.key, waker, self.deadline);
        match self.looked(look) {
            Some(answer) => Poll::Ready(answer),
            None if self.is_late() => Poll::Ready(Err(self.late())),
            None => Poll::Pending,
        }
    }

    /// Returns what the call carries, if it carries anything.
    fn extension<'a>(&self, share: &'a LineRef) -> Option<WrittenExtension<'a>> {
        self.extras.carries().then(|| share.extension()).flatten()
    }

    // ---- Outcomes --------------------------------------------------------------------

    fn was_sent(&mut self, sent: Result<(), Unsent>) -> Result<(), CallError> {
        match sent {
            Ok(()) => {
                self.is_sent = true;
                Ok(())
            }
            Err(Unsent::Failed(error)) => Err(self.failed(CallFailure::NotSent(error.into()))),
            Err(Unsent::Late) => Err(self.late()),
            Err(Unsent::InVain) => Err(self.over_before_sent()),
        }
    }

    fn looked<R: ?Sized, C: Codec<R>>(&mut self, look: CallPoll) -> Option<NextReply<R, C>> {
        match look {
            CallPoll::Nothing => None,
            CallPoll::Over(over) => {
                self.is_over = true;
                Some(Err(match over {
                    // A handler may have had the call until its deadline passed.
                    RepliesOver::Drained if self.is_late() => self.late(),
                    RepliesOver::Lost(why) => self.failed(CallFailure::Lost(why)),
                    RepliesOver::Drained => self.failed(CallFailure::Refused(Refused::DRAINING)),
                }))
            }
            CallPoll::Landed(landed) => Some(self.landed(landed)),
        }
    }

    fn landed<R: ?Sized, C: Codec<R>>(&mut self, landed: ArrivedFrame) -> NextReply<R, C> {
        let ArrivedFrame { header, body } = landed;
        self.is_over = header.kind != Kind::Item;
        Err(self.failed(match header.kind {
            Kind::Reply | Kind::Item if self.is_over || self.kind == Kind::Stream => {
                match DecodedPayload::of(body) {
                    Ok(opened) => {
                        self.reply_taken();
                        return Ok(Some(Reply::new(opened)));
                    }
                    Err(invalid) => CallFailure::InvalidReply(invalid.to_string()),
                }
            }
            Kind::End if self.kind == Kind::Stream => return Ok(None),
            Kind::Failed => {
                let text = body.payload(Header::BYTES).unwrap_or_default();
                let text = &text[..text.len().min(MAX_FAILURE_BYTES)];
                CallFailure::Failed {
                    code: header.code(),
                    text: String::from_utf8_lossy(text).into_owned(),
                }
            }
            Kind::Refused => CallFailure::Refused(Refused(header.count)),
            Kind::Unanswered if header.count > 0 => {
                let payload = body.payload(Header::BYTES).unwrap_or_default();
                CallFailure::NoReply(NoReply::parse(header.count, payload))
            }
            _ if self.is_late() => return Err(self.late()),
            _ => CallFailure::NoReply(NoReply::Dropped),
        }))
    }

    /// Notes that a reply is taken, so that the handler may send more.
    fn reply_taken(&self) {
        if self.is_over {
            return;
        }
        let credit = self.line.slots().item_taken(self.key);
        if let (Some(id), Some(credit)) = (self.id, credit) {
            let header = Header::new(id, Kind::Credit).with_count(credit);
            self.line.outbox.notify(header, Vec::new());
        }
    }

    /// Fails if the session has no connection and the call does not wait for one.
    fn check_suspended(&self) -> Result<(), CallError> {
        if !self.extras.fails_while_suspended() || !self.line.session.is_suspended() {
            return Ok(());
        }
        let Some(suspended) = self.line.session.cut_off() else {
            return Ok(());
        };
        Err(self.failed(CallFailure::Suspended(suspended)))
    }

    fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    #[cold]
    fn failed(&self, failure: CallFailure) -> CallError {
        CallError::new(self.line.service.clone(), self.line.peer_name(), failure)
    }

    #[cold]
    fn late(&self) -> CallError {
        // A call that has a number began in time.
        if let (Some(deadline), Some(_)) = (self.deadline, self.id) {
            late_notice::give(self.line.session.node().driver(), deadline.elapsed());
        }
        self.failed(CallFailure::DeadlineExceeded {
            is_sent: self.is_sent,
            is_open: self.is_sent || self.line.outbox.is_open(),
            suspended: self.line.session.cut_off(),
        })
    }

    #[cold]
    fn over_before_sent(&self) -> CallError {
        self.failed(CallFailure::Refused(
            match self.line.session.peer_drains() {
                true => Refused::DRAINING,
                false => Refused::CLOSED,
            },
        ))
    }
}

impl<L: Deref<Target = Line>> Drop for PendingCall<L> {
    fn drop(&mut self) {
        if let (true, Some(time)) = (self.is_sent, &self.time) {
            time.note(&self.line.session);
        }
        self.line.outbox.leave(&mut self.room);
        let left = self.line.slots().leave(self.key);
        if let Some(next) = left.next {
            next.wake();
        }
        if let Some(id) = self.id
            && self.is_sent
            && !self.is_over
        {
            let cancel = Header::new(id, Kind::Cancel);
            self.line.outbox.notify(cancel, Vec::new());
        }
    }
}

/// Why the answer to a call of [`Kind::Call`] is a reply.
pub(super) const ONE_REPLY: &str = "streams alone end without a reply";
