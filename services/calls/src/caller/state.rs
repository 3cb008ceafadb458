//! The state of a caller of one service: its two channels, and the calls that are under way on them.
//!
//! No thread or task stands between a reply and its call. The thread or task that is woken takes in
//! all replies and hands each to its call.
//!
//! A thread that waits in a call receives as from any channel, and gives replies of other calls to
//! those. If no thread waits, the caller's waker does the same at once; the engine calls it when a
//! frame has come.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
    time::Instant,
};

use ibex_core::{
    Driver, Role,
    extend::{
        CallTimes, ChannelError, ChannelTemplate, RawMessage, ReceiveHandle, SendHandle,
        SessionShared, fork,
        parking::{self, Claimed, Patience, Ticket},
    },
};

use crate::{
    caller::{
        caller_ref::CallerRef,
        slots::{ArrivedFrame, CallKey, NextFrame, Slots},
    },
    error::RepliesOver,
    frame::{FrameBody, header_of},
    header::{CallId, Header, Kind, MalformedCallFrame},
    outbox::Outbox,
    waiter::Waiter,
};

/// See the module.
pub(crate) struct CallerState {
    pub(crate) service: String,
    pub(crate) session: Arc<SessionShared>,
    pub(crate) outbox: Outbox,
    inbox: Claimed<ReplyChannel>,
    /// The receiving end, as the session numbers it.
    inbox_end: u32,
    /// The calls. If the waker is called while a thread holds them, that thread handles it.
    slots: Claimed<Slots>,
    waker: Waker,
    /// True if the waker is left at the receiving end and was not called since. The flag is set
    /// before the waker is left, so that a call in between is not forgotten. The inbox's holder
    /// writes it, and a call of the waker does, which then attends to the inbox: that shows the
    /// holder what the call wrote.
    is_registered: AtomicBool,
    /// The waker is left at the session, to be called when the peer drains.
    drains: Option<Ticket>,
    /// Takes the times of the calls, if somebody wants to know them.
    pub(crate) times: Option<Arc<CallTimes>>,
}

/// The receiving end and its waker.
struct ReplyChannel {
    handle: ReceiveHandle,
    is_over: bool,
    /// Messages that came since the replies held here were last copied out.
    messages: u64,
    bytes: u64,
}

impl CallerState {
    pub(crate) fn open(
        requests: SendHandle,
        replies: ReceiveHandle,
        template: &ChannelTemplate,
    ) -> CallerRef {
        let session = requests.session().clone();
        let times = session.node().call_times(Role::Sender, requests.name());
        // The setting is at most 65536.
        let max_in_flight = template.max_in_flight() as u32;
        let state = Arc::new_cyclic(|state| {
            let waker = parking::waker_of(state.clone(), |state: &Arc<Self>| state.wake());
            let drains = Some(session.wake_when_peer_drains(&waker));
            Self {
                service: requests.name().to_owned(),
                outbox: Outbox::new(
                    Some(requests),
                    session.clone(),
                    waker.clone(),
                    None,
                    // A cancellation for each call under way, and some credit for each.
                    4 * max_in_flight as usize,
                    template.wait_for_open(),
                ),
                session,
                inbox_end: replies.number(),
                inbox: Claimed::new(ReplyChannel {
                    handle: replies,
                    is_over: false,
                    messages: 0,
                    bytes: 0,
                }),
                slots: Claimed::new(Slots::new(max_in_flight)),
                waker,
                is_registered: AtomicBool::new(false),
                drains,
                times,
            }
        });
        CallerRef::new(state)
    }

    /// Frees the names of both channels when the last clone of the caller was dropped. A new caller
    /// may take them, although a waker may still hold this state.
    pub(crate) fn free_names(&self) {
        self.session.free_name(self.inbox_end);
        self.outbox.free_name();
    }

