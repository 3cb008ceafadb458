//! The source of a service's frames, and the requests that wait for a handler.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
};

use ibex_core::{
    FanInEvent, RecvError, RecvErrorKind,
    extend::{
        ChannelError, Gathered, Opener, RawMessage, ReceiveHandle,
        parking::{Patience, Ticket},
    },
};

use crate::{
    service::{
        pace::ServicePace,
        request::ArrivedRequest,
        request_frame::{RequestFrame, RequestFrames, Seat},
    },
    waiter::Waiter,
};

/// See the module. Nothing comes from it until it [begins](Self::begin).
#[derive(Default)]
pub(crate) struct RequestSource {
    from: From,
    pub(crate) backlog: Backlog,
    pub(crate) pace: ServicePace,
    /// Frames that no caller of ibex sends.
    pub(crate) strays: Arc<AtomicU64>,
    is_over: bool,
    /// The error that ended the source, until it is returned.
    error: Option<RecvError>,
}

#[derive(Default)]
pub(crate) enum From {
    Node(Gathered<RequestFrames>),
    /// The receiving end of a single peer's requests, with the place of that caller until its
    /// channel has ended, and the ticket of who waits until the caller takes its replies.
    Peer(ReceiveHandle, Seat, Option<Ticket>),
    #[default]
    Nobody,
}

/// Requests that wait for a handler. The first ones lie where they came in. Later requests are
/// copied out, so that frames for handlers come through behind them.
#[derive(Default)]
pub(crate) struct Backlog {
    requests: VecDeque<ArrivedRequest>,
    /// Requests of callers that do not take their replies.
    held_up: VecDeque<ArrivedRequest>,
    copied_bytes: usize,
}

impl RequestSource {
    /// Takes in the frames of all peers of a node.
    pub(crate) fn begin(&mut self, from: From) {
        self.from = from;
    }

    /// The next frame, if one is there; runs no turn.
    pub(crate) fn find(&mut self) -> Option<RequestFrame> {
        while !self.is_over {
            let taken = match &mut self.from {
                From::Node(fan_in) => match fan_in.find() {
                    Some(event) => self.of_event(Some(event)),
                    None if fan_in.is_over() => self.of_event(None),
                    None => return None,
                },
                From::Peer(handle, seat, _) if !RequestFrames::is_held_up(seat) => {
                    let received = handle.poll().transpose()?;
                    self.of_message(received)
                }
                From::Peer(..) | From::Nobody => return None,
            };
            if taken.is_some() {
                return taken;
            }
        }
        None
    }

    /// Waits until something has happened, and returns the next frame, if it was that. A
    /// task may spin for a moment before it is pending, but a waker may not.
    pub(crate) fn wait(
        &mut self,
        waiter: Waiter<'_>,
        may_spin: bool,
    ) -> Poll<Option<RequestFrame>> {
        let taken = match &mut self.from {
            From::Node(fan_in) => {
                let event = match waiter {
                    Waiter::Thread(_) => fan_in.next(),
                    Waiter::Task(waker) => {
                        let mut context = Context::from_waker(waker);
                        ready!(fan_in.poll_for(&mut context, may_spin))
                    }
                };
                self.of_event(event)
            }
            From::Peer(handle, seat, held) => {
                if let Some(client) = &seat.client
                    && client.outbox.is_held_up()
                {
                    ready!(client.outbox.poll_taken(waiter, held));
                    self.backlog.renew();
                    return Poll::Ready(None);
                }
                // What was held up is looked at again.
                if self.backlog.renew() {
                    return Poll::Ready(None);
                }
                let received = match waiter {
                    Waiter::Thread(_) => handle.receive(Patience::FOREVER),
                    Waiter::Task(waker) => {
                        // Takes back an older waker: it may not be called for messages behind those
                        // that were taken.
                        handle.leave();
                        ready!(match may_spin {
                            true => handle.poll_receive(waker),
                            false => handle.poll_receive_at_once(waker),
                        })
                    }
                };
                self.of_message(received)
            }
            From::Nobody => None,
        };
        Poll::Ready(taken)
    }

