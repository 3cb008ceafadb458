//! The placement of a node's sessions on its engines.
//!
//! A session is placed once, when it begins, on the engine that has the fewest, and counts there
//! until it is over. A node that closes ends with its last session, on whichever engine that is,
//! and then every engine stops.
//!
//! Rules, and the race that each is for:
//!
//! 1. PLACE: the engine is chosen and counts the session in one step, or two sessions that begin
//!    together find the same engine the least loaded. Model: loom_placed_apart.
//! 2. LAST: the session that ends counts itself out before it asks whether the node closes; the
//!    thread that closes announces the close before the engines ask whether a session is left. So
//!    either the session that ends finds the close, and the engines are notified, or the engines find
//!    no session. Model: loom_the_last_session_is_noticed.
//!
//! Nothing here is per message.

use super::{AtomicBool, AtomicUsize, Mutex, Ordering, fence, lock};

/// Numbers of sessions by engine, and whether the node closes.
#[derive(Debug)]
pub struct Placement {
    loads: Mutex<Vec<usize>>,
    /// The sum of `loads`, for engines that ask whether a session is left.
    placed: AtomicUsize,
    is_closing: AtomicBool,
}

impl Placement {
    /// Creates a placement on this many engines, none of which has a session.
    #[must_use]
    pub fn new(engines: usize) -> Self {
        Self {
            loads: Mutex::new(vec![0; engines]),
            placed: AtomicUsize::new(0),
            is_closing: AtomicBool::new(false),
        }
    }

    /// Places a session on the engine `wanted`, or on the first of the least loaded ones. Returns
    /// the engine, which the session [leaves](Self::leave) when it is over.
    ///
    /// # Panics
    /// If there is no such engine.
    #[must_use]
    pub fn place(&self, wanted: Option<usize>) -> usize {
        let mut loads = lock(&self.loads);
        let least = || (0..loads.len()).min_by_key(|&engine| loads[engine]);
        let engine = wanted.or_else(least).expect("a node has an engine");
        loads[engine] += 1;
        self.placed.fetch_add(1, Ordering::Relaxed);
        engine
    }

    /// Counts a session out that is over. Returns whether the engines are to be woken, since the
    /// node closes and this was its last session.
    #[must_use]
    pub fn leave(&self, engine: usize) -> bool {
        lock(&self.loads)[engine] -= 1;
        // LEFT, pairs with `is_over`: an engine that finds no session finds what they left to it.
        let was_last = self.placed.fetch_sub(1, Ordering::Release) == 1;
        // LAST, pairs with `begin_close`.
        fence(Ordering::SeqCst);
        was_last && self.is_closing.load(Ordering::Relaxed)
    }

    /// Notes that the node closes: its engines stop when the last session is over. Wake them
    /// afterwards.
    pub fn begin_close(&self) {
        // CLOSING, pairs with `is_over`: sessions that were placed before the close are counted.
        self.is_closing.store(true, Ordering::Release);
        // LAST, pairs with `leave`: an engine that looks after this finds no session, or is woken.
        fence(Ordering::SeqCst);
    }

    /// Returns whether the node closes and no session is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        // CLOSING, pairs with `begin_close`. LEFT, pairs with `leave`.
        self.is_closing.load(Ordering::Acquire) && self.placed.load(Ordering::Acquire) == 0
    }

    /// Returns how many sessions each engine has.
    #[must_use]
    pub fn loads(&self) -> Vec<usize> {
        lock(&self.loads).clone()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn sessions_spread_evenly_and_fill_the_gaps_that_others_leave() {
        let placement = Placement::new(4);
        for session in 0..1000 {
            assert_eq!(placement.place(None), session % 4);
        }
        assert_eq!(placement.loads(), [250; 4]);
        for _ in 0..3 {
            assert!(!placement.leave(2));
        }
        assert_eq!(
            [(); 4].map(|()| placement.place(None)),
            [2, 2, 2, 0],
            "the emptiest first"
        );
    }

    #[test]
    fn a_session_may_name_its_engine() {
        let placement = Placement::new(2);
        assert_eq!([(); 3].map(|()| placement.place(Some(1))), [1, 1, 1]);
        assert_eq!(placement.place(None), 0);
        assert_eq!(placement.loads(), [1, 3]);
    }

    #[test]
    fn the_last_session_of_a_node_that_closes_has_the_engines_woken() {
        let placement = Placement::new(2);
        let (one, other) = (placement.place(None), placement.place(None));
        assert!(!placement.leave(one));
        assert!(!placement.is_over());
        placement.begin_close();
        assert!(!placement.is_over());
        assert!(placement.leave(other));
        assert!(placement.is_over());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use crate::sync::{Arc, thread};

    /// Mutants: placed_twice.
    #[test]
    fn loom_placed_apart() {
        loom::model(|| {
            let placement = Arc::new(Placement::new(2));
            let other = {
                let placement = placement.clone();
                thread::spawn(move || placement.place(None))
            };
            let one = placement.place(None);
            assert_ne!(one, other.join().unwrap(), "both on one engine");
            assert_eq!(placement.loads(), [1, 1]);
        });
    }

    /// Mutants: last_unnoticed.
    #[test]
    fn loom_the_last_session_is_noticed() {
        loom::model(|| {
            let placement = Arc::new(Placement::new(1));
            let engine = placement.place(None);
            let ends = {
                let placement = placement.clone();
                thread::spawn(move || placement.leave(engine))
            };
            placement.begin_close();
            // The close wakes an engine, which sleeps on if a session is left.
            let is_over = placement.is_over();
            let is_woken = ends.join().unwrap();
            assert!(is_over || is_woken, "asleep for ever");
        });
    }
}
