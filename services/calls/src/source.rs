//! The source of a service's frames, and the requests that wait for a handler.

use std::{
    collections::VecDeque,
    task::{Context, Poll, Waker},
};

use ibex_core::{
    ChannelBuilder, FanInEvent, RecvError, RecvErrorKind,
    codec::Codec,
    extend::{ChannelError, Gathered, RawMessage, ReceiveHandle, parking::Patience},
};

use super::{
    opening::reply_version,
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
    /// channel has ended.
    Peer(ReceiveHandle, Seat),
    Nobody,
}

/// Requests that wait for a handler. The first ones lie where they came in. Later requests are
/// copied out, so that frames for handlers come through behind them.
pub(super) struct Backlog<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> {
    requests: VecDeque<Request<Q, R, C>>,
    copied_bytes: usize,
}

impl<Q: ?Sized, R: ?Sized, C: Codec<Q> + Codec<R>> RequestSource<Q, R, C> {
    pub(super) fn of_node(fan_in: Gathered<CallTypes<Q, R, C>>) -> Self {
        Self::new(From::Node(fan_in))
    }

    pub(super) fn of_peer(requests: ReceiveHandle, channel: ChannelBuilder) -> Self {
        let seat = Seat::new(channel, reply_version::<Q, R, C>);
        Self::new(From::Peer(requests, seat))
    }

    fn new(from: From<Q, R, C>) -> Self {
        Self {
            from,
            backlog: Backlog {
                requests: VecDeque::new(),
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
                From::Peer(handle, _) => match handle.poll() {
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

    /// The next frame; waits for it. `None` is the end.
    pub(super) fn wait(&mut self) -> Option<RequestFrame> {
        loop {
            let taken = match &mut self.from {
                From::Node(fan_in) => {
                    let event = fan_in.next();
                    self.of_event(event)
                }
                From::Peer(handle, _) => match handle.receive(Patience::FOREVER) {
                    Ok(raw) => self.of_message(Ok(raw)),
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

    /// Returns the next frame. If there is none, `waker` is called when there is. Before that, a
    /// task may look for a moment, but a waker may not.
    pub(super) fn poll(&mut self, waker: &Waker, may_look: bool) -> Poll<Option<RequestFrame>> {
        loop {
            let taken = match &mut self.from {
                From::Node(fan_in) => {
                    let mut context = Context::from_waker(waker);
                    match fan_in.poll_for(&mut context, may_look) {
                        Poll::Ready(event) => self.of_event(event),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                From::Peer(handle, _) => {
                    // Takes back an older waker: it may not be called for messages behind those
                    // that were taken.
                    handle.leave();
                    let polled = match may_look {
                        true => handle.poll_receive(waker),
                        false => handle.poll_receive_at_once(waker),
                    };
                    match polled {
                        Poll::Ready(received) => self.of_message(received),
                        Poll::Pending => return Poll::Pending,
                    }
                }
                From::Nobody => return Poll::Ready(None),
            };
            match taken {
                NextFrame::Frame(asked) => return Poll::Ready(Some(asked)),
                NextFrame::Nothing => {}
                NextFrame::Over => return Poll::Ready(None),
            }
        }
    }

    fn of_event(&mut self, event: Option<FanInEvent<RequestFrame>>) -> NextFrame {
        match event {
            Some(FanInEvent::Message(_, asked)) => return NextFrame::Frame(asked),
            Some(FanInEvent::Joined(_) | FanInEvent::Ended(_)) => {}
            Some(FanInEvent::Lost(peer, error)) => {
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
        let From::Peer(handle, seat) = &mut self.from else {
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

    pub(super) fn pop(&mut self) -> Option<Request<Q, R, C>> {
        let request = self.requests.pop_front()?;
        if request.is_copied() {
            self.copied_bytes -= request.payload_bytes();
        }
        Some(request)
    }
}

/// Requests that wait where they came in.
const IN_PLACE: usize = 32;
/// The most bytes of copied requests, which wait while handlers wait for their callers and no one
/// asks for requests. Requests beyond it are refused.
const MAX_COPIED_BYTES: usize = 64 << 20;
