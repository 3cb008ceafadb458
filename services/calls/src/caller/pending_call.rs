//! A call that has not ended. Dropping it cancels the call.

use std::{
    borrow::Borrow,
    task::{Poll, ready},
    time::Instant,
};

use ibex_core::{
    codec::Codec,
    extend::{CallTime, parking::Ticket},
};

use crate::Reply;
use crate::{
    caller::{
        caller_ref::CallerRef,
        slots::{ArrivedFrame, CallKey},
        state::CallerState,
    },
    error::{CallError, CallErrorKind, CallFailure, MAX_FAILURE_BYTES, Refused, RepliesOver},
    frame::{Content, DecodedPayload, Extended},
    header::{CallId, Header, Kind},
    late_notice,
    no_reply::NoReply,
    options::CallOptions,
    outbox::Unsent,
    waiter::Waiter,
};

/// The next reply, or the end of a stream.
pub(crate) type NextReply<R, C> = Result<Option<Reply<R, C>>, CallError>;

/// A call's place. Dropping it cancels the call, if it went out and has not ended.
pub(crate) struct PendingCall<L: Borrow<CallerRef> + Clone> {
    caller: L,
    key: CallKey,
    id: Option<CallId>,
    kind: Kind,
    window: u16,
    deadline: Option<Instant>,
    fails_while_suspended: bool,
    /// The request went out.
    pub(crate) is_sent: bool,
    /// The last frame has come, or none will.
    pub(crate) is_over: bool,
    /// The wait for room, if a task has one.
    room: Option<Ticket>,
    /// The time of the call, if somebody wants to know it, and the kind of its error.
    time: Option<CallTime>,
    error: Option<CallErrorKind>,
}

impl<L: Borrow<CallerRef> + Clone> PendingCall<L> {
    /// A place for a call of one reply ([`Kind::Call`]), or of a stream. Nothing is sent yet.
    pub(crate) fn new(
        caller: L,
        kind: Kind,
        deadline: Option<Instant>,
        options: &CallOptions,
    ) -> Self {
        let window = match kind {
            Kind::Stream => options.window,
            _ => 0,
        };
        let state: &CallerRef = caller.borrow();
        let (key, id) = state.slots(|slots| slots.claim(deadline, window));
        Self {
            time: CallTime::start(state.times.as_ref()),
            caller,
            key,
            id,
            kind,
            window,
            deadline,
            fails_while_suspended: options.fails_while_suspended,
            is_sent: false,
            is_over: false,
            room: None,
            error: None,
        }
    }

    fn state(&self) -> &CallerState {
        self.caller.borrow()
    }

    fn header(&self, id: CallId) -> Header {
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        Header::new(id, self.kind)
            .with_count(self.window)
            .with_time_left(self.deadline.map(left))
    }

    // ---- Sending and waiting -----------------------------------------------------------

