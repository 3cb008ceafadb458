//! Times at which tasks are woken that have no session, and so no engine's timer, to wait with.

use std::{
    collections::BTreeMap,
    mem,
    sync::{Mutex, MutexGuard},
    task::Waker,
    time::Instant,
};

use ibex_core::extend::{fork, lock, parking::Wakers};

/// The alarms of the tasks that wait for kept peers. The keeper's thread calls their wakers.
#[derive(Default)]
pub(super) struct TaskAlarms(Mutex<SetAlarms>);

#[derive(Default)]
struct SetAlarms {
    wakers: BTreeMap<AlarmKey, Waker>,
    serial: u64,
    /// The keeper looks at the alarms then, also if that alarm was taken back.
    next_check: Option<Instant>,
    is_over: bool,
}

/// An alarm that is set: its time, and a number of its own.
pub(super) type AlarmKey = (Instant, u64);

impl TaskAlarms {
    /// Has `waker` called at `at`, and no longer at the time of the alarm `held`. Returns whether
    /// this is sooner than the keeper's next check, so that it has to be notified. After
    /// [`end`](Self::end) the waker is not called any more.
    pub(super) fn set(&self, held: &mut Option<AlarmKey>, at: Instant, waker: &Waker) -> bool {
        if fork::is_child() {
            return false;
        }
        // A waker is foreign code, and may be a task's last owner. It is cloned and dropped outside
        // of the lock.
        let mut waker = waker.clone();
        let mut alarms = self.lock();
        if alarms.is_over {
            return false;
        }
        let same = held.filter(|(time, _)| *time == at);
        if let Some(place) = same.and_then(|key| alarms.wakers.get_mut(&key)) {
            mem::swap(place, &mut waker);
            return false;
        }
        alarms.serial += 1;
        let key = (at, alarms.serial);
        let before = held.replace(key).and_then(|key| alarms.wakers.remove(&key));
        alarms.wakers.insert(key, waker);
        let is_sooner = alarms.next_check.is_none_or(|check| at < check);
        if is_sooner {
            alarms.next_check = Some(at);
        }
        drop(alarms);
        drop(before);
        is_sooner
    }

    /// Takes an alarm back.
    pub(super) fn leave(&self, held: &mut Option<AlarmKey>) {
        if let Some(key) = held.take()
            && !fork::is_child()
        {
            let _waker = self.lock().wakers.remove(&key);
        }
    }

    /// Returns the time of the first alarm, at which the keeper looks next.
    pub(super) fn next(&self) -> Option<Instant> {
        let mut alarms = self.lock();
        alarms.next_check = alarms.wakers.keys().next().map(|(at, _)| *at);
        alarms.next_check
    }

    /// Calls the wakers whose time has come.
    pub(super) fn sound(&self, now: Instant) {
        let mut alarms = self.lock();
        let later = alarms.wakers.split_off(&(now, u64::MAX));
        let due = mem::replace(&mut alarms.wakers, later);
        drop(alarms);
        call(due);
    }

    /// Calls all wakers, because no alarm sounds any more.
    pub(super) fn end(&self) {
        let mut alarms = self.lock();
        alarms.is_over = true;
        let all = mem::take(&mut alarms.wakers);
        drop(alarms);
        call(all);
    }

    fn lock(&self) -> MutexGuard<'_, SetAlarms> {
        lock(&self.0)
    }
}

/// Calls wakers, also those behind one that panics.
fn call(due: BTreeMap<AlarmKey, Waker>) {
    let mut wakers = Wakers::new();
    wakers.extend(due.into_values());
    wakers.wake();
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
        assert_eq!((sounded(), first), (2, None), "no alarm sounds later");
    }

    #[test]
    fn the_keeper_is_told_of_no_alarm_behind_its_next_look() {
        let (alarms, now) = (TaskAlarms::default(), Instant::now());
        let later = now + Duration::from_secs(1);
        let mut held = None;
        assert!(alarms.set(&mut held, now, Waker::noop()));
        // Calls that are answered before their time set alarms and take them back.
        for _ in 0..3 {
            alarms.leave(&mut held);
            assert!(!alarms.set(&mut held, later, Waker::noop()));
        }
        alarms.sound(now);
        assert_eq!(alarms.next(), Some(later));
        alarms.leave(&mut held);
        assert_eq!(alarms.next(), None);
        assert!(alarms.set(&mut held, later, Waker::noop()));
    }

    #[test]
    fn the_keeper_is_told_of_no_alarm_that_is_set_again() {
        let (alarms, now) = (TaskAlarms::default(), Instant::now());
        let [before, after] = [(); 2].map(|()| Arc::new(Count::default()));
        let mut held = None;
        assert!(alarms.set(&mut held, now, &Waker::from(before.clone())));
        assert!(!alarms.set(&mut held, now, &Waker::from(after.clone())));
        alarms.sound(now);
        let sounded = [before, after].map(|count| count.0.load(Ordering::Relaxed));
        assert_eq!(sounded, [0, 1]);
    }

    #[test]
    fn a_waker_that_panics_keeps_no_other_from_being_called() {
        struct Panics;
        impl Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("planted: a waker panics");
            }
        }
        let (alarms, now) = (TaskAlarms::default(), Instant::now());
        let count = Arc::new(Count::default());
        let [mut first, mut second] = [None; 2];
        alarms.set(&mut first, now, &Waker::from(Arc::new(Panics)));
        alarms.set(&mut second, now, &Waker::from(count.clone()));
        alarms.sound(now);
        assert_eq!(count.0.load(Ordering::Relaxed), 1);
    }
}