    /// Acts on the slots. A reply that is dropped or copied out meanwhile may turn the engine in
    /// this very thread, and the engine may call the caller's waker. That call is handled here, when
    /// the slots are free again.
    pub(crate) fn slots<R>(&self, act: impl FnOnce(&mut Slots) -> R) -> R {
        let mut slots = self.slots.hold();
        let done = act(&mut slots);
        if self.slots.unlock(slots) {
            self.wake();
        }
        done
    }

    pub(crate) fn peer_name(&self) -> String {
        self.session.peer_name()
    }

    /// Returns whether no more calls are sent.
    #[cfg(feature = "tower")]
    pub(crate) fn is_over(&self) -> bool {
        self.session.peer_drains() || self.slots(|slots| slots.over().is_some())
    }

    // ---- Arriving frames -------------------------------------------------------------

    /// Handles a call of the waker, unless a thread, possibly this one, holds the slots. Then the
    /// holder does.
    fn wake(&self) {
        self.slots.when_free(|| self.woken());
    }

    /// Handles a call of the waker: frames have come, notices have room, a deadline has passed, or
    /// the peer drains.
    fn woken(&self) {
        self.is_registered.store(false, Ordering::Relaxed);
        self.take_in_if_free();
        if self.session.peer_drains() {
            let wakers = self.slots(Slots::unsent);
            wakers.into_iter().for_each(Waker::wake);
        }
        self.outbox.has_room();
        self.expire();
    }

    /// Hands out all frames that have come. If a task waits, the caller's waker is called when the
    /// next frame comes.
    fn take_in(&self, inbox: &mut ReplyChannel) {
        self.take_in_by(inbox, ReceiveHandle::poll_receive_at_once);
    }

    /// Takes in as [`take_in`](Self::take_in) does, by the given poll.
    fn take_in_by(
        &self,
        inbox: &mut ReplyChannel,
        poll: fn(&mut ReceiveHandle, &Waker) -> Poll<Result<RawMessage, ChannelError>>,
    ) {
        self.hand_out(inbox);
        while !inbox.is_over && !self.is_registered() && self.is_waited_for() {
            // Takes back an older waker: it may not be called for messages behind those that were
            // taken.
            inbox.handle.leave();
            self.is_registered.store(true, Ordering::Relaxed);
            let polled = poll(&mut inbox.handle, &self.waker);
            if let Poll::Ready(received) = polled {
                self.is_registered.store(false, Ordering::Relaxed);
                self.received(inbox, received);
            }
        }
    }

    fn is_registered(&self) -> bool {
        self.is_registered.load(Ordering::Relaxed)
    }

    fn hand_out(&self, inbox: &mut ReplyChannel) {
        while !inbox.is_over
            && !fork::is_child()
            && let Some(received) = inbox.handle.poll().transpose()
        {
            self.received(inbox, received);
        }
    }

    /// Takes in a message or an error.
    fn received(&self, inbox: &mut ReplyChannel, received: Result<RawMessage, ChannelError>) {
        match received {
            Ok(raw) => {
                inbox.counts(&raw, self);
                if let Some(arrived) = self.parse(raw) {
                    self.deliver(arrived);
                }
            }
            Err(error) if error.spares_channel() => {}
            Err(error) => {
                inbox.is_over = true;
                self.end(match self.session.peer_has_drained() {
                    true => RepliesOver::Drained,
                    false => RepliesOver::of(error, &self.service, &self.peer_name()),
                });
            }
        }
    }

    /// Ends all calls that have no answer here yet.
    fn end(&self, over: RepliesOver) {
        let wakers = self.slots(|slots| slots.end(over));
        wakers.into_iter().for_each(Waker::wake);
    }

    fn parse(&self, raw: RawMessage) -> Option<ArrivedFrame> {
        let header = header_of(&raw).and_then(|header| match header.kind {
            Kind::Drained if header != Header::DRAINED => Err(MalformedCallFrame::Direction),
            kind if kind.is_for_service() => Err(MalformedCallFrame::Direction),
            _ => Ok(header),
        });
        match header {
            Ok(header) => Some(ArrivedFrame {
                header,
                body: FrameBody::InPlace(raw),
            }),
            Err(malformed) => {
                let peer = self.session.peer().address;
                tracing::debug!(service = self.service, %peer, %malformed, "a frame is dropped");
                self.slots(Slots::count_stray);
                None
            }
        }
    }

