//! Frames that are sent without waiting, and the queue of those that find no room.

use std::{
    collections::VecDeque,
    mem::{self, MaybeUninit},
    sync::{MutexGuard, atomic::Ordering},
    task::{Poll, Waker},
    time::{Duration, Instant},
};

use ibex_core::{
    CloseReason, RegionSlice,
    extend::{Abort, ChannelError, SendHandle, lock},
};

use super::{Outbox, OutgoingFrame, Unsent, close, is_blocked, send_bytes, send_frame};
use crate::{
    frame::{BytesContent, Content, SliceContent, encode_frame, frame_size},
    header::{Header, Kind},
    no_reply::NoReply,
};

/// The notices that wait for room.
#[derive(Debug, Default)]
pub(super) struct Notices {
    queue: VecDeque<Notice>,
    /// The time since which the peer has made no room for any of these.
    since: Option<Instant>,
    /// The time of the next check of `since`, if one is arranged.
    check_at: Option<Instant>,
    /// Somebody waits until no notice waits.
    is_awaited: bool,
}

/// A frame that is sent without waiting.
#[derive(Debug)]
struct Notice {
    header: Header,
    content: NoticeContent,
}

#[derive(Debug)]
enum NoticeContent {
    Bytes(Vec<u8>),
    /// The whole frame, as its codec wrote it.
    Frame(Box<[MaybeUninit<u8>]>),
    Slice(RegionSlice),
}

/// The result of a check of a peer that makes no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRoom {
    /// The next check is due then.
    CheckAt(Instant),
    /// The peer has made none for longer than the limit.
    TooLong,
}

impl Outbox {
    /// Sends a notice without waiting. Its payload may be empty.
    pub(crate) fn notify(&self, header: Header, payload: Vec<u8>) {
        let content = NoticeContent::Bytes(payload);
        self.queue(Notice { header, content });
    }

    /// Sends a frame, or queues it as a notice if no room comes for it within `patience`, or if others
    /// are queued. `header` is `None` if the frame is not wanted. A queued frame has at most `most`
    /// bytes.
    #[inline]
    pub(crate) fn answer<P: Content>(
        &self,
        header: impl Fn() -> Option<Header>,
        content: P,
        most: u64,
        patience: Duration,
    ) -> Result<(), Unsent> {
        let frame = OutgoingFrame { header, content };
        let sent = self.attempt(&frame, None);
        if !is_blocked(&sent) {
            return sent;
        }
        if !patience.is_zero()
            && !self.has_notices()
            && let Poll::Ready(done) = self.wait(&frame, Instant::now().checked_add(patience))
        {
            return done;
        }
        let header = (frame.header)().ok_or(Unsent::InVain)?;
        self.queue(Notice::of(header, content, most));
        Ok(())
    }

    #[cold]
    fn queue(&self, notice: Notice) {
        let mut notices = self.notices();
        if notices.queue.len() < self.max_notices {
            notices.since.get_or_insert_with(Instant::now);
            notices.queue.push_back(notice);
        }
        self.has_notices.store(true, Ordering::Relaxed);
        drop(notices);
        self.flush();
    }

    /// Sends the notices that wait, as far as there is room.
    pub(crate) fn flush(&self) {
        if self.has_notices.load(Ordering::Relaxed) {
            self.run_claimed();
        }
    }

    /// Returns whether notices wait for room, or for the thread that is sending.
    #[inline]
    pub(crate) fn has_notices(&self) -> bool {
        // SENT, pairs with `flush_notices`: a drain that finds no notice here finds them among the
        // messages that were sent.
        !self.is_closed.load(Ordering::Relaxed) && self.has_notices.load(Ordering::Acquire)
    }

    #[cold]
    pub(super) fn flush_notices(&self, sending: &mut Option<SendHandle>) {
        let Some(handle) = sending else {
            return;
        };
        loop {
            let next = {
                let mut notices = self.notices();
                let next = notices.queue.pop_front();
                if next.is_none() {
                    notices.since = None;
                }
                // SENT, pairs with `has_notices`: the last notice was sent before.
                self.has_notices.store(next.is_some(), Ordering::Release);
                next
            };
            // DUE, pairs with `wake_if_due`.
            let wake_is_due = || self.wake_is_due.store(true, Ordering::Release);
            let Some(notice) = next else {
                wake_is_due();
                return self.session.node().wake_drain();
            };
            match notice.send(handle, &self.waker) {
                Ok(_) => {
                    self.notices().since = Some(Instant::now());
                    wake_is_due();
                }
                Err(ChannelError::WouldBlock) => {
                    return self.notices().queue.push_front(notice);
                }
                Err(error) => {
                    let mut notices = self.notices();
                    match error.spares_channel() {
                        true => notices.queue.extend(notice.in_place_of(error)),
                        // The channel is over, so no peer is left to be notified.
                        false => notices.queue.clear(),
                    }
                }
            }
        }
    }

    /// Ends the channel, and drops the notices that found no room.
    pub(super) fn end_channel(&self, sending: &mut Option<SendHandle>) {
        if let Some(handle) = sending
            && self.is_broken_off.load(Ordering::Relaxed)
        {
            handle.break_off(CloseReason::NoRoom);
        }
        close(sending);
    }

    // ---- A peer that takes nothing ---------------------------------------------------

    /// Ends the channel behind what was sent, as broken off, because the peer takes nothing.
    pub(crate) fn break_off(&self) {
        self.is_broken_off.store(true, Ordering::Relaxed);
        self.close();
    }

    /// Returns whether notices wait for room. If they do, `goes_on` is called when they do not any
    /// more.
    #[inline]
    pub(crate) fn is_held_up(&self) -> bool {
        self.has_notices() && self.awaits_room()
    }

