//! The clock of engines.
#![forbid(unsafe_code)]

use std::{sync::LazyLock, time::Instant};

#[cfg(test)]
pub(crate) use stopped::{StoppedClock, now};

/// Returns the system's time.
#[cfg(not(test))]
#[inline(always)]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Returns the system's time at the first call, from which times in atomic words count.
pub(crate) fn start() -> Instant {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    *START
}

/// A clock that tests move, so that a busy machine cannot make an engine late.
#[cfg(test)]
mod stopped {
    use std::{
        cell::Cell,
        marker::PhantomData,
        time::{Duration, Instant},
    };

    thread_local! {
        /// The time of a thread that has stopped its clock.
        static STOPPED_AT: Cell<Option<Instant>> = const { Cell::new(None) };
    }

    /// Returns the time of this thread: the system's, unless a [`StoppedClock`] sets another.
    pub(crate) fn now() -> Instant {
        STOPPED_AT.get().unwrap_or_else(Instant::now)
    }

    /// Stops the clock of the thread that made it, until it is dropped.
    ///
    /// Engines that this thread turns use the stopped clock. Meanwhile no call that sleeps may have
    /// a time limit, because the limit is never reached.
    #[derive(Debug)]
    pub(crate) struct StoppedClock {
        /// Makes the type `!Send`, which binds it to its thread.
        _thread: PhantomData<*const ()>,
    }

    impl StoppedClock {
        /// Stops the clock of this thread at the present time.
        pub(crate) fn stop() -> Self {
            // The start is set first, so that the stopped time is never before it.
            super::start();
            let before = STOPPED_AT.replace(Some(Instant::now()));
            assert_eq!(before, None, "the clock of this thread stands already");
            let _thread = PhantomData;
            Self { _thread }
        }

        /// Moves the clock forward by `time`.
        pub(crate) fn advance(&self, time: Duration) {
            STOPPED_AT.set(Some(now() + time));
        }
    }

    impl Drop for StoppedClock {
        fn drop(&mut self) {
            STOPPED_AT.set(None);
        }
    }

    #[test]
    fn a_stopped_clock_goes_on_where_it_is_moved_and_with_its_end() {
        let before = Instant::now();
        let clock = StoppedClock::stop();
        let stopped = now();
        assert!(stopped >= before && now() == stopped);
        clock.advance(Duration::from_secs(3600));
        assert_eq!(now(), stopped + Duration::from_secs(3600));
        let elsewhere = std::thread::spawn(now).join().unwrap();
        assert!(elsewhere < now(), "another thread has its own");
        drop(clock);
        assert!(now() < stopped + Duration::from_secs(3600));
    }
}