    fn deliver(&self, arrived: ArrivedFrame) {
        if arrived.header.kind == Kind::Drained {
            return self.end(RepliesOver::Drained);
        }
        match self.slots(|slots| slots.deliver(arrived)) {
            (Some(waker), false) => waker.wake(),
            (_polled, _) => {}
        }
    }

    /// Wakes the calls whose time is over.
    fn expire(&self) {
        let (late, next) = self.slots(|slots| slots.expire(Instant::now()));
        late.into_iter().for_each(Waker::wake);
        if let Some(next) = next {
            self.session.wake_at(next, &self.waker);
        }
    }

    // ---- Waiting -----------------------------------------------------------------------

    /// Waits in a thread for the next frame of a call. Pending if none has come by `deadline`.
    pub(crate) fn wait_for_frame(
        &self,
        key: CallKey,
        id: CallId,
        deadline: Option<Instant>,
    ) -> Poll<NextFrame> {
        let Some(mut inbox) = self.inbox.try_hold() else {
            // Another thread is taking in frames.
            let check = || {
                self.next_frame(key).or_else(|| {
                    let mut inbox = self.inbox.try_hold()?;
                    self.take_in(&mut inbox);
                    self.inbox.leave(inbox, |inbox| self.take_in(inbox));
                    self.next_frame(key)
                })
            };
            return self.poll_call(key, Waiter::Thread(deadline), check);
        };
        let next = self.receive_until(&mut inbox, key, id, deadline);
        // The wait of a thread disarms what the registered waker needs.
        self.is_registered.store(false, Ordering::Relaxed);
        let others_wait = self.is_waited_for();
        self.inbox.leave(inbox, |inbox| self.take_in(inbox));
        if others_wait {
            self.inbox.run_claimed(|inbox| self.take_in(inbox));
        }
        next
    }

    /// Receives for all calls until this call has a frame.
    fn receive_until(
        &self,
        inbox: &mut ReplyChannel,
        key: CallKey,
        id: CallId,
        deadline: Option<Instant>,
    ) -> Poll<NextFrame> {
        loop {
            if let Some(next) = self.next_frame(key) {
                return Poll::Ready(next);
            }
            match inbox.handle.receive(Patience::Until(deadline)) {
                Ok(raw) => {
                    inbox.counts(&raw, self);
                    match self.parse(raw) {
                        // The call's entry holds no frame, so this frame is the call's next one.
                        Some(arrived) if arrived.header.id == id => {
                            return Poll::Ready(Ok(arrived));
                        }
                        Some(arrived) => self.deliver(arrived),
                        None => {}
                    }
                }
                Err(error) if error.is_transient() => return Poll::Pending,
                Err(error) => self.received(inbox, Err(error)),
            }
        }
    }

    /// Polls for the next frame of a call. If there is none, the call's task is woken when one
    /// comes or the deadline passes.
    pub(crate) fn poll_frame(
        &self,
        key: CallKey,
        waker: &Waker,
        deadline: Option<Instant>,
    ) -> Poll<NextFrame> {
        let begun = self.slots(|slots| match slots.next_frame(key) {
            Some(next) => Err(next),
            None => Ok(slots.begin_poll(key, waker)),
        });
        let _before = match begun {
            Err(next) => return Poll::Ready(next),
            Ok(before) => before,
        };
        self.inbox.run_claimed(|inbox| {
            if self.is_registered() && self.session.node().driver() == Driver::Caller {
                // If callers turn the engine, a poll runs a turn.
                let received = inbox.handle.receive(Patience::None);
                self.received(inbox, received);
            }
            // This runs in a task, so the poll may spin for a moment.
            self.take_in_by(inbox, ReceiveHandle::poll_receive);
        });
        let next = self.slots(|slots| slots.end_poll(key));
        if next.is_none() {
            self.wake_by(deadline);
        }
        next.map_or(Poll::Pending, Poll::Ready)
    }