    #[cold]
    fn awaits_room(&self) -> bool {
        let mut notices = self.notices();
        // `close` looks for those who wait behind this lock, after it has set the flag.
        let waits = !notices.queue.is_empty() && !self.is_closed.load(Ordering::Relaxed);
        notices.is_awaited |= waits;
        waits
    }

    /// Returns whether the peer was [held up](Self::is_held_up) and has gone on, once.
    #[inline]
    pub(crate) fn has_gone_on(&self) -> bool {
        self.has_gone_on.load(Ordering::Relaxed) && self.has_gone_on.swap(false, Ordering::Relaxed)
    }

    /// Calls the waker of those who wait until no notice waits, if that is so.
    pub(super) fn wake_held_up(&self) {
        let mut notices = self.notices();
        if self.is_closed.load(Ordering::Relaxed) {
            notices.queue.clear();
        }
        let goes_on = notices.queue.is_empty() && mem::take(&mut notices.is_awaited);
        drop(notices);
        if goes_on {
            // The waker's own lock hands the flag on.
            self.has_gone_on.store(true, Ordering::Relaxed);
            if let Some(waker) = &self.goes_on {
                waker.wake_by_ref();
            }
            self.room.wake_all();
        }
    }

    /// Returns when to check whether the peer makes room, unless that is arranged or nothing waits.
    pub(crate) fn next_check(&self, limit: Duration) -> Option<Instant> {
        let mut notices = self.notices();
        let since = notices.since.filter(|_| notices.check_at.is_none())?;
        notices.check_at = since.checked_add(limit);
        notices.check_at
    }

    /// Looks whether the peer makes room, if it is time to. Time without a connection does not
    /// count.
    pub(crate) fn check_room(&self, now: Instant, limit: Duration) -> Option<NoRoom> {
        let is_suspended = self.session.is_suspended();
        let mut notices = self.notices();
        notices.check_at.take_if(|at| *at <= now)?;
        let since = match is_suspended {
            true => notices.since.insert(now),
            false => notices.since.as_mut()?,
        };
        let until = since.checked_add(limit)?;
        if until <= now {
            return Some(NoRoom::TooLong);
        }
        notices.check_at = Some(until);
        Some(NoRoom::CheckAt(until))
    }

    fn notices(&self) -> MutexGuard<'_, Notices> {
        lock(&self.notices)
    }
}

impl Notice {
    /// Keeps a frame for later.
    fn of<P: Content>(header: Header, content: P, most: u64) -> Self {
        let content = match content.slice() {
            Some(slice) => Ok(NoticeContent::Slice(slice.clone())),
            None => whole_frame(header, content, most).map(NoticeContent::Frame),
        };
        content.map_or_else(
            |why| Self::without_reply(header, &why),
            |content| Self { header, content },
        )
    }

    fn without_reply(header: Header, why: &NoReply) -> Self {
        Self {
            header: Header::new(header.id, Kind::Unanswered).with_count(why.as_count()),
            content: NoticeContent::Bytes(why.to_bytes()),
        }
    }

    /// Sends the notice, or leaves the waker if there is no room.
    fn send(&self, handle: &mut SendHandle, waker: &Waker) -> Result<u64, ChannelError> {
        let (header, waker) = (self.header, Some(waker));
        match &self.content {
            NoticeContent::Bytes(bytes) => send_frame(handle, waker, header, BytesContent(bytes)),
            NoticeContent::Slice(slice) => send_frame(handle, waker, header, SliceContent(slice)),
            NoticeContent::Frame(frame) => send_bytes(handle, waker, Some(frame.len()), |slot| {
                let slot = slot.get_mut(..frame.len()).ok_or(Abort::Overflow)?;
                slot.copy_from_slice(frame);
                Ok(frame.len())
            }),
        }
    }

    /// Returns the notice that goes out in place of one that the channel refused. `None` if there is
    /// no shorter one.
    fn in_place_of(&self, error: ChannelError) -> Option<Self> {
        match self.header.kind {
            Kind::Reply => Some(Self::without_reply(
                self.header,
                &NoReply::of(&error.into()),
            )),
            // The kind and the code say the most.
            _ => Some(Self {
                header: self.header,
                content: NoticeContent::Bytes(Vec::new()),
            })
            .filter(|_| !matches!(&self.content, NoticeContent::Bytes(bytes) if bytes.is_empty())),
        }
    }
}

/// Encodes a frame of any length up to `most` into memory of its own.
fn whole_frame<P: Content>(
    header: Header,
    content: P,
    most: u64,
) -> Result<Box<[MaybeUninit<u8>]>, NoReply> {
    let most = usize::try_from(most).unwrap_or(usize::MAX);
    let known = frame_size(content);
    if let Some(length) = known.filter(|length| *length > most) {
        return Err(NoReply::too_long(Some(length as u64), most as u64));
    }
    let mut room = known.unwrap_or(FIRST_ROOM).min(most);
    loop {
        let mut frame = vec![MaybeUninit::uninit(); room];
        match encode_frame(header, content, &mut frame) {
            Ok(length) => {
                frame.truncate(length);
                return Ok(frame.into_boxed_slice());
            }
            Err(Abort::Failed(error)) => return Err(NoReply::not_encoded(&error.to_string())),
            Err(Abort::Overflow) if room == most => {
                return Err(NoReply::too_long(None, most as u64));
            }
            Err(Abort::Overflow) => room = room.saturating_mul(2).min(most),
        }
    }
}

/// Room for a frame whose length is not known before it is encoded.
const FIRST_ROOM: usize = 1024;
