//! The source of a service's frames, and the requests that wait for a handler.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker, ready},
};

use ibex_core::{
    ChannelBuilder, FanInEvent, RecvError, RecvErrorKind,
    codec::Codec,
    extend::{
        ChannelError, Gathered, RawMessage, ReceiveHandle,
        parking::{self, Patience, Ticket},
    },
};

use super::{
    opening::reply_version,
    outbox::{NoticesTaken, Outbox},
    request::Request,
    request_frame::{CallTypes, RequestFrame, Seat},
};

/// See the module.
pub(super) struct RequestSource<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> {
    from: From<Q, R, C>,
    pub(super) backlog: Backlog<Q, R, C>,
    /// Frames that no caller of ibex sends.
    strays: u64,
    is_over: bool,
    /// The error that ended the source, until it is returned.
    error: Option<RecvError>,
}

enum From<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> {
    Node(Gathered<CallTypes<Q, R, C>>),
    /// The receiving end of a single peer's requests, with the place of that caller until its
    /// channel has ended, and the ticket of who waits until the caller takes its replies.
    Peer(ReceiveHandle, Seat, Option<Ticket>),
    Nobody,
}

/// Requests that wait for a handler. The first ones lie where they came in. Later requests are
/// copied out, so that frames for handlers come through behind them.
pub(super) struct Backlog<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> {
    requests: VecDeque<Request<Q, R, C>>,
    /// Requests of callers that do not take their replies.
    held_up: VecDeque<Request<Q, R, C>>,
    copied_bytes: usize,
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> RequestSource<Q, R, C> {
    pub(super) fn of_node(fan_in: Gathered<CallTypes<Q, R, C>>) -> Self {
        Self::new(From::Node(fan_in))
    }

    pub(super) fn of_peer(requests: ReceiveHandle, channel: ChannelBuilder) -> Self {
        let seat = Seat::new(channel, reply_version::<Q, R, C>, None);
        Self::new(From::Peer(requests, seat, None))
    }

    fn new(from: From<Q, R, C>) -> Self {
        Self {
            from,
            backlog: Backlog {
                requests: VecDeque::new(),
                held_up: VecDeque::new(),
                copied_bytes: 0,
            },
            strays: 0,
            is_over: false,
            error: None,
        }
    }

    /// The next frame, if one is there; runs no turn.
    pub(super) fn find(&mut self) -> Option<RequestFrame> {
        loop {
            let taken = match &mut self.from {
                From::Node(fan_in) => match fan_in.find() {
                    Some(event) => self.of_event(Some(event)),
                    None if fan_in.is_over() => self.of_event(None),
                    None => return None,
                },
                From::Peer(_, seat, _) if seat.outbox().is_some_and(Outbox::is_held_up) => {
                    return None;
                }
                From::Peer(handle, ..) => match handle.poll() {
                    Ok(Some(raw)) => self.of_message(Ok(raw)),
                    Ok(None) => return None,
                    Err(error) => self.of_message(Err(error)),
                },
                From::Nobody => return None,
            };
            match taken {
                NextFrame::Frame(asked) => return Some(asked),
                NextFrame::Nothing => {}
                NextFrame::Over => return None,
            }
        }
    }

    /// Waits until there is something to look at, and returns the next frame, if it was that.
    pub(super) fn wait(&mut self) -> Option<RequestFrame> {
        let taken = match &mut self.from {
            From::Node(fan_in) => {
                let event = fan_in.next();
                self.of_event(event)
            }
            From::Peer(handle, seat, held) => match seat.outbox() {
                Some(outbox) if outbox.is_held_up() => {
                    let taken = NoticesTaken::new(outbox, held);
                    // Without a deadline there is no time-out.
                    let _ = handle.session().wait_for(None, taken);
                    self.backlog.renew();
                    NextFrame::Nothing
                }
                // What was held up is looked at again.
                _ if self.backlog.renew() => NextFrame::Nothing,
                _ => {
                    let received = handle.receive(Patience::FOREVER);
                    self.of_message(received)
                }
            },
            From::Nobody => NextFrame::Over,
        };
        match taken {
            NextFrame::Frame(asked) => Some(asked),
            NextFrame::Nothing | NextFrame::Over => None,
        }
    }

    /// Returns the next frame, or `None` if there is something else to look at. If there is neither,
    /// `waker` is called when there is. Before that, a task may look for a moment, but a waker may
    /// not.
    pub(super) fn poll(&mut self, waker: &Waker, may_look: bool) -> Poll<Option<RequestFrame>> {
        let taken = match &mut self.from {
            From::Node(fan_in) => {
                let mut context = Context::from_waker(waker);
                let event = ready!(fan_in.poll_for(&mut context, may_look));
                self.of_event(event)
            }
            From::Peer(handle, seat, held) => {
                if let Some(outbox) = seat.outbox()
                    && outbox.is_held_up()
                {
                    ready!(parking::poll(NoticesTaken::new(outbox, held), waker, || ()));
                    self.backlog.renew();
                    return Poll::Ready(None);
                }
                if self.backlog.renew() {
                    return Poll::Ready(None);
                }
                // Takes back an older waker: it may not be called for messages behind those that
                // were taken.
                handle.leave();
                let received = match may_look {
                    true => handle.poll_receive(waker),
                    false => handle.poll_receive_at_once(waker),
                };
                self.of_message(ready!(received))
            }
            From::Nobody => NextFrame::Over,
        };
        Poll::Ready(match taken {
            NextFrame::Frame(asked) => Some(asked),
            NextFrame::Nothing | NextFrame::Over => None,
        })
    }

    fn of_event(&mut self, event: Option<FanInEvent<RequestFrame>>) -> NextFrame {
        match event {
            Some(FanInEvent::Message(_, asked)) => return NextFrame::Frame(asked),
            // A caller takes its replies again, or is gone.
            Some(FanInEvent::Joined(_) | FanInEvent::Ended(_)) => {
                self.backlog.renew();
            }
            Some(FanInEvent::Lost(peer, error)) => {
                self.backlog.renew();
                self.count_if_corrupt(&error);
                tracing::debug!(%peer, %error, "a caller of a service");
            }
            None => {
                self.is_over = true;
                return NextFrame::Over;
            }
        }
        NextFrame::Nothing
    }

    fn of_message(&mut self, received: Result<RawMessage, ChannelError>) -> NextFrame {
        let From::Peer(handle, seat, _) = &mut self.from else {
            return NextFrame::Over;
        };
        match received.and_then(|raw| seat.open(handle, raw)) {
            Ok(asked) => NextFrame::Frame(asked),
            Err(error) if error.spares_channel() => {
                self.count_if_corrupt(&error.into());
                NextFrame::Nothing
            }
            Err(error) => {
                self.is_over = true;
                if !matches!(error, ChannelError::Ended) {
                    self.error = Some(error.into());
                }
                self.from = From::Nobody;
                NextFrame::Over
            }
        }
    }

    /// Returns whether no more frames come.
    pub(super) fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the end, once nothing more comes. Its error is returned once.
    pub(super) fn over<T>(&mut self) -> Option<Result<Option<T>, RecvError>> {
        self.is_over
            .then(|| self.error.take().map_or(Ok(None), Err))
    }

    /// Returns whether a call for the next request has something to return.
    pub(super) fn has_next(&self) -> bool {
        self.is_over || self.backlog.len() > 0
    }

    fn count_if_corrupt(&mut self, error: &RecvError) {
        self.strays += u64::from(error.kind() == RecvErrorKind::Corrupt);
    }

    pub(super) fn count_stray(&mut self) {
        self.strays += 1;
    }

    pub(super) fn take_strays(&mut self) -> u64 {
        std::mem::take(&mut self.strays)
    }

    /// Receives no more.
    pub(super) fn close(&mut self) {
        self.is_over = true;
        self.from = From::Nobody;
    }
}

enum NextFrame {
    Frame(RequestFrame),
    Nothing,
    Over,
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> Backlog<Q, R, C> {
    pub(super) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Gives a request back for which there is no room.
    #[allow(clippy::result_large_err, reason = "the error gives the request back")]
    pub(super) fn push(&mut self, mut request: Request<Q, R, C>) -> Result<(), Request<Q, R, C>> {
        if self.requests.len() >= IN_PLACE {
            let bytes = request.payload_bytes();
            if self.copied_bytes + bytes > MAX_COPIED_BYTES {
                return Err(request);
            }
            self.copied_bytes += bytes;
            request.copy_out();
        }
        self.requests.push_back(request);
        Ok(())
    }

    /// Takes the next request whose caller takes its replies.
    pub(super) fn pop(&mut self) -> Option<Request<Q, R, C>> {
        loop {
            let request = self.requests.pop_front()?;
            if !request.is_held_up() {
                return Some(self.let_go(request));
            }
            self.held_up.push_back(request);
        }
    }

    /// Takes any request, because none is handed out any more.
    pub(super) fn pop_any(&mut self) -> Option<Request<Q, R, C>> {
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

    fn let_go(&mut self, request: Request<Q, R, C>) -> Request<Q, R, C> {
        if request.is_copied() {
            self.copied_bytes -= request.payload_bytes();
        }
        request
    }
}

/// Requests that wait where they came in.
const IN_PLACE: usize = 32;
/// The most bytes of copied requests, which wait while handlers wait for their callers and no one
/// asks for requests. Requests beyond it are refused.
const MAX_COPIED_BYTES: usize = 64 << 20;