    fn of_event(&mut self, event: Option<FanInEvent<RequestFrame>>) -> Option<RequestFrame> {
        match event {
            None => {
                self.is_over = true;
                return None;
            }
            Some(FanInEvent::Message(_, frame)) => return Some(frame),
            Some(FanInEvent::Joined(_) | FanInEvent::Ended(_)) => {}
            Some(FanInEvent::Lost(peer, error)) => {
                self.count_if_corrupt(&error);
                tracing::debug!(%peer, %error, "a caller of a service");
            }
        }
        // A caller takes its replies again, or is gone.
        self.backlog.renew();
        None
    }

    fn of_message(&mut self, received: Result<RawMessage, ChannelError>) -> Option<RequestFrame> {
        let From::Peer(handle, seat, _) = &mut self.from else {
            return None;
        };
        match received.and_then(|raw| seat.open(handle, raw)) {
            Ok(frame) => Some(frame),
            Err(error) if error.spares_channel() => {
                self.count_if_corrupt(&error.into());
                None
            }
            Err(error) => {
                self.is_over = true;
                if !matches!(error, ChannelError::Ended) {
                    self.error = Some(error.into());
                }
                self.from = From::Nobody;
                None
            }
        }
    }

    /// Returns whether no more frames come.
    pub(crate) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the end, once nothing more comes. Its error is returned once.
    pub(crate) fn over<T>(&mut self) -> Option<Result<Option<T>, RecvError>> {
        self.is_over
            .then(|| self.error.take().map_or(Ok(None), Err))
    }

    /// Returns whether a call for the next request has something to return.
    pub(crate) fn has_next(&self) -> bool {
        self.is_over || self.backlog.len() > 0
    }

    fn count_if_corrupt(&self, error: &RecvError) {
        if error.kind() == RecvErrorKind::Corrupt {
            self.count_stray();
        }
    }

    pub(crate) fn count_stray(&self) {
        self.strays.fetch_add(1, Ordering::Relaxed);
    }

    /// Receives no more.
    pub(crate) fn close(&mut self) {
        self.is_over = true;
        self.from = From::Nobody;
    }
}

impl Backlog {
    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// The bytes of the requests that were copied out.
    pub(crate) fn copied_bytes(&self) -> usize {
        self.copied_bytes
    }

    /// Gives a request back for which there is no room.
    #[allow(clippy::result_large_err, reason = "the error gives the request back")]
    pub(crate) fn push(&mut self, mut request: ArrivedRequest) -> Result<(), ArrivedRequest> {
        if self.requests.len() >= IN_PLACE {
            let bytes = request.body.bytes().len();
            if self.copied_bytes + bytes > MAX_COPIED_BYTES {
                return Err(request);
            }
            self.copied_bytes += bytes;
            request.copied_bytes = bytes;
            request.body.copy_out();
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// Takes the next request whose caller takes its replies.
    pub(crate) fn pop(&mut self) -> Option<ArrivedRequest> {
        loop {
            let request = self.requests.pop_front()?;
            if !request.call.client.outbox.is_held_up() {
                return Some(self.let_go(request));
            }
            self.held_up.push_back(request);
        }
    }

    /// Takes any request, because none is handed out any more.
    pub(crate) fn pop_any(&mut self) -> Option<ArrivedRequest> {
        let next = self.requests.pop_front();
        let request = next.or_else(|| self.held_up.pop_front())?;
        Some(self.let_go(request))
    }

    /// Has those requests looked at again whose callers did not take their replies. Returns whether
    /// there are any.
    fn renew(&mut self) -> bool {
        let has_some = !self.held_up.is_empty();
        self.requests.extend(self.held_up.drain(..));
        has_some
    }

    fn let_go(&mut self, request: ArrivedRequest) -> ArrivedRequest {
        self.copied_bytes -= request.copied_bytes;
        request
    }
}

/// Requests that wait where they came in.
const IN_PLACE: usize = 32;
/// The most bytes of copied requests, which wait while handlers wait for their callers and no one
/// asks for requests. Requests beyond it are refused.
const MAX_COPIED_BYTES: usize = 64 << 20;
