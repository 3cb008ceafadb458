//! The call that a request is of, and its answers on their way.

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Instant,
};

use ibex_core::{
    SendError, SendErrorKind,
    extend::{
        CallTime,
        parking::{self, Ticket},
    },
};

use super::caller_wait::CallerWait;
use crate::{
    error::Refused,
    error::answers as errors,
    frame::{Content, FrameBody},
    header::{CallId, Header, Kind},
    no_reply::NoReply,
    outbox::Unsent,
    service::client::Client,
    waiter::Waiter,
};

/// The call that a request is of.
pub(crate) struct Call {
    pub(crate) client: Arc<Client>,
    pub(crate) id: CallId,
    pub(super) is_stream: bool,
    pub(crate) deadline: Option<Instant>,
    /// When a handler got it.
    pub(super) begun: Option<Instant>,
    /// True once the request was answered or given back.
    pub(super) is_over: bool,
    /// How the handler ended it without a reply.
    ended_by: Option<&'static str>,
    /// What the caller learns if there is no answer.
    no_reply: NoReply,
    /// The time of the handling, if somebody wants to know it.
    time: Option<CallTime>,
}

/// A request that waits for a handler, not yet decoded.
pub(crate) struct ArrivedRequest {
    pub(crate) call: Call,
    pub(crate) body: FrameBody,
    /// The bytes that were copied out while it waits.
    pub(crate) copied_bytes: usize,
}

impl Call {
    pub(crate) fn new(client: Arc<Client>, header: &Header, deadline: Option<Instant>) -> Self {
        // COUNTED, pairs with `Runtime::begin_drain`: `is_draining` is read after this.
        client.service.in_progress.fetch_add(1, Ordering::SeqCst);
        Self {
            time: CallTime::start(client.service.times.as_ref()),
            client,
            id: header.id,
            is_stream: header.kind == Kind::Stream,
            deadline,
            begun: None,
            is_over: false,
            ended_by: None,
            no_reply: NoReply::Dropped,
        }
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.client.is_cancelled(self.id) || {
            self.client.service.run_claimed();
            self.client.is_cancelled(self.id)
        }
    }

    /// Returns whether the caller has forgotten the call, so that it could not use an answer. A
    /// passed deadline alone does not count.
    pub(super) fn is_dropped_by_caller(&self) -> bool {
        self.client.is_dropped(self.id)
    }

    pub(super) fn poll_cancelled(&self, context: &mut Context<'_>) -> Poll<()> {
        self.client.set_waker(self.id, Some(context.waker()));
        match self.is_cancelled() {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    }

    /// Sends an item of a stream. Waits while the caller has as many items as it takes, and while
    /// the channel of replies is full.
    #[inline]
    pub(super) fn send_item(&self, item: impl Content) -> Result<(), SendError> {
        let waiter = Waiter::Thread(self.deadline);
        match self.poll_send(&mut ItemWait::default(), waiter, item) {
            Poll::Ready(sent) => sent,
            Poll::Pending => Err(errors::cancelled()),
        }
    }

    /// Sends an item of a stream, for a task.
    pub(super) async fn send_item_async<'a>(&'a self, item: impl Content) -> Result<(), SendError> {
        let poll = |wait: &mut ItemWait<'a>, context: &mut Context<'_>| {
            self.poll_send(wait, Waiter::Task(context.waker()), item)
        };
        let leave = |wait: &mut ItemWait<'a>| self.client.outbox.leave(&mut wait.room);
        parking::future(ItemWait::default(), poll, leave).await
    }

