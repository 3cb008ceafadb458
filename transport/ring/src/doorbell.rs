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
//! The protocol survives this race: a publish falls between the sleeper's first check and its
//! arming. The barriers order both sides' writes before their reads, so the two sides cannot both
//! miss: either the second check finds the message or the load finds the arming. Model:
//! loom_armed_or_seen.
//!
//! The heavy barrier interrupts other cores, which costs more than all else where sleeps are
//! frequent. So a sleeper's first arming also sets a bit of the word by which publishers know that
//! they have to make a full fence and look again. The heavy barrier of that arming is the last: once
//! it is over no publisher misses the bit, and from then on sleepers fence as well, until one takes
//! many messages without a sleep and clears the bit. Model: loom_armed_again_or_seen.

use ibex_base::sync::{Asymmetry, AtomicU32, Ordering, fence};

/// The word of a sleeper, in its memory.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct ArmedWord(AtomicU32);

/// Set in a word whose publishers make a full fence and read it again. It is no part of the
/// generation. Where both sides always fence it is never set.
const FENCED: u32 = 1 << 31;
/// A sleeper that takes this many messages without a sleep no longer needs the publishers' fences.
const AWAKE_MESSAGES: i32 = 64;

impl ArmedWord {
    /// The bit of generations of armings that the sleeper has not made itself
    /// ([`replace`](Self::replace)).
    pub const IN_PLACE: u32 = 1 << 30;

    /// Creates the word of a sleeper that is awake.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets all armings, while no other thread knows the word.
    pub fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Returns the generation of the present arming, or 0 if the sleeper is awake. This is a check
    /// without a barrier.
    #[must_use]
    pub fn generation(&self) -> u32 {
        Self::generation_of(self.0.load(Ordering::Relaxed))
    }

    /// Returns the generation in a word that was seen, or that was rung for.
    #[must_use]
    pub(crate) fn generation_of(word: u32) -> u32 {
        word & !FENCED
    }

    /// Returns the generation of the present arming after a publish, or 0 if the sleeper is awake.
    #[inline]
    #[must_use = "the sleeper may wait for a ring"]
    pub fn generation_behind(&self, asymmetry: Asymmetry) -> u32 {
        // DOORBELL, pairs with the heavy half behind every arming: in `Arm::arm`, or behind the calls
        // of `Arm::set`.
        asymmetry.light();
        let seen = self.0.load(Ordering::Relaxed);
        if seen & FENCED == 0 || asymmetry == Asymmetry::Fence {
            return seen;
        }
        // DOORBELL, pairs with the fence of a sleeper whose publishers know of the bit.
        fence(Ordering::SeqCst);
        self.generation()
    }

    /// Arms in the place of the sleeper, if the word still has the generation `spent`. `next` has the
    /// bit [`IN_PLACE`](Self::IN_PLACE). Returns whether it had; then [`Asymmetry::heavy`] must follow
    /// before the second looks.
    pub fn replace(&self, spent: u32, next: u32) -> bool {
        // The sleeper may clear the other bit at this moment.
        let replaced = |seen| (seen & !FENCED == spent).then_some(next | seen & FENCED);
        let order = Ordering::Relaxed;
        self.0.fetch_update(order, order, replaced).is_ok()
    }
}

/// The sleeper's side.
#[derive(Debug, Default)]
pub struct Arm {
    /// The generation of the last arming; 0 before the first.
    generation: u32,
    /// Publishers have been told to fence.
    is_fenced: bool,
    /// The messages at the first check since the last sleep, without the upper half of the number.
    awake_since: Option<u32>,
}

impl Arm {
    /// Awake, never armed.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that we are about to sleep. The caller must look again now and may
    /// sleep only if there is still nothing.
    pub fn arm(&mut self, armed: &ArmedWord, asymmetry: Asymmetry) {
        if self.set(armed, asymmetry) {
            // DOORBELL, pairs with the light half in `ArmedWord::generation_behind`.
            asymmetry.heavy();
        } else {
            // DOORBELL, pairs with the fence in `ArmedWord::generation_behind`.
            fence(Ordering::SeqCst);
        }
    }

    /// The first half of [`arm`](Self::arm), for sleepers that arm many words. If it returns `true`
    /// for any, one [`Asymmetry::heavy`] must follow before the second looks, or
    /// [`Asymmetry::heavy_here`] if the publishers are of this process. Otherwise all of them know that
    /// they have to fence, and a full fence must follow.
    #[must_use = "the barrier that follows depends on it"]
    pub fn set(&mut self, armed: &ArmedWord, asymmetry: Asymmetry) -> bool {
        self.generation = match (self.generation + 1) & (ArmedWord::IN_PLACE - 1) {
            0 => 1,
            next => next,
        };
        self.awake_since = None;
        let was_fenced = self.is_fenced;
        self.is_fenced = asymmetry == Asymmetry::Membarrier;
        armed
            .0
            .store(self.awake() | self.generation, Ordering::Relaxed);
        !(was_fenced && self.is_fenced)
    }

