//! The number of sessions that a node has, and its limits: with each peer, and in all.
//!
//! Rules:
//!
//! - A handshake takes its place when it learns the peer's identity, so that two at a time cannot
//!   both have the last one.
//! - Each run of a peer has places of its own. When a node meets a new run, the sessions of the run
//!   before are over, but this is noticed later.
//! - A place is given back when its last clone is dropped: at the end of the failed handshake, or
//!   of the session.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::identity::{Incarnation, NodeIdentity};

/// A node's places for sessions; clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: SessionLimits,
    /// True once new peers that dial are refused.
    is_closed: AtomicBool,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    by_run: HashMap<Run, u32>,
    all: u32,
}

/// A peer's identity, and its run.
type Run = (NodeIdentity, Incarnation);

/// The limits on the number of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Limit of the sessions with one run of a peer, whichever end dialed. Default: 1024.
    pub per_peer: u32,
    /// Limit of all sessions. Default: 4096.
    pub per_node: u32,
}

/// A session's place.
#[derive(Clone, Debug)]
pub struct Place(#[allow(dead_code, reason = "held for its drop")] Arc<Held>);

#[derive(Debug)]
struct Held {
    places: Places,
    run: Run,
}

/// The limit that prevents a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SessionLimit {
    /// The limit of sessions with one peer.
    PerPeer(u32),
    /// The limit of all sessions.
    PerNode(u32),
}

impl Places {
    /// Creates places, all of them free.
    #[must_use]
    pub fn new(limits: SessionLimits) -> Places {
        Places(Arc::new(Shared {
            limits,
            is_closed: AtomicBool::new(false),
            taken: Mutex::default(),
        }))
    }

    /// Refuses places to peers that dial this node from now on. Places that are taken stay.
    pub fn close(&self) {
        self.0.is_closed.store(true, Ordering::Relaxed);
    }

    /// Returns whether [`close`](Self::close) was called.
    #[must_use]
    pub fn are_closed(&self) -> bool {
        self.0.is_closed.load(Ordering::Relaxed)
    }

    /// Takes a place for one more session with this run of `peer`.
    ///
    /// # Errors
    /// The limit that was reached.
    pub fn take(
        &self,
        peer: NodeIdentity,
        incarnation: Incarnation,
    ) -> Result<Place, SessionLimit> {
        let run = (peer, incarnation);
        let SessionLimits { per_peer, per_node } = self.0.limits;
        let mut taken = self.taken();
        if taken.all >= per_node {
            return Err(SessionLimit::PerNode(per_node));
        }
        let with_peer = taken.by_run.get(&run).copied().unwrap_or(0);
        if with_peer >= per_peer {
            return Err(SessionLimit::PerPeer(per_peer));
        }
        taken.by_run.insert(run, with_peer + 1);
        taken.all += 1;
        let places = self.clone();
        Ok(Place(Arc::new(Held { places, run })))
    }

    /// Locks the counts, also after a panic: they are whole after every statement that may panic.
    fn taken(&self) -> MutexGuard<'_, Taken> {
        self.0.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.all -= 1;
        if let Some(with_peer) = taken.by_run.get_mut(&self.run) {
            *with_peer -= 1;
            if *with_peer == 0 {
                taken.by_run.remove(&self.run);
            }
        }
    }
}

impl Default for SessionLimits {
    fn default() -> SessionLimits {
        SessionLimits {
            per_peer: 1024,
            per_node: 4096,
        }
    }
}

impl SessionLimit {
    /// Returns the name of the setting behind this limit.
    #[must_use]
    pub fn setting(self) -> &'static str {
        match self {
            SessionLimit::PerPeer(_) => "max_peer_sessions",
            SessionLimit::PerNode(_) => "max_node_sessions",
        }
    }
}

impl fmt::Display for SessionLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionLimit::PerPeer(1) => f.write_str("a session with this peer, the only one"),
            SessionLimit::PerPeer(limit) => write!(f, "{limit} sessions with this peer, the most"),
            SessionLimit::PerNode(1) => f.write_str("a session, the only one"),
            SessionLimit::PerNode(limit) => write!(f, "{limit} sessions, the most"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: NodeIdentity = NodeIdentity([1; 16]);
    const OTHER: NodeIdentity = NodeIdentity([2; 16]);

    #[test]
    fn a_peer_has_its_places_and_a_node_has_its_own() {
        let places = Places::new(SessionLimits {
            per_peer: 2,
            per_node: 3,
        });
        let first = places.take(ONE, 1).unwrap();
        let _second = places.take(ONE, 1).unwrap();
        assert_eq!(places.take(ONE, 1).unwrap_err(), SessionLimit::PerPeer(2));
        let _others = places.take(OTHER, 1).unwrap();
        assert_eq!(places.take(OTHER, 1).unwrap_err(), SessionLimit::PerNode(3));
        let clone = first.clone();
        drop(first);
        assert!(places.take(ONE, 1).is_err(), "its clone holds it");
        drop(clone);
        let _again = places.clone().take(OTHER, 1).unwrap();
    }

    #[test]
    fn a_run_does_not_wait_for_the_places_of_the_one_before_it() {
        let places = Places::new(SessionLimits {
            per_peer: 1,
            per_node: 2,
        });
        let _before = places.take(ONE, 1).unwrap();
        assert_eq!(places.take(ONE, 1).unwrap_err(), SessionLimit::PerPeer(1));
        let _now = places.take(ONE, 2).unwrap();
        assert_eq!(places.take(ONE, 3).unwrap_err(), SessionLimit::PerNode(2));
    }

    #[test]
    fn peers_that_went_are_forgotten() {
        let places = Places::new(SessionLimits::default());
        for identity in 0..100 {
            drop(places.take(NodeIdentity([identity; 16]), 1).unwrap());
        }
        assert!(places.taken().by_run.is_empty());
        assert_eq!(places.taken().all, 0);
    }
}
