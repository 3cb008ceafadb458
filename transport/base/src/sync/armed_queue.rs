//! A queue that announces its next entry once, if it is armed before that entry comes.
//!
//! A completion queue is such a queue: arming it makes its descriptor readable when the *next*
//! completion comes, and tells nothing about completions that are there.
//!
//! ```text
//!   sleeper                          device
//!   poll: empty
//!   arm                              put an entry in
//!   poll again: empty?               armed? disarm; make the descriptor readable
//!     yes: sleep on the descriptor
//!   drain the descriptor
//!   poll
//! ```
//!
//! The order of steps survives two races. An entry that comes between the first poll and arming
//! makes no event, so the second poll has to find it. The event of an entry that comes behind the
//! second poll must still be there when the sleeper goes to sleep, so the descriptor is drained
//! after sleeping and never in between. Model: loom_polled_again_or_woken.
//!
//! Rules:
//!
//! 1. One arming makes at most one event, so a queue is not armed again before the event of the
//!    last arming was taken. An entry that came since has made that event, or polling finds it.
//! 2. A thread that has not polled since arming may not sleep; `prepare_sleep` is both.
//! 3. An event is taken only by the thread that polls next.

/// The queue below an [`ArmedQueue`].
pub trait ArmableQueue {
    /// An entry of the queue.
    type Entry;
    /// The error of a queue that cannot be used.
    type Error;

    /// Takes the entries that are there, as far as they fit. Returns how many.
    fn poll(&mut self, into: &mut [Self::Entry]) -> Result<usize, Self::Error>;

    /// Asks for one event when the next entry comes. The call orders the request before all later
    /// polls.
    fn arm(&mut self) -> Result<(), Self::Error>;

    /// Takes all events that there are, without waiting. Returns how many.
    fn drain_events(&mut self) -> Result<u32, Self::Error>;
}

/// A queue, and whether it will announce its next entry.
#[derive(Debug)]
pub struct ArmedQueue<Q> {
    queue: Q,
    /// The queue was armed, and the event of that arming was not taken yet.
    is_armed: bool,
}

impl<Q: ArmableQueue> ArmedQueue<Q> {
    /// Wraps a queue that is not armed yet.
    pub fn new(queue: Q) -> Self {
        Self {
            queue,
            is_armed: false,
        }
    }

    /// Returns the queue below.
    pub fn queue(&self) -> &Q {
        &self.queue
    }

    /// Returns the queue, to change it. Polling and arming it are this type's.
    pub fn queue_mut(&mut self) -> &mut Q {
        &mut self.queue
    }

    /// Takes the entries that are there, as far as they fit. Returns how many.
    ///
    /// # Errors
    /// The error of the queue.
    #[inline]
    pub fn poll(&mut self, into: &mut [Q::Entry]) -> Result<usize, Q::Error> {
        self.queue.poll(into)
    }

    /// Asks for an event, unless one is on its way. Poll again before sleeping (rule 2).
    ///
    /// # Errors
    /// The error of the queue. Nothing will wake a sleeper then.
    pub fn arm(&mut self) -> Result<(), Q::Error> {
        if !self.is_armed {
            self.queue.arm()?;
            self.is_armed = true;
        }
        Ok(())
    }

    /// Arms the queue and polls again. If this returns 0, no entry is there, and the descriptor
    /// becomes readable as soon as one comes.
    ///
    /// # Errors
    /// The error of the queue. Nothing will wake a sleeper then.
    ///
    /// # Panics
    /// If `into` has no room, because an empty result would then mean nothing.
    #[must_use = "who sleeps although something was found sleeps for ever"]
    pub fn prepare_sleep(&mut self, into: &mut [Q::Entry]) -> Result<usize, Q::Error> {
        assert!(!into.is_empty(), "room for what the second poll finds");
        self.arm()?;
        self.queue.poll(into)
    }

    /// Takes the events after a wake-up, before polling (rule 3). Returns how many, which may be 0.
    ///
    /// # Errors
    /// The error of the queue.
    pub fn take_events(&mut self) -> Result<u32, Q::Error> {
        let taken = self.queue.drain_events();
        // The error may have followed an event.
        if !matches!(taken, Ok(0)) {
            self.is_armed = false;
        }
        taken
    }

    /// Waits until there are entries and takes them, as far as they fit. Returns how many. `sleep`
    /// returns when the descriptor is readable, or without a reason. If it says that the time is
    /// up, the result may be 0.
    ///
    /// # Errors
    /// The errors of the queue, and those of `sleep`.
    ///
    /// # Panics
    /// If `into` has no room.
    pub fn wait(
        &mut self,
        into: &mut [Q::Entry],
        mut sleep: impl FnMut(&Q) -> Result<Slept, Q::Error>,
    ) -> Result<usize, Q::Error> {
        loop {
            let mut found = self.poll(into)?;
            if found == 0 {
                found = self.prepare_sleep(into)?;
            }
            if found > 0 {
                return Ok(found);
            }
            let slept = sleep(&self.queue)?;
            self.take_events()?;
            if slept == Slept::TimeIsUp {
                return self.poll(into);
            }
        }
    }
}