    /// Sends an item. Uses no credit up, since the item may yet fail.
    #[inline]
    fn poll_send<'a>(
        &'a self,
        wait: &mut ItemWait<'a>,
        waiter: Waiter<'_>,
        item: impl Content,
    ) -> Poll<Result<(), SendError>> {
        let (client, id) = (&self.client, self.id);
        match client.credit(id) {
            Some(found) => found?,
            None => {
                wait.caller.get_or_insert_with(|| CallerWait::on(client));
                ready!(client.poll_credit(id, waiter))?;
            }
        }
        wait.caller = None;
        let header = || (!client.is_cancelled(id)).then(|| Header::new(id, Kind::Item));
        let polled = client.outbox.send(waiter, &mut wait.room, header, item);
        if let (Poll::Pending, Waiter::Task(waker)) = (&polled, waiter) {
            // A caller that does not take its replies may cancel, which wakes this task.
            client.set_waker(id, Some(waker));
            if client.is_cancelled(id) {
                return Poll::Ready(Err(errors::cancelled()));
            }
        }
        polled.map(sent)
    }

    /// Uses the credit of an item up if it was sent, and keeps the error if it was not.
    pub(super) fn item_sent(&mut self, sent: Result<(), SendError>) -> Result<(), SendError> {
        self.noted(sent)?;
        self.client.use_credit(self.id);
        Ok(())
    }

    /// Notes that no handler gets the request.
    pub(crate) fn give_back(mut self, reason: Refused) {
        self.is_over = true;
        self.ended_by = Some("HandedBack");
        if !self.is_dropped_by_caller() {
            self.client.refuse(self.id, reason);
        }
    }

    /// Ends the call without waiting. A caller whose deadline has passed is notified too; otherwise it
    /// might conclude from the node's drain that no handler had the call.
    pub(super) fn finish(&mut self, kind: Kind, code: u32, text: &str) {
        self.is_over = true;
        self.ended_by = (kind == Kind::Failed).then_some("Failed");
        if !self.is_dropped_by_caller() {
            let header = Header::new(self.id, kind).with_code(code);
            self.client.notify(header, text.as_bytes().to_vec());
        }
    }

    /// Keeps what an answer failed by, for the case that no other follows.
    pub(super) fn noted(&mut self, sent: Result<(), SendError>) -> Result<(), SendError> {
        match &sent {
            // It says nothing of why there is no answer.
            Err(error) if error.kind() == SendErrorKind::Cancelled => {}
            Err(error) => self.no_reply = NoReply::of(error),
            Ok(()) => self.no_reply = NoReply::Dropped,
        }
        sent
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        let is_dropped = self.is_dropped_by_caller();
        if !self.is_over && !is_dropped {
            let header = Header::new(self.id, Kind::Unanswered);
            let header = header.with_count(self.no_reply.as_count());
            self.client.notify(header, self.no_reply.to_bytes());
        }
        self.client.finish(self.id);
        if let Some(begun) = self.begun {
            let now = Instant::now();
            // One that waits until its deadline, or until its caller leaves, says nothing.
            if !is_dropped && self.deadline.is_none_or(|deadline| now < deadline) {
                self.client.service.handling.note(now - begun);
            }
        }
        if let (Some(_), Some(time)) = (self.begun, &self.time) {
            let error = match is_dropped {
                _ if self.is_over => self.ended_by,
                true => Some("Cancelled"),
                false => Some("Unanswered"),
            };
            time.note(&self.client.session, error.map(str::to_owned));
        }
        let node = self.client.session.node();
        if self.begun.is_some() && node.is_draining() {
            node.count_drained_call();
        }
        // ENDED, pairs with `ServiceState::running`: a thread that sees the lower count also
        // sees what was said and counted before.
        self.client
            .service
            .in_progress
            .fetch_sub(1, Ordering::Release);
        node.wake_drain();
    }
}

/// The wait of a handler that sends an item.
#[derive(Default)]
struct ItemWait<'a> {
    /// Present while the caller has as many items as it takes.
    caller: Option<CallerWait<'a>>,
    room: Option<Ticket>,
}

/// Says what the sending of an answer means for its handler.
pub(super) fn sent(sent: Result<(), Unsent>) -> Result<(), SendError> {
    match sent {
        Ok(()) => Ok(()),
        // The caller's end is gone, and so is the caller that waits.
        Err(Unsent::InVain) => Err(errors::cancelled()),
        Err(Unsent::Failed(error)) if error.cause().is_some() => Err(errors::cancelled()),
        Err(Unsent::Failed(error)) => Err(errors::of_answer(error)),
    }
}
