//! Times at which tasks are woken that have no session, and so no engine's timer, to wait with.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    task::Waker,
    time::Instant,
};

use ibex_base::sync::lock;

/// The alarms of the tasks that wait for kept peers. The keeper's thread calls their wakers.
#[derive(Default)]
pub(super) struct TaskAlarms(Mutex<SetAlarms>);

#[derive(Default)]
struct SetAlarms {
    wakers: BTreeMap<AlarmKey, Waker>,
    serial: u64,
    is_over: bool,
}

/// An alarm that is set: its time, and a number of its own.
pub(super) type AlarmKey = (Instant, u64);

impl TaskAlarms {
    /// Has `waker` called at `at`, and no longer at the time of the alarm `held`. Returns whether
    /// this alarm is the first, so that the keeper has to be told. After [`end`](Self::end) the
    /// waker is called at once.
    pub(super) fn set(&self, held: &mut Option<AlarmKey>, at: Instant, waker: &Waker) -> bool {
        let mut alarms = self.lock();
        if alarms.is_over {
            drop(alarms);
            waker.wake_by_ref();
            return false;
        }
        alarms.serial += 1;
        let key = (at, alarms.serial);
        // A waker may be a task's last owner, and is dropped outside of the lock.
        let _before = held
            .replace(key)
            .and_then(|held| alarms.wakers.remove(&held));
        alarms.wakers.insert(key, waker.clone());
        let is_first = alarms.wakers.keys().next() == Some(&key);
        drop(alarms);
        is_first
    }

    /// Takes an alarm back.
    pub(super) fn leave(&self, held: &mut Option<AlarmKey>) {
        if let Some(key) = held.take() {
            let _waker = self.lock().wakers.remove(&key);
        }
    }

    /// Returns the time of the first alarm.
    pub(super) fn next(&self) -> Option<Instant> {
        self.lock().wakers.keys().next().map(|(at, _)| *at)
    }

    /// Calls the wakers whose time has come.
    pub(super) fn sound(&self, now: Instant) {
        let mut alarms = self.lock();
        let later = alarms.wakers.split_off(&(now, u64::MAX));
        let due = std::mem::replace(&mut alarms.wakers, later);
        drop(alarms);
        due.into_values().for_each(Waker::wake);
    }

    /// Calls all wakers, because no alarm sounds any more.
    pub(super) fn end(&self) {
        let mut alarms = self.lock();
        alarms.is_over = true;
        let all = std::mem::take(&mut alarms.wakers);
        drop(alarms);
        all.into_values().for_each(Waker::wake);
    }

    fn lock(&self) -> MutexGuard<'_, SetAlarms> {
        lock(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Arc,
            atomic::{AtomicU32, Ordering},
        },
        task::Wake,
        time::Duration,
    };

    use super::*;

    #[derive(Default)]
    struct Count(AtomicU32);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn alarms_sound_once_in_time_unless_they_are_taken_back() {
        let (alarms, now) = (TaskAlarms::default(), Instant::now());
        let count = Arc::new(Count::default());
        let waker = Waker::from(count.clone());
        let sounded = || count.0.load(Ordering::Relaxed);
        let at = |seconds| now + Duration::from_secs(seconds);
        let [mut first, mut second, mut third] = [None; 3];
        assert!(alarms.set(&mut second, at(2), &waker));
        assert!(!alarms.set(&mut third, at(3), &waker));
        assert!(alarms.set(&mut first, at(1), &waker));
        assert_eq!(alarms.next(), Some(at(1)));
        alarms.leave(&mut first);
        assert!(
            !alarms.set(&mut second, at(4), &waker),
            "the third is sooner"
        );
        alarms.sound(at(2));
        assert_eq!((sounded(), alarms.next()), (0, Some(at(3))));
        alarms.sound(at(3));
        assert_eq!((sounded(), alarms.next()), (1, Some(at(4))));
        alarms.end();
        assert_eq!((sounded(), alarms.next()), (2, None));
        assert!(!alarms.set(&mut first, at(9), &waker));
        assert_eq!(sounded(), 3, "no alarm sounds later");
    }
}