/// The end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slept {
    /// An entry may be there.
    Woken,
    /// The caller's time is over.
    TimeIsUp,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A queue that is its own device and descriptor.
    #[derive(Debug, Default)]
    struct Steps {
        entries: Vec<u32>,
        events: u32,
        armings: u32,
        refuses: bool,
    }

    impl ArmableQueue for Steps {
        type Entry = u32;
        type Error = &'static str;

        fn poll(&mut self, into: &mut [u32]) -> Result<usize, &'static str> {
            let count = self.entries.len().min(into.len());
            for (place, entry) in into.iter_mut().zip(self.entries.drain(..count)) {
                *place = entry;
            }
            Ok(count)
        }

        fn arm(&mut self) -> Result<(), &'static str> {
            self.armings += 1;
            if self.refuses { Err("refused") } else { Ok(()) }
        }

        fn drain_events(&mut self) -> Result<u32, &'static str> {
            Ok(std::mem::take(&mut self.events))
        }
    }

    #[test]
    fn it_is_armed_once_for_each_event() {
        let mut armed = ArmedQueue::new(Steps::default());
        let mut room = [0; 2];
        assert_eq!(armed.prepare_sleep(&mut room), Ok(0));
        assert_eq!(armed.take_events(), Ok(0), "woken for another reason");
        assert_eq!(armed.prepare_sleep(&mut room), Ok(0));
        assert_eq!(armed.queue().armings, 1);

        armed.queue.events = 1;
        armed.queue.entries = vec![7, 8, 9];
        assert_eq!(armed.take_events(), Ok(1));
        assert_eq!((armed.poll(&mut room), room), (Ok(2), [7, 8]));
        assert_eq!((armed.prepare_sleep(&mut room), room[0]), (Ok(1), 9));
        assert_eq!(armed.queue().armings, 2);
    }

    #[test]
    fn a_queue_that_cannot_be_armed_is_not_slept_on() {
        let mut armed = ArmedQueue::new(Steps::default());
        armed.queue.refuses = true;
        let slept = |_: &Steps| -> Result<Slept, &'static str> { panic!("it slept") };
        assert_eq!(armed.wait(&mut [0], slept), Err("refused"));
        armed.queue.refuses = false;
        assert_eq!(
            armed.prepare_sleep(&mut [0]),
            Ok(0),
            "and is armed the next time"
        );
        assert_eq!(armed.queue().armings, 2);
    }

    #[test]
    fn waiting_ends_with_an_entry_or_with_the_time() {
        let mut armed = ArmedQueue::new(Steps::default());
        let mut sleeps = 0;
        let found = armed.wait(&mut [0], |_| {
            sleeps += 1;
            Ok(if sleeps < 3 {
                Slept::Woken
            } else {
                Slept::TimeIsUp
            })
        });
        assert_eq!((found, sleeps), (Ok(0), 3));
        armed.queue.entries = vec![5];
        let mut room = [0];
        let found = armed.wait(&mut room, |_| Ok(Slept::TimeIsUp));
        assert_eq!((found, room), (Ok(1), [5]));
    }

    #[test]
    #[should_panic(expected = "room for what the second poll finds")]
    fn no_room_is_no_look() {
        let _ = ArmedQueue::new(Steps::default()).prepare_sleep(&mut []);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Condvar;

    use super::*;
    use crate::sync::{Arc, Mutex, thread};

    /// A device with one queue; its calls are atomic, as those of verbs are.
    #[derive(Default)]
    struct Device {
        state: Mutex<State>,
        readable: Condvar,
    }

    #[derive(Default)]
    struct State {
        entries: usize,
        armed: bool,
        events: u32,
        /// No further entries will come.
        ended: bool,
    }

    impl Device {
        fn put(&self) {
            let mut state = self.state.lock().unwrap();
            state.entries += 1;
            if std::mem::take(&mut state.armed) {
                state.events += 1;
                self.readable.notify_one();
            }
        }

        fn end(&self) {
            self.state.lock().unwrap().ended = true;
            self.readable.notify_one();
        }

        fn sleep(&self) {
            let mut state = self.state.lock().unwrap();
            while state.events == 0 && !state.ended {
                state = self.readable.wait(state).unwrap();
            }
            let is_readable = state.events > 0;
            drop(state);
            assert!(is_readable, "asleep for ever");
        }
    }

    impl ArmableQueue for Arc<Device> {
        type Entry = ();
        type Error = std::convert::Infallible;

        fn poll(&mut self, into: &mut [()]) -> Result<usize, Self::Error> {
            let mut state = self.state.lock().unwrap();
            let found = state.entries.min(into.len());
            state.entries -= found;
            Ok(found)
        }

        fn arm(&mut self) -> Result<(), Self::Error> {
            self.state.lock().unwrap().armed = true;
            Ok(())
        }

        fn drain_events(&mut self) -> Result<u32, Self::Error> {
            Ok(std::mem::take(&mut self.state.lock().unwrap().events))
        }
    }

    /// Mutants: second_poll_missing, drained_late.
    #[test]
    fn loom_polled_again_or_woken() {
        loom::model(|| {
            let device = Arc::new(Device::default());
            let poster = {
                let device = device.clone();
                thread::spawn(move || {
                    (0..ENTRIES).for_each(|_| device.put());
                    device.end();
                })
            };
            let mut armed = ArmedQueue::new(device);
            let mut found = 0;
            while found < ENTRIES {
                let slept = armed.wait(&mut [(); 2], |device| {
                    device.sleep();
                    Ok(Slept::Woken)
                });
                found += slept.unwrap();
            }
            poster.join().unwrap();
        });
    }

    const ENTRIES: usize = 2;
}
