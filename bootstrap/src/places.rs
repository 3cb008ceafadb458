//! The number of sessions that a node has, and its limits: with each peer, and in all.
//!
//! Rules:
//!
//! - A handshake takes its place when it learns the peer's identity, so that two at a time cannot
//!   both have the last one.
//! - The sessions of a certificate's holder count together, whatever identity each of them claims.
//! - Without certificates, each run of a peer has places of its own. When a node meets a new run, the
//!   sessions of the run before are over, but this is noticed later.
//! - A session that has lost its connection keeps its place. If none is free in the node, a session
//!   of another certificate's holder takes the place of one whose time without a connection exceeds
//!   that with one, in all: whoever connects and leaves holds no place for long. It is taken from
//!   the holder with the most places, who keeps at least as many as the other then has. So no holder
//!   ends a session of another with fewer places than its own, or with one place.
//! - Nothing is taken without certificates: there a stranger can claim to be any number of peers.
//! - A place is given back when its last clone is dropped: at the end of the failed handshake, or
//!   of the session.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use ibex_base::sync::lock;
use ibex_base::tls::AuthenticatedAs;

use crate::identity::{Incarnation, NodeIdentity};

/// A node's places for sessions; clones share them.
#[derive(Clone, Debug)]
pub struct Places(Arc<PlaceTable>);

#[derive(Debug)]
struct PlaceTable {
    limits: SessionLimits,
    /// True once new peers that dial are refused.
    is_closed: AtomicBool,
    taken: Mutex<TakenPlaces>,
}

#[derive(Debug, Default)]
struct TakenPlaces {
    by_holder: HashMap<Holder, u32>,
    all: u32,
    /// The places of sessions without a connection, by number.
    suspended: HashMap<u64, Suspended>,
    next_number: u64,
    /// Sessions that have lost their places, and were not notified yet.
    displaced: Vec<[u8; 16]>,
}

/// A session without a connection.
#[derive(Debug)]
struct Suspended {
    holder: Holder,
    session: [u8; 16],
    keeps_until: Instant,
}

/// The peer that a place counts for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Holder {
    /// The holder of a certificate for these names.
    Proven(AuthenticatedAs),
    /// The identity that a peer claims, and its run, where nothing tells peers apart but their word:
    /// all holders of a shared secret are alike.
    Claimed(NodeIdentity, Incarnation),
}

/// The limits on the number of sessions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Limit of the sessions with one holder of a certificate, or else with one run of a peer,
    /// whichever end dialed. Default: 1024.
    pub per_peer: u32,
    /// Limit of all sessions. Default: 4096.
    pub per_node: u32,
}

