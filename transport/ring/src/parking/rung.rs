//! The *rung* word: for which sleeper a shared bell was rung.
//!
//! One bell serves all channels between two processes. The other process's engine hears the bell
//! and wakes the threads that are meant. A ring names the arming ([`Arm`](super::Arm)) that it is
//! for, in a word beside the ring. The message itself says nothing about that: the sleeper may have
//! taken it in its second check and be asleep nevertheless.
//!
//! ```text
//!   sleeper                 publisher                  engine that hears the bell
//!   register its waker      publish
//!   armed = generation      is the doorbell due?
//!   look again: nothing       rung = generation
//!   sleep                     ring the bell            drain the bell
//!                                                      rung == armed?
//!                                                        take the wakers; wake them
//! ```
//!
//! The protocol survives three races. The bell may be heard between the publisher's two steps: the
//! word is written first. The bell may ring while it is being heard: it is drained before the words
//! are read. Another arming may have followed the one that was rung for: its own ring is still to
//! come. Model: loom_a_sleeping_receiver_is_rung_for.

use ibex_base::sync::{AtomicU32, Ordering};

use crate::ArmedWord;

/// The generation of the last arming that was rung for; 0 before the first.
///
/// The publisher owns the word, in memory that the sleeper's process may only read.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct Rung {
    generation: AtomicU32,
}

impl Rung {
    /// Creates a word that was never rung.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Forgets the generation that was rung for, while no other thread knows the word.
    pub fn reset(&self) {
        self.generation.store(0, Ordering::Relaxed);
    }

    /// Rings the bell for the arming `generation` (see
    /// [`Doorbell::generation`](crate::Doorbell::generation)).
    ///
    /// `bell` must order everything before the ring before everything that the hearer does after
    /// draining. A socket does so by its queue's lock.
    pub fn ring(&self, generation: u32, bell: impl FnOnce()) {
        // BELL, pairs with `is_for`: the engine that drained this ring sees the word, and the armed
        // word as the publisher saw it or a later one. The bell itself is the ordering.
        self.generation.store(generation, Ordering::Relaxed);
        bell();
    }

    /// Returns whether the arming that `armed` holds now was rung for. If so, its sleeper must be
    /// woken even if it has taken the message that was the reason, since the next message will not
    /// ring for this arming again. Ask after draining the bell.
    #[must_use = "the sleeper waits for it"]
    pub fn is_for(&self, armed: &ArmedWord) -> bool {
        // BELL, pairs with `ring`. A publisher that fences always rings for the word as it is.
        let rung = ArmedWord::generation_of(self.generation.load(Ordering::Relaxed));
        rung != 0 && rung == armed.generation()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::{Arm, Doorbell};
    use ibex_base::sync::Asymmetry;
    use std::cell::Cell;

    #[test]
    fn a_ring_is_for_one_arming() {
        let (rung, armed, mut arm) = (Rung::new(), ArmedWord::new(), Arm::new());
        let mut arm_again = || {
            arm.arm(&armed, Asymmetry::of_process());
            armed.generation()
        };
        assert!(!rung.is_for(&armed), "nobody is armed, nothing was rung");
        let first = arm_again();
        rung.ring(first, || ());
        assert!(rung.is_for(&armed));
        let second = arm_again();
        assert!(!rung.is_for(&armed), "nobody rang for this arming yet");
        rung.ring(second, || ());
        assert!(rung.is_for(&armed));
        rung.reset();
        assert!(!rung.is_for(&armed));
        rung.ring(second, || ());
        armed.reset();
        assert!(!rung.is_for(&armed), "awake again");
        // The publisher always fences, and the sleeper had armed before it knew.
        assert!(Arm::new().set(&armed, Asymmetry::Membarrier));
        let mut doorbell = Doorbell::new();
        assert!(doorbell.is_due(&armed, Asymmetry::Fence));
        rung.ring(doorbell.generation(), || ());
        assert!(rung.is_for(&armed));
    }

    #[test]
    fn the_word_is_there_when_the_bell_rings() {
        let (rung, armed) = (Rung::new(), ArmedWord::new());
        Arm::new().arm(&armed, Asymmetry::of_process());
        let heard = Cell::new(false);
        rung.ring(armed.generation(), || heard.set(rung.is_for(&armed)));
        assert!(heard.get());
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::super::WaitSlot;
    use super::*;
    use crate::{Arm, Doorbell};
    use ibex_base::sync::Asymmetry;
    use ibex_base::sync::{Arc, thread};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
    use std::task::Wake;

    /// A flag outside of loom: it records an event for the test and orders nothing.
    #[derive(Default)]
    struct Woken(AtomicBool);

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.store(true, Relaxed);
        }
    }

    #[derive(Default)]
    struct Channel {
        published: AtomicU32,
        armed: ArmedWord,
        rung: Rung,
        waiters: WaitSlot,
        /// The bell's counter, under its lock in the kernel.
        bell: AtomicU32,
    }

    impl Channel {
        fn publish(&self, doorbell: &mut Doorbell, message: u32) {
            self.published.store(message, Ordering::Release);
            if doorbell.is_due(&self.armed, Asymmetry::Fence) {
                let order = Ordering::Release;
                self.rung.ring(doorbell.generation(), || {
                    self.bell.fetch_add(1, order);
                });
            }
        }

        /// The engine's part when the bell's descriptor is readable.
        fn hear(&self) {
            if self.bell.swap(0, Ordering::Acquire) != 0
                && self.rung.is_for(&self.armed)
                && self.waiters.is_waiting()
            {
                self.waiters.wake_all();
            }
        }
    }

    /// Mutants: rung_late, bell_relaxed, light_missing, heavy_missing.
    #[test]
    fn loom_a_sleeping_receiver_is_rung_for() {
        loom::model(|| {
            let channel = Arc::new(Channel::default());
            let publisher = {
                let channel = channel.clone();
                thread::spawn(move || channel.publish(&mut Doorbell::new(), 1))
            };
            let engine = {
                let channel = channel.clone();
                thread::spawn(move || channel.hear())
            };
            let woken = std::sync::Arc::new(Woken::default());
            let _ticket = channel.waiters.register(&woken.clone().into());
            Arm::new().arm(&channel.armed, Asymmetry::Fence);
            let seen = channel.published.load(Ordering::Acquire) == 1;
            publisher.join().unwrap();
            engine.join().unwrap();
            // The descriptor stays readable while a ring is in it.
            channel.hear();
            assert!(seen || woken.0.load(Relaxed), "asleep for ever");
        });
    }
}
