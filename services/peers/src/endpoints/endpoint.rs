//! One connected peer, with what a program has opened there.

use std::{
    ops::Deref,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering},
    },
    time::Instant,
};

use ibex_core::{
    Peer,
    extend::{self, lock},
};

use crate::tried::BACK_OFF;

/// A session with a peer, and what was opened in it.
pub struct PeerEndpoint<T> {
    /// The peer.
    pub peer: Peer,
    /// What was opened with it.
    pub opened: T,
    /// The peer has opened its end.
    pub(super) is_open: AtomicBool,
    /// The handle has ended, and is to be opened anew. Written under the set's lock.
    pub(super) has_ended: AtomicBool,
    /// The calls under way from here.
    under_way: AtomicUsize,
    /// Refusals in a row.
    refusals: AtomicU32,
    /// Calls in a row that a second peer answered sooner.
    beaten: AtomicU32,
    /// Others are preferred until then.
    avoided_until: Mutex<Option<Instant>>,
}

/// An endpoint that a call uses. It counts as under way there until this is dropped.
pub struct ChosenEndpoint<T>(Arc<PeerEndpoint<T>>);

impl<T> PeerEndpoint<T> {
    pub(super) fn new(peer: Peer, opened: T) -> Self {
        Self {
            peer,
            opened,
            is_open: AtomicBool::new(false),
            has_ended: AtomicBool::new(false),
            under_way: AtomicUsize::new(0),
            refusals: AtomicU32::new(0),
            beaten: AtomicU32::new(0),
            avoided_until: Mutex::default(),
        }
    }

    /// Returns whether calls may be sent there. The keeper may not have seen yet that they may not.
    pub(super) fn is_usable(&self) -> bool {
        let session = extend::session(&self.peer);
        let ends = session.ending.has_begun() || session.is_over();
        !ends && !session.peer_drains() && !self.has_ended()
    }

    /// Returns whether the handle has ended. Only a check under the set's lock is certain.
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Relaxed)
    }

    pub(super) fn is_of(&self, peer: &Peer) -> bool {
        self.peer.is_same_session(peer)
    }

    pub(super) fn is_avoided(&self, now: Instant) -> bool {
        self.refusals.load(Ordering::Relaxed) > 0
            && lock(&self.avoided_until).is_some_and(|until| now < until)
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.load(Ordering::Relaxed)
    }
}

impl<T> ChosenEndpoint<T> {
    pub(super) fn new(endpoint: Arc<PeerEndpoint<T>>) -> Self {
        endpoint.under_way.fetch_add(1, Ordering::Relaxed);
        Self(endpoint)
    }

    /// Notes that the peer executed a call.
    pub fn answered(&self) {
        if !self.0.is_open.load(Ordering::Relaxed) {
            self.0.is_open.store(true, Ordering::Relaxed);
        }
        for in_a_row in [&self.0.refusals, &self.0.beaten] {
            if in_a_row.load(Ordering::Relaxed) > 0 {
                in_a_row.store(0, Ordering::Relaxed);
            }
        }
    }

    /// Notes that a second peer answered a call sooner. Among peers that answer this happens to a few
    /// of 100 calls. A peer that answers none in between hangs, and counts as one that refuses: it
    /// would otherwise be the least busy one, since such calls are cancelled.
    pub fn beaten(&self) {
        let before = self.0.beaten.fetch_add(1, Ordering::Relaxed);
        if before.saturating_add(1) >= BEATEN_IN_A_ROW {
            self.refused();
        }
    }

    /// Notes that the peer refused a call. Calls go to others for a moment, which grows with each
    /// refusal in a row: a peer that refuses at once would otherwise be the least busy one. Calls
    /// that were under way together and are refused count as one.
    pub fn refused(&self) {
        let now = Instant::now();
        if self.0.is_avoided(now) {
            return;
        }
        let refusals = self.0.refusals.fetch_add(1, Ordering::Relaxed);
        let pause = BACK_OFF.pause(refusals.saturating_add(1));
        *lock(&self.0.avoided_until) = now.checked_add(pause);
    }
}

impl<T> Deref for ChosenEndpoint<T> {
    type Target = Arc<PeerEndpoint<T>>;

    fn deref(&self) -> &Arc<PeerEndpoint<T>> {
        &self.0
    }
}

impl<T> Drop for ChosenEndpoint<T> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The calls in a row that a second peer answers sooner after which a peer counts as one that hangs.
const BEATEN_IN_A_ROW: u32 = 3;