/// A session's place.
#[derive(Clone, Debug)]
pub struct Place(#[allow(dead_code, reason = "held for its drop")] Arc<ReservedPlace>);

#[derive(Debug)]
struct ReservedPlace {
    places: Places,
    holder: Holder,
    number: u64,
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
        Places(Arc::new(PlaceTable {
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

    /// Takes a place for one more session with this run of `peer`, which has `proven` who it is, if
    /// nodes are authenticated. This may be the place of a suspended session, which counts until
    /// that session has ended; see [`take_displaced`](Self::take_displaced).
    ///
    /// # Errors
    /// The limit that was reached.
    pub fn take(
        &self,
        peer: NodeIdentity,
        incarnation: Incarnation,
        proven: Option<AuthenticatedAs>,
        now: Instant,
    ) -> Result<Place, SessionLimit> {
        let holder = match proven {
            Some(proven @ AuthenticatedAs::Certificate { .. }) => Holder::Proven(proven),
            _ => Holder::Claimed(peer, incarnation),
        };
        let SessionLimits { per_peer, per_node } = self.0.limits;
        let mut taken = self.taken();
        let with_peer = taken.of(&holder);
        if taken.all >= per_node {
            let no_place = || SessionLimit::PerNode(per_node);
            let may_displace = with_peer < per_peer && matches!(holder, Holder::Proven(_));
            let number = may_displace.then(|| taken.expendable(with_peer, now));
            taken.displace(number.flatten().ok_or_else(no_place)?);
        } else if with_peer >= per_peer {
            return Err(SessionLimit::PerPeer(per_peer));
        }
        taken.by_holder.insert(holder.clone(), with_peer + 1);
        taken.all += 1;
        taken.next_number += 1;
        Ok(Place(Arc::new(ReservedPlace {
            places: self.clone(),
            holder,
            number: taken.next_number,
        })))
    }

    /// Returns the sessions that have lost their places to others since the last call, to be ended.
    #[must_use]
    pub fn take_displaced(&self) -> Vec<[u8; 16]> {
        std::mem::take(&mut self.taken().displaced)
    }

    /// Locks the counts, also after a panic: they are whole after every statement that may panic.
    fn taken(&self) -> MutexGuard<'_, TakenPlaces> {
        lock(&self.0.taken)
    }
}

impl Place {
    /// Notes that the `session` of this place has no connection, and when it has been without one
    /// for as long as it had one.
    pub fn suspended(&self, session: [u8; 16], keeps_until: Instant) {
        let ReservedPlace { places, holder, .. } = &*self.0;
        let suspended = Suspended {
            holder: holder.clone(),
            session,
            keeps_until,
        };
        places.taken().suspended.insert(self.0.number, suspended);
    }

    /// Notes that the session of this place has another connection.
    pub fn resumed(&self) {
        self.0.places.taken().suspended.remove(&self.0.number);
    }
}

impl TakenPlaces {
    fn of(&self, holder: &Holder) -> u32 {
        self.by_holder.get(holder).copied().unwrap_or(0)
    }

    /// Returns the suspended session to end for a holder of `places`: of the holder with the most
    /// places, the one whose time is over for longest.
    fn expendable(&self, places: u32, now: Instant) -> Option<u64> {
        let candidates = self.suspended.iter().filter(|(_, one)| {
            // After the exchange, the other holder still has as many places as this one.
            one.keeps_until < now && self.of(&one.holder) >= places.saturating_add(2)
        });
        let most = candidates.max_by_key(|(_, one)| (self.of(&one.holder), now - one.keeps_until));
        most.map(|(number, _)| *number)
    }

    fn displace(&mut self, number: u64) {
        let displaced = self.suspended.remove(&number);
        self.displaced.extend(displaced.map(|one| one.session));
    }
}

impl Drop for ReservedPlace {
    fn drop(&mut self) {
        let mut taken = self.places.taken();
        taken.suspended.remove(&self.number);
        taken.all -= 1;
        if let Some(with_peer) = taken.by_holder.get_mut(&self.holder) {
            *with_peer -= 1;
            if *with_peer == 0 {
                taken.by_holder.remove(&self.holder);
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
    use std::time::Duration;

    use super::*;

    const ONE: NodeIdentity = NodeIdentity([1; 16]);
    const OTHER: NodeIdentity = NodeIdentity([2; 16]);

    #[test]
    fn a_peer_has_its_places_and_a_node_has_its_own() {
        let places = Places::new(SessionLimits {
            per_peer: 2,
            per_node: 3,
        });
        let first = places.take(ONE, 1, None, Instant::now()).unwrap();
        let _second = places.take(ONE, 1, None, Instant::now()).unwrap();
        assert_eq!(
            places.take(ONE, 1, None, Instant::now()).unwrap_err(),
            SessionLimit::PerPeer(2)
        );
        let _others = places.take(OTHER, 1, None, Instant::now()).unwrap();
        assert_eq!(
            places.take(OTHER, 1, None, Instant::now()).unwrap_err(),
            SessionLimit::PerNode(3)
        );
        let clone = first.clone();
        drop(first);
        assert!(
            places.take(ONE, 1, None, Instant::now()).is_err(),
            "its clone holds it"
        );
        drop(clone);
        let _again = places.clone().take(OTHER, 1, None, Instant::now()).unwrap();
    }

    #[test]
    fn a_run_does_not_wait_for_the_places_of_the_one_before_it() {
        let places = Places::new(SessionLimits {
            per_peer: 1,
            per_node: 2,
        });
        let _before = places.take(ONE, 1, None, Instant::now()).unwrap();
        assert_eq!(
            places.take(ONE, 1, None, Instant::now()).unwrap_err(),
            SessionLimit::PerPeer(1)
        );
        let _now = places.take(ONE, 2, None, Instant::now()).unwrap();
        assert_eq!(
            places.take(ONE, 3, None, Instant::now()).unwrap_err(),
            SessionLimit::PerNode(2)
        );
    }

    fn holder(name: &str) -> Option<AuthenticatedAs> {
        Some(AuthenticatedAs::Certificate {
            uri: Some(format!("spiffe://test/{name}")),
            dns_names: Vec::new(),
        })
    }

    /// An attacker connects, leaves, and comes as a new session each time.
    #[test]
    fn whoever_connects_and_leaves_takes_no_place_from_others() {
        let places = Places::new(SessionLimits {
            per_peer: 4,
            per_node: 5,
        });
        let now = Instant::now();
        let at = |seconds| now + Duration::from_secs(seconds);
        let take = |name, seconds| places.take(ONE, 1, holder(name), at(seconds));
        let full = SessionLimit::PerNode(5);
        let of_a = take("a", 0).unwrap();
        of_a.suspended([0xa; 16], at(1));
        let attackers = [1, 2, 3, 4].map(|number| {
            let place = take("attacker", 0).unwrap();
            place.suspended([number; 16], at(u64::from(number)));
            place
        });
        // Each keeps its place for as long as it had a connection.
        assert_eq!(take("b", 1).unwrap_err(), full);
        let _first = take("b", 10).unwrap();
        assert_eq!(places.take_displaced(), [[1; 16]]);
        assert!(places.take_displaced().is_empty());
        drop(attackers);
        drop(of_a);
        assert!(places.taken().suspended.is_empty());
    }

    #[test]
    fn nobody_takes_a_place_of_a_holder_with_no_more_than_its_own() {
        let places = Places::new(SessionLimits {
            per_peer: 4,
            per_node: 4,
        });
        let now = Instant::now();
        let later = now + Duration::from_secs(60);
        let take = |name| places.take(ONE, 1, holder(name), later);
        let full = SessionLimit::PerNode(4);
        let of_a = take("a").unwrap();
        of_a.suspended([0xa; 16], now);
        let of_b = [1, 2, 3].map(|number| {
            let place = take("b").unwrap();
            place.suspended([number; 16], now + Duration::from_secs(u64::from(number)));
            place
        });
        // The session of b that is back keeps its place.
        of_b[0].resumed();
        let _new = take("attacker").unwrap();
        assert_eq!(places.take_displaced(), [[2; 16]]);
        let [first, second, third] = of_b;
        drop(second);
        // Now b has two places, and a has one.
        assert_eq!(take("attacker").unwrap_err(), full);
        assert_eq!(take("a").unwrap_err(), full);
        // A stranger without a certificate is any number of peers.
        let taken = places.take(OTHER, 1, None, later);
        assert_eq!(taken.unwrap_err(), full);
        let _other = take("c").unwrap();
        assert_eq!(places.take_displaced(), [[3; 16]]);
        drop((first, third));
    }

    /// One certificate claims another identity each time.
    #[test]
    fn a_certificate_has_its_places_whatever_its_holder_claims() {
        let places = Places::new(SessionLimits {
            per_peer: 2,
            per_node: 9,
        });
        let _first = places.take(ONE, 1, holder("b"), Instant::now()).unwrap();
        let _second = places.take(OTHER, 2, holder("b"), Instant::now()).unwrap();
        let full = places.take(NodeIdentity([3; 16]), 3, holder("b"), Instant::now());
        assert_eq!(full.unwrap_err(), SessionLimit::PerPeer(2));
        let _other = places.take(ONE, 1, holder("a"), Instant::now()).unwrap();
        // All holders of a secret prove the same.
        for identity in 0..3 {
            let member = Some(AuthenticatedAs::Member);
            let place = places.take(NodeIdentity([identity; 16]), 1, member, Instant::now());
            std::mem::forget(place.unwrap());
        }
    }

    #[test]
    fn peers_that_went_are_forgotten() {
        let places = Places::new(SessionLimits::default());
        for identity in 0..100 {
            drop(
                places
                    .take(NodeIdentity([identity; 16]), 1, None, Instant::now())
                    .unwrap(),
            );
        }
        assert!(places.taken().by_holder.is_empty());
        assert_eq!(places.taken().all, 0);
    }
}