    /// Says that we are awake. A ring that is under way may still come.
    pub fn disarm(&self, armed: &ArmedWord) {
        armed.0.store(self.awake(), Ordering::Relaxed);
    }

    /// Says that we are awake and have taken this many messages by now, of which some may be taken
    /// again. Publishers need not fence for a sleeper that takes many messages between two sleeps.
    pub fn stay_awake(&mut self, armed: &ArmedWord, messages: u64) {
        if !self.is_fenced {
            return;
        }
        let now = messages as u32;
        let since = *self.awake_since.get_or_insert(now);
        if now.wrapping_sub(since) as i32 >= AWAKE_MESSAGES {
            // Somebody may have armed in our place, and relies on what publishers do.
            let order = Ordering::Relaxed;
            let taken_back = armed.0.compare_exchange(self.awake(), 0, order, order);
            self.is_fenced = taken_back.is_err();
        }
    }

    fn awake(&self) -> u32 {
        u32::from(self.is_fenced) * FENCED
    }
}

/// The publisher's side.
#[derive(Debug, Default)]
pub struct Doorbell {
    /// The generation as of the last check: one that was rung for, or 0.
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
    /// A generation that wraps round to the same value unseen would be missed, which takes 2^31
    /// armings between two publishes.
    #[inline]
    #[must_use = "the sleeper waits for this ring"]
    pub fn is_due(&mut self, armed: &ArmedWord, asymmetry: Asymmetry) -> bool {
        let seen = armed.generation_behind(asymmetry);
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
        let word = ArmedWord::new();
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

    /// The first sleep tells the publishers to fence, the next ones need no heavy barrier, and a
    /// sleeper that stays awake takes it back.
    #[test]
    fn only_the_first_of_many_sleeps_needs_the_heavy_barrier() {
        let (word, mut arm) = (ArmedWord::new(), Arm::new());
        for turn in 0..2 {
            assert!(arm.set(&word, Asymmetry::Membarrier), "turn {turn}");
            for messages in [1, 2] {
                arm.disarm(&word);
                assert_eq!(word.generation(), 0);
                arm.stay_awake(&word, messages);
                assert!(!arm.set(&word, Asymmetry::Membarrier));
                assert_ne!(word.generation(), 0);
            }
            arm.disarm(&word);
            arm.stay_awake(&word, 10);
            // A broken connection brings messages back.
            arm.stay_awake(&word, 9);
            arm.stay_awake(&word, 10 + 63);
            assert!(arm.is_fenced);
            arm.stay_awake(&word, 10 + 64);
            assert_eq!(word.0.load(Ordering::Relaxed), 0);
        }
    }

    /// An engine has armed in the place of a handle that is awake.
    #[test]
    fn an_arming_in_the_sleepers_place_keeps_the_fences() {
        let (word, mut arm) = (ArmedWord::new(), Arm::new());
        let _first = arm.set(&word, Asymmetry::Membarrier);
        arm.disarm(&word);
        arm.stay_awake(&word, 0);
        let next = ArmedWord::IN_PLACE | 1;
        assert!(!word.replace(8, next), "it has another generation");
        assert!(word.replace(0, next));
        arm.stay_awake(&word, 64);
        assert_eq!(
            (word.generation(), word.0.load(Ordering::Relaxed)),
            (next, next | FENCED)
        );
        let mut doorbell = Doorbell::new();
        assert!(doorbell.is_due(&word, Asymmetry::Membarrier));
        assert_eq!(doorbell.generation(), next);
    }

    #[test]
    fn no_generation_means_awake() {
        let word = ArmedWord::new();
        let mut arm = Arm {
            generation: ArmedWord::IN_PLACE - 1,
            ..Arm::new()
        };
        assert!(arm.set(&word, Asymmetry::Fence));
        assert_eq!(word.generation(), 1);
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use ibex_base::sync::{Arc, thread};

    /// Mutants: light_missing, heavy_missing.
    #[test]
    fn loom_armed_or_seen() {
        arm_beside_publisher(Asymmetry::Fence);
    }

    /// The sleeper has slept before, so that both sides fence without a barrier of the system.
    ///
    /// Mutants: word_unfenced, sleeper_unfenced.
    #[test]
    fn loom_armed_again_or_seen() {
        arm_beside_publisher(Asymmetry::Membarrier);
    }

    fn arm_beside_publisher(asymmetry: Asymmetry) {
        loom::model(move || {
            let published = Arc::new(AtomicU32::new(0));
            let armed = Arc::new(ArmedWord::new());
            let mut arm = Arm::new();
            let _first = arm.set(&armed, asymmetry);
            arm.disarm(&armed);
            let publisher = {
                let (published, armed) = (published.clone(), armed.clone());
                thread::spawn(move || {
                    let mut doorbell = Doorbell::new();
                    let mut rings = 0;
                    for message in 1..=2 {
                        published.store(message, Ordering::Release);
                        rings += u32::from(doorbell.is_due(&armed, asymmetry));
                    }
                    rings
                })
            };
            arm.arm(&armed, asymmetry);
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