    /// Waits until the call may be sent; `None` if no call will be.
    pub(crate) fn poll_turn(
        &self,
        key: CallKey,
        waiter: Waiter<'_>,
        deadline: Option<Instant>,
    ) -> Poll<Option<CallId>> {
        let check = || {
            let found = self.slots(|slots| match slots.id(key) {
                Some(id) => Some(Some(id)),
                None => slots.over().is_some().then_some(None),
            });
            let found = found.or_else(|| self.session.peer_drains().then_some(None));
            if found.is_none() {
                // Calls under way end by frames that have arrived.
                self.take_in_if_free();
            }
            found
        };
        let turn = self.poll_call(key, waiter, check);
        if turn.is_pending() && matches!(waiter, Waiter::Task(_)) {
            self.wake_by(deadline);
        }
        turn
    }

    /// Waits until `check` finds something for a call, or about it.
    fn poll_call<T>(
        &self,
        key: CallKey,
        waiter: Waiter<'_>,
        check: impl FnMut() -> Option<T>,
    ) -> Poll<T> {
        waiter.poll_until(&self.session, check, |waker| {
            self.set_waker(key, waker);
            if waker.is_some() {
                self.take_in_if_free();
            }
        })
    }

    /// The waker that was there is dropped outside of the lock.
    fn set_waker(&self, key: CallKey, waker: Option<&Waker>) {
        let _before = self.slots(|slots| slots.set_waker(key, waker));
    }

    fn next_frame(&self, key: CallKey) -> Option<NextFrame> {
        self.slots(|slots| slots.next_frame(key))
    }

    fn is_waited_for(&self) -> bool {
        self.slots(|slots| slots.is_waited_for())
    }

    /// Has the task of a call that waits for room woken at its deadline.
    pub(crate) fn wake_late(&self, key: CallKey, waker: &Waker, deadline: Option<Instant>) {
        self.set_waker(key, Some(waker));
        self.wake_by(deadline);
    }

    fn wake_by(&self, deadline: Option<Instant>) {
        if let Some(deadline) = deadline
            && self.slots(|slots| slots.wants_alarm(deadline))
        {
            self.session.wake_at(deadline, &self.waker);
        }
    }

    pub(crate) fn take_in_if_free(&self) {
        self.inbox.run_claimed(|inbox| self.take_in(inbox));
    }
}

impl ReplyChannel {
    /// Messages or bytes after which replies are copied out of the channel: half a window. A reply
    /// that stays where it lies stops the channel, and with it all calls, once the window behind it
    /// is full.
    #[inline]
    fn counts(&mut self, raw: &RawMessage, state: &CallerState) {
        // The registered waker may be about to be called for this message alone, and not for a
        // later one.
        state.is_registered.store(false, Ordering::Relaxed);
        self.messages += 1;
        self.bytes += raw.bytes().len() as u64;
        if self.messages >= CHECK_EVERY || self.bytes >= CHECK_EVERY_BYTES {
            self.check_window(state);
        }
    }

    #[cold]
    fn check_window(&mut self, state: &CallerState) {
        let Some(window) = self.handle.window() else {
            return;
        };
        if self.messages >= window.messages / 4 || self.bytes >= window.bytes / 4 {
            self.messages = 0;
            self.bytes = 0;
            state.slots(Slots::copy_out);
        }
    }
}

/// No window is smaller than four times these.
const CHECK_EVERY: u64 = 64;
const CHECK_EVERY_BYTES: u64 = 16 << 10;

impl Drop for CallerState {
    fn drop(&mut self) {
        self.session.leave_peer_drains(&mut self.drains);
        self.inbox.run_claimed(|inbox| inbox.handle.leave());
    }
}
