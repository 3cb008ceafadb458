//! The sending end of a service's channel. Many threads write to it, one after the other, and no
//! thread waits while it holds the end.
//!
//! A *notice* is a frame that is sent without waiting: a call is cancelled, is answered, or got no
//! answer. A notice goes out at once if there is room, and otherwise before the next message.

mod notices;

use std::{
    cell::Cell,
    mem::MaybeUninit,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_core::{
    RegionSlice,
    extend::{
        Abort, ChannelError, SendHandle, SessionShared, SliceMessage,
        parking::{AtSlot, Claimed, Patience, Ticket, WaitSlot},
    },
};

use self::notices::Notices;
use crate::{
    frame::{Content, encode_frame, frame_size},
    header::Header,
    waiter::Waiter,
};

pub(super) use self::notices::NoRoom;

/// See the module.
pub(super) struct Outbox {
    session: Arc<SessionShared>,
    /// The channel's end: `None` if it could not be opened, and when it was closed here.
    sending: Claimed<Option<SendHandle>>,
    /// The channel's end, as the session numbers it, if it was opened.
    end: Option<u32>,
    /// True once frames are no longer sent. A thread that sets this or `has_notices` attends to
    /// `sending` afterwards, which shows both to the thread that holds it.
    is_closed: AtomicBool,
    /// The channel ends as broken off, if it is closed.
    is_broken_off: AtomicBool,
    /// There may be notices. Written under their lock.
    has_notices: AtomicBool,
    notices: Mutex<Notices>,
    /// Limit of the notices that are due at a time to a peer that takes its messages.
    max_notices: usize,
    /// The waker of those who wait until no notice waits.
    goes_on: Option<Waker>,
    /// The waker `goes_on` was called, and nobody has seen that yet.
    has_gone_on: AtomicBool,
    /// The waker that is left at the channel's end, to be called when there is room.
    waker: Waker,
    /// True if a thread that found room took the waker back while others wait for room. The thread
    /// wakes those waiters instead.
    wake_is_due: AtomicBool,
    /// Waiting place of threads and tasks that wait for room.
    room: WaitSlot,
    open_timeout: Duration,
}

/// The reason why a message did not go out.
#[derive(Debug)]
pub(super) enum Unsent {
    /// The frame is no longer wanted.
    InVain,
    Failed(ChannelError),
}

impl Outbox {
    pub(super) fn new(
        handle: Option<SendHandle>,
        session: Arc<SessionShared>,
        waker: Waker,
        goes_on: Option<Waker>,
        max_notices: usize,
        open_timeout: Duration,
    ) -> Self {
        Self {
            session,
            end: handle.as_ref().map(SendHandle::number),
            // No frame waits for an end that there will never be.
            is_closed: AtomicBool::new(handle.is_none()),
            sending: Claimed::new(handle),
            is_broken_off: AtomicBool::new(false),
            has_notices: AtomicBool::new(false),
            notices: Mutex::default(),
            max_notices,
            goes_on,
            has_gone_on: AtomicBool::new(false),
            waker,
            wake_is_due: AtomicBool::new(false),
            room: WaitSlot::new(),
            open_timeout,
        }
    }

    /// Ends the channel in order, after the messages that were sent, either at once or when the
    /// sending thread leaves.
    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        self.run_claimed();
        self.wake_held_up();
    }

    /// Returns whether the peer has opened its end.
    #[cold]
    pub(super) fn is_open(&self) -> bool {
        let sending = self.sending.hold();
        let is_open = sending.as_ref().is_some_and(SendHandle::is_open);
        self.leave_sending(sending);
        is_open
    }

    /// Returns whether the peer has opened its end, unless a thread is sending.
    pub(super) fn is_open_now(&self) -> Option<bool> {
        let sending = self.sending.try_hold()?;
        let is_open = sending.as_ref().is_some_and(SendHandle::is_open);
        self.leave_sending(sending);
        Some(is_open)
    }

    /// Lets another end of the name be opened, although this one may still be in use.
    pub(super) fn free_name(&self) {
        if let Some(end) = self.end {
            self.session.free_name(end);
        }
    }

    /// Sends a frame, once there is room and the peer has opened its end. A thread waits for that
    /// open no longer than `open_timeout`. `header` is asked again at each attempt, since time
    /// passes. `None` from it means that the frame is no longer wanted.
    #[inline]
    pub(super) fn send(
        &self,
        waiter: Waiter<'_>,
        ticket: &mut Option<Ticket>,
        header: impl Fn() -> Option<Header>,
        content: impl Content,
    ) -> Poll<Result<(), Unsent>> {
        let frame = OutgoingFrame { header, content };
        let Waiter::Thread(deadline) = waiter else {
            return self.poll_sent(waiter, &frame, ticket);
        };
        match self.attempt(&frame, None) {
            Err(Unsent::Failed(ChannelError::NotOpenYet)) => self.send_when_open(&frame, deadline),
            Err(Unsent::Failed(ChannelError::WouldBlock)) => self.wait(&frame, deadline),
            sent => Poll::Ready(sent),
        }
    }

    /// Waits until no notice waits for room.
    pub(super) fn poll_taken(&self, waiter: Waiter<'_>, held: &mut Option<Ticket>) -> Poll<()> {
        let check = || (!self.is_held_up()).then_some(());
        waiter.poll(&self.session, AtSlot::new(&self.room, held, check))
    }

    /// Takes back the ticket of a task that no longer waits.
    pub(super) fn leave(&self, ticket: &mut Option<Ticket>) {
        self.room.leave(ticket);
    }

    /// Handles a call of the waker: there may be room.
    pub(super) fn has_room(&self) {
        self.flush();
        self.room.wake_all();
    }

    /// Returns whether the channel's end was opened. Without one, notices are never sent.
    pub(super) fn has_channel(&self) -> bool {
        self.end.is_some()
    }

    // ---- Inside ----------------------------------------------------------------------

    fn run_claimed(&self) {
        self.sending.run_claimed(|sending| self.flush_into(sending));
        self.wake_if_due();
    }

    #[inline]
    fn leave_sending(&self, mut sending: MutexGuard<'_, Option<SendHandle>>) {
        // What has gone out opened the way for notices that found the peer's end not open, and the
        // channel may end behind it.
        if self.has_notices.load(Ordering::Relaxed) {
            self.flush_into(&mut sending);
        }
        self.sending
            .leave(sending, |sending| self.flush_into(sending));
        self.wake_if_due();
    }

    /// Wakes the waiters that relied on the waker that was taken back, so that they look again.
    #[inline]
    fn wake_if_due(&self) {
        // DUE, pairs with `flush_notices` and `attempt`: the thread that clears the
        // flag sees the waiters that relied on the waker.
        if self.wake_is_due.load(Ordering::Relaxed)
            && self.wake_is_due.swap(false, Ordering::Acquire)
        {
            self.room.wake_all();
            self.wake_held_up();
        }
    }

    #[inline]
    fn flush_into(&self, sending: &mut Option<SendHandle>) {
        if self.is_closed.load(Ordering::Relaxed) {
            self.end_channel(sending);
        } else if self.has_notices.load(Ordering::Relaxed) {
            self.flush_notices(sending);
        }
    }

    /// Tries to send. Leaves the waker, if one is given, where there is no room.
    #[inline]
    fn attempt(
        &self,
        frame: &OutgoingFrame<impl Fn() -> Option<Header>, impl Content>,
        waker: Option<&Waker>,
    ) -> Result<(), Unsent> {
        let mut sending = self.sending.hold();
        self.flush_into(&mut sending);
        let sent = match (&mut *sending, (frame.header)()) {
            (Some(handle), Some(header)) => {
                let sent = send_frame(handle, waker, header, frame.content);
                let sent = sent.map(drop).map_err(Unsent::Failed);
                if waker.is_some() && !is_blocked(&sent) {
                    // DUE, pairs with `wake_if_due`.
                    self.wake_is_due.store(true, Ordering::Release);
                }
                sent
            }
            _ => Err(Unsent::InVain),
        };
        self.leave_sending(sending);
        sent
    }

    /// Waits until a frame has gone out, or never will. `held` is the place of the thread or task
    /// among those that wait for room.
    fn poll_sent(
        &self,
        waiter: Waiter<'_>,
        frame: &OutgoingFrame<impl Fn() -> Option<Header>, impl Content>,
        held: &mut Option<Ticket>,
    ) -> Poll<Result<(), Unsent>> {
        let attempt = |waker| Some(self.attempt(frame, waker)).filter(|sent| !is_blocked(sent));
        let found = Cell::new(None);
        let check = || found.take().or_else(|| attempt(None));
        waiter.poll_until(&self.session, check, |waker| match waker {
            Some(waker) => {
                self.room.renew(held, waker);
                found.set(attempt(Some(&self.waker)));
            }
            None => drop(self.room.leave(held)),
        })
    }

    #[cold]
    fn send_when_open(
        &self,
        frame: &OutgoingFrame<impl Fn() -> Option<Header>, impl Content>,
        deadline: Option<Instant>,
    ) -> Poll<Result<(), Unsent>> {
        let give_up = Instant::now().checked_add(self.open_timeout);
        let until = [deadline, give_up].into_iter().flatten().min();
        match self.wait(frame, until) {
            Poll::Pending if until == give_up => match self.not_opened() {
                Some(error) => Poll::Ready(Err(Unsent::Failed(error))),
                None => self.wait(frame, deadline),
            },
            sent => sent,
        }
    }

    /// Returns the error for a peer that has not opened its end within `open_timeout`.
    fn not_opened(&self) -> Option<ChannelError> {
        let mut sending = self.sending.hold();
        let opened = sending.as_mut()?;
        let opened = opened.opened(Patience::Until(Some(Instant::now())));
        self.leave_sending(sending);
        let error = opened.err()?;
        Some(error.waited_for(self.open_timeout))
    }

    /// Waits in a thread until the frame has gone out.
    #[cold]
    fn wait(
        &self,
        frame: &OutgoingFrame<impl Fn() -> Option<Header>, impl Content>,
        deadline: Option<Instant>,
    ) -> Poll<Result<(), Unsent>> {
        self.poll_sent(Waiter::Thread(deadline), frame, &mut None)
    }
}

