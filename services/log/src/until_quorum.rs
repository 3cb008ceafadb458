//! The wait for a quorum of a log's far ends, which threads, tasks and a `Select` wait for alike.
#![forbid(unsafe_code)]

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Instant,
};

use ibex_core::{
    Selectable,
    extend::{
        Awaited, AwaitedEnd, AwaitedSource, EventLoop, PollTarget, Runtime, SendHandle, WakeUps,
        parking::{self, Condition},
    },
};

/// The condition that a quorum has the log up to a position, or that the group has more to do; see
/// [`LogGroup::until_acked`](crate::LogGroup::until_acked).
pub(crate) struct UntilQuorum<'a> {
    runtime: &'a Runtime,
    changes: &'a mut WakeUps,
    /// The members that have to acknowledge, beside those that have the position.
    lacking: usize,
    /// The messages that were sent, and whose acknowledgements would show the position.
    awaited: Vec<(&'a mut SendHandle, u64)>,
    poll_target: PollTarget,
    /// The peers were asked to tell of acknowledgements.
    has_asked: bool,
}

impl<'a> UntilQuorum<'a> {
    /// Makes the wait for `lacking` more members, beside those that have the position. `channels`
    /// has each member's channel, if there is one, and the message there whose acknowledgement
    /// would show the position.
    pub(crate) fn new(
        (runtime, changes): (&'a Runtime, &'a mut WakeUps),
        lacking: usize,
        channels: Vec<Option<(&'a mut SendHandle, Option<u64>)>>,
    ) -> Self {
        let poll_target = channels.iter().map(|channel| match channel {
            Some((handle, _)) => handle.session().poll_target(),
            // What brings a session or an answer comes by a socket.
            None => PollTarget::Socket,
        });
        let poll_target = poll_target.max().unwrap_or(PollTarget::Socket);
        let channels = channels.into_iter().flatten();
        let awaited = channels.filter_map(|(handle, message)| Some((handle, message?)));
        Self {
            runtime,
            changes,
            lacking,
            awaited: awaited.collect(),
            poll_target,
            has_asked: false,
        }
    }

    /// Waits on this thread. Returns false if the time is up.
    pub(crate) fn wait(&mut self, deadline: Option<Instant>) -> bool {
        if self.check().is_some() {
            return true;
        }
        self.missed(true);
        let (runtime, poll_target) = (self.runtime, self.poll_target);
        runtime.wait(deadline, poll_target, self).is_ok()
    }

    fn each(&mut self, mut act: impl FnMut(&mut dyn AwaitedEnd)) {
        for (handle, message) in &mut self.awaited {
            act(&mut handle.acknowledged(*message));
        }
    }
}

impl Condition for UntilQuorum<'_> {
    type Output = ();

    fn check(&mut self) -> Option<()> {
        if self.lacking == 0 || self.changes.has_any() {
            return Some(());
        }
        let mut lacking = self.lacking;
        for (handle, message) in &mut self.awaited {
            if handle.is_answered(*message) {
                // Who will never acknowledge it is attended to by the next round.
                if handle.counts().acknowledged < *message {
                    return Some(());
                }
                lacking -= 1;
                if lacking == 0 {
                    return Some(());
                }
            }
        }
        None
    }

    fn ask(&mut self) {
        self.each(|end| end.ask());
    }

    fn register(&mut self, waker: &Waker) {
        self.changes.register(waker);
        self.each(|end| end.register(waker));
    }

    fn leave(&mut self) {
        self.changes.leave();
        self.each(|end| end.leave());
    }
}

impl AwaitedEnd for UntilQuorum<'_> {
    fn event_loops(&self) -> &[Arc<EventLoop>] {
        self.runtime.event_loops()
    }

    fn poll_target(&self) -> PollTarget {
        self.poll_target
    }

    fn missed(&mut self, waits: bool) {
        self.each(|end| end.missed(waits));
    }
}

impl Selectable for UntilQuorum<'_> {}

impl AwaitedSource for UntilQuorum<'_> {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited::Event(self)
    }
}

impl Future for UntilQuorum<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let until = &mut *self;
        if !until.has_asked && until.check().is_none() {
            until.has_asked = true;
            until.missed(true);
        }
        let runtime = until.runtime;
        parking::poll(until, context.waker(), || runtime.poll_in_passing())
    }
}

impl Drop for UntilQuorum<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

ibex_core::extend::debug_fields!([] UntilQuorum<'_>: |quorum| lacking = quorum.lacking);
