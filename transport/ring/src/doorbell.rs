//! The *armed* word, by which a publisher learns that the other side sleeps.
//!
//! The sleeper owns the word, in memory that the publisher may only read. The value 0 means awake.
//! Any other value is the generation of an arming, and the publisher rings once for each.
//!
//! ```text
//!   sleeper                         publisher
//!   armed = generation              publish
//!   heavy barrier                   light barrier
//!   look again: published?          load armed: set, and not rung yet?
//!     no: sleep                       ring
//! ```
//!
//! The protocol survives this race: a publish falls between the sleeper's first look and its
//! arming. The barriers order both sides' writes before their reads, so the two sides cannot both
//! miss: either the second look finds the message or the load finds the arming. Model:
//! loom_armed_or_seen.

use ibex_base::sync::{Asymmetry, AtomicU32, Ordering};

/// The sleeper's side.
#[derive(Debug, Default)]
pub struct Arm {
    /// The generation of the last arming; 0 before the first.
    generation: u32,
}

impl Arm {
    /// Awake, never armed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that we are about to sleep. The caller must look again now and may
    /// sleep only if there is still nothing.
    pub fn arm(&mut self, armed: &AtomicU32, asymmetry: Asymmetry) {
        self.set(armed);
        // DOORBELL, pairs with the light half in `Doorbell::is_due`.
        asymmetry.heavy();
    }

    /// The first half of [`arm`](Self::arm), for sleepers that arm many words: one
    /// [`Asymmetry::heavy`] must follow before the second looks, or
    /// [`Asymmetry::heavy_here`] if the publishers are of this process.
    pub fn set(&mut self, armed: &AtomicU32) {
        self.generation = match self.generation.wrapping_add(1) {
            0 => 1,
            next => next,
        };
        armed.store(self.generation, Ordering::Relaxed);
    }

    /// Says that we are awake. A ring that is under way may still come.
    pub fn disarm(&self, armed: &AtomicU32) {
        armed.store(0, Ordering::Relaxed);
    }
}

/// The publisher's side.
#[derive(Debug, Default)]
pub struct Doorbell {
    /// The armed word as of the last look: a generation that was rung for, or 0.
    last_seen: u32,
}

impl Doorbell {
    /// Creates a doorbell that has not rung.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns whether the sleeper must be rung now: call it after each publish (or after the last
    /// of a batch), and ring if it returns `true`.
    ///
    /// A generation that wraps round to the same value unseen would be missed, which takes 2^32
    /// armings between two publishes.
    #[inline]
    #[must_use = "the sleeper waits for this ring"]
    pub fn is_due(&mut self, armed: &AtomicU32, asymmetry: Asymmetry) -> bool {
        // DOORBELL, pairs with the heavy half behind every arming: in `Arm::arm`, or behind the calls
        // of `Arm::set`.
        asymmetry.light();
        let seen = armed.load(Ordering::Relaxed);
        if seen == self.last_seen {
            return false;
        }
        self.last_seen = seen;
        seen != 0
    }

    /// Returns the arming that [`is_due`](Self::is_due) said to ring for.
    #[must_use]
    pub fn generation(&self) -> u32 {
        self.last_seen
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_ring_for_each_arming() {
        let word = AtomicU32::new(0);
        let (mut arm, mut doorbell) = (Arm::new(), Doorbell::new());
        let kind = Asymmetry::of_process();

        assert!(!doorbell.is_due(&word, kind));
        arm.arm(&word, kind);
        assert!(doorbell.is_due(&word, kind));
        assert!(!doorbell.is_due(&word, kind));
        arm.disarm(&word);
        assert!(!doorbell.is_due(&word, kind));
        arm.arm(&word, kind);
        arm.arm(&word, kind);
        assert!(doorbell.is_due(&word, kind));
        assert!(!doorbell.is_due(&word, kind));
    }

    #[test]
    fn no_generation_means_awake() {
        let word = AtomicU32::new(0);
        let mut arm = Arm {
            generation: u32::MAX,
        };
        arm.set(&word);
        assert_eq!(word.load(Ordering::Relaxed), 1);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use ibex_base::sync::{Arc, thread};

    /// Mutants: light_missing, heavy_missing.
    #[test]
    fn loom_armed_or_seen() {
        loom::model(|| {
            let published = Arc::new(AtomicU32::new(0));
            let armed = Arc::new(AtomicU32::new(0));
            let publisher = {
                let (published, armed) = (published.clone(), armed.clone());
                thread::spawn(move || {
                    let mut doorbell = Doorbell::new();
                    let mut rings = 0;
                    for message in 1..=2 {
                        published.store(message, Ordering::Release);
                        rings += u32::from(doorbell.is_due(&armed, Asymmetry::Fence));
                    }
                    rings
                })
            };
            Arm::new().arm(&armed, Asymmetry::Fence);
            let seen = published.load(Ordering::Acquire);
            let rings = publisher.join().unwrap();
            assert!(rings <= 1, "one arming was rung {rings} times");
            assert!(
                seen == 2 || rings == 1,
                "asleep with message {} unseen and no ring",
                seen + 1
            );
        });
    }
}