    /// Sends the request as [`send`](Self::send) does, and waits for that in the calling thread.
    #[inline]
    pub(crate) fn send_in_thread(&mut self, value: impl Content) -> Result<(), CallError> {
        match self.send(Waiter::Thread(self.deadline), value) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Err(self.late()),
        }
    }

    /// Sends the request, with what the caller carries, once it is its turn and there is room.
    #[inline]
    pub(crate) fn send(
        &mut self,
        waiter: Waiter<'_>,
        value: impl Content,
    ) -> Poll<Result<(), CallError>> {
        if matches!(waiter, Waiter::Task(_)) && self.is_late() {
            return Poll::Ready(Err(self.late()));
        }
        match self.fails_while_suspended || self.caller.borrow().may_carry {
            true => self.send_with_extras(waiter, value),
            false => self.send_content(waiter, value),
        }
    }

    #[cold]
    fn send_with_extras(
        &mut self,
        waiter: Waiter<'_>,
        value: impl Content,
    ) -> Poll<Result<(), CallError>> {
        self.check_suspended()?;
        let caller = self.caller.clone();
        match caller.borrow().extension() {
            Some(extension) => self.send_content(waiter, Extended { value, extension }),
            None => self.send_content(waiter, value),
        }
    }

    fn send_content(
        &mut self,
        waiter: Waiter<'_>,
        content: impl Content,
    ) -> Poll<Result<(), CallError>> {
        let state: &CallerState = self.caller.borrow();
        let id = match self.id {
            Some(id) => id,
            None => match ready!(state.poll_turn(self.key, waiter, self.deadline)) {
                Some(id) => *self.id.insert(id),
                None => return Poll::Ready(Err(self.over_before_sent())),
            },
        };
        let mut room = self.room.take();
        let header = || (!state.session.peer_drains()).then(|| self.header(id));
        let sent = state.outbox.send(waiter, &mut room, header, content);
        self.room = room;
        if let (Poll::Pending, Waiter::Task(waker)) = (&sent, waiter)
            && self.deadline.is_some()
        {
            state.wake_late(self.key, waker, self.deadline);
        }
        Poll::Ready(match ready!(sent) {
            Ok(()) => {
                self.is_sent = true;
                Ok(())
            }
            Err(Unsent::Failed(error)) => Err(self.failed(CallFailure::NotSent(error.into()))),
            Err(Unsent::InVain) => Err(self.over_before_sent()),
        })
    }

    /// Returns ready when the limit on calls under way lets the request go out.
    #[cfg(feature = "tower")]
    pub(crate) fn poll_turn(&mut self, waiter: Waiter<'_>) -> Poll<Result<(), CallError>> {
        if self.id.is_none() {
            self.id = ready!(self.state().poll_turn(self.key, waiter, self.deadline));
        }
        Poll::Ready(match self.id.is_none() || self.state().is_over() {
            true => Err(self.over_before_sent()),
            false => Ok(()),
        })
    }

    /// Counts the time from now on.
    pub(crate) fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.deadline = deadline;
        self.time = CallTime::start(self.state().times.as_ref());
        let key = self.key;
        self.state()
            .slots(|slots| slots.set_deadline(key, deadline));
    }

    /// Waits in a thread for the next reply. `None` is the end of a stream.
    pub(crate) fn answer<R: ?Sized, C: Codec<R>>(&mut self) -> NextReply<R, C> {
        match self.poll_answer(Waiter::Thread(self.deadline)) {
            Poll::Ready(answer) => answer,
            Poll::Pending => Err(self.late()),
        }
    }

    /// Waits for the next reply. A thread may wait for less than the time that the call has.
    pub(crate) fn poll_answer<R: ?Sized, C: Codec<R>>(
        &mut self,
        waiter: Waiter<'_>,
    ) -> Poll<NextReply<R, C>> {
        let state = self.state();
        let next = match (waiter, self.id) {
            (Waiter::Thread(until), Some(id)) => state.wait_for_frame(self.key, id, until),
            (Waiter::Task(waker), _) => state.poll_frame(self.key, waker, self.deadline),
            (_, None) => unreachable!("a call that was sent has a name"),
        };
        match next {
            Poll::Ready(Ok(arrived)) => Poll::Ready(self.arrived(arrived)),
            Poll::Ready(Err(over)) => Poll::Ready(Err(self.over(over))),
            Poll::Pending if self.is_late() => Poll::Ready(Err(self.late())),
            Poll::Pending => Poll::Pending,
        }
    }

    // ---- Outcomes --------------------------------------------------------------------

    #[cold]
    fn over(&mut self, over: RepliesOver) -> CallError {
        self.is_over = true;
        match over {
            // A handler may have had the call until its deadline passed.
            RepliesOver::Drained if self.is_late() => self.late(),
            RepliesOver::Lost(why) => self.failed(CallFailure::Lost(why)),
            RepliesOver::Drained => self.failed(CallFailure::Refused(Refused::DRAINING)),
        }
    }

    fn arrived<R: ?Sized, C: Codec<R>>(&mut self, arrived: ArrivedFrame) -> NextReply<R, C> {
        let ArrivedFrame { header, body } = arrived;
        self.is_over = header.kind != Kind::Item;
        let failure = match header.kind {
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
        };
        Err(self.failed(failure))
    }

    /// Notes that a reply is taken, so that the handler may send more.
    fn reply_taken(&self) {
        if self.is_over {
            return;
        }
        let credit = self.state().slots(|slots| slots.item_taken(self.key));
        if let (Some(id), Some(credit)) = (self.id, credit) {
            let header = Header::new(id, Kind::Credit).with_count(credit);
            self.state().outbox.notify(header, Vec::new());
        }
    }

    /// Fails if the session has no connection and the call does not wait for one.
    fn check_suspended(&mut self) -> Result<(), CallError> {
        if !self.fails_while_suspended || !self.state().session.is_suspended() {
            return Ok(());
        }
        let Some(suspended) = self.state().session.cut_off() else {
            return Ok(());
        };
        Err(self.failed(CallFailure::Suspended(suspended)))
    }

    fn is_late(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| Instant::now() >= deadline)
    }

    #[cold]
    fn failed(&mut self, failure: CallFailure) -> CallError {
        let error = CallError::new(
            self.state().service.clone(),
            self.state().peer_name(),
            failure,
        );
        self.error = Some(error.kind());
        error
    }

    #[cold]
    fn late(&mut self) -> CallError {
        // A call that has a number began in time.
        if let (Some(deadline), Some(_)) = (self.deadline, self.id) {
            late_notice::give(self.state().session.node().driver(), deadline.elapsed());
        }
        self.failed(CallFailure::DeadlineExceeded {
            is_sent: self.is_sent,
            is_open: self.is_sent || self.state().outbox.is_open(),
            suspended: self.state().session.cut_off(),
        })
    }

    #[cold]
    fn over_before_sent(&mut self) -> CallError {
        self.failed(CallFailure::Refused(
            match self.state().session.peer_drains() {
                true => Refused::DRAINING,
                false => Refused::CLOSED,
            },
        ))
    }
}

impl<L: Borrow<CallerRef> + Clone> Drop for PendingCall<L> {
    fn drop(&mut self) {
        if let Some(time) = &self.time {
            let error = match self.error {
                Some(kind) => Some(format!("{kind:?}")),
                None => (!self.is_over).then(|| "Cancelled".to_owned()),
            };
            if self.is_sent || self.error.is_some() {
                time.note(&self.state().session, error);
            }
        }
        let state: &CallerState = self.caller.borrow();
        state.outbox.leave(&mut self.room);
        let [next, _own] = state.slots(|slots| slots.leave(self.key));
        if let Some(next) = next {
            next.wake();
        }
        if let Some(id) = self.id
            && self.is_sent
            && !self.is_over
        {
            let cancel = Header::new(id, Kind::Cancel);
            state.outbox.notify(cancel, Vec::new());
        }
    }
}

/// Why the answer to a call of [`Kind::Call`] is a reply.
pub(crate) const ONE_REPLY: &str = "streams alone end without a reply";