/// A message that is to be sent.
struct OutgoingFrame<H, P> {
    header: H,
    content: P,
}

/// Sends a frame without waiting. Leaves the waker, if one is given, where there is no room.
#[inline]
fn send_frame<P: Content>(
    handle: &mut SendHandle,
    waker: Option<&Waker>,
    header: Header,
    content: P,
) -> Result<u64, ChannelError> {
    if let Some(body) = long_slice(handle, &content) {
        let header = &header.to_bytes();
        let message = SliceMessage { header, body };
        return match waker {
            Some(waker) => polled(handle.poll_send_region(waker, message)),
            None => handle.send_region(message, Patience::None),
        };
    }
    send_bytes(handle, waker, frame_size(content), |slot| {
        encode_frame(header, content, slot)
    })
}

/// Sends the bytes that `write` writes, as [`send_frame`] does.
#[inline]
fn send_bytes(
    handle: &mut SendHandle,
    waker: Option<&Waker>,
    size: Option<usize>,
    write: impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
) -> Result<u64, ChannelError> {
    match waker {
        Some(waker) => polled(handle.poll_send(waker, size, write)),
        None => handle.send(size, Patience::None, write),
    }
}

/// Returns that there is no room as an error, as a send does that leaves no waker.
fn polled(sent: Poll<Result<u64, ChannelError>>) -> Result<u64, ChannelError> {
    match sent {
        Poll::Ready(sent) => sent,
        Poll::Pending => Err(ChannelError::WouldBlock),
    }
}

/// Returns the slice that is the content, if the frame would have to wait for a grant. A frame that is
/// too long is so in either form.
#[inline]
fn long_slice<'a, P: Content>(handle: &SendHandle, content: &'a P) -> Option<&'a RegionSlice> {
    let slice = content.slice()?;
    let is_long = handle.needs_grant(P::offset() + slice.len());
    is_long.then_some(slice)
}

/// Returns whether a frame waits: the peer has not opened its end, or there is no room.
fn is_blocked(sent: &Result<(), Unsent>) -> bool {
    use ChannelError::{NotOpenYet, WouldBlock};
    matches!(sent, Err(Unsent::Failed(NotOpenYet | WouldBlock)))
}

impl Drop for Outbox {
    fn drop(&mut self) {
        self.sending.run_claimed(close);
    }
}

fn close(sending: &mut Option<SendHandle>) {
    if let Some(mut handle) = sending.take() {
        handle.leave();
    }
}
