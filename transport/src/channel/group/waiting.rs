//! The task that waits for a group, which members and alarms wake by wakers of the group's own.
//!
//! Wakers of a task may change from one poll to the next, while an alarm that an engine keeps cannot
//! be taken back. So these stay the same, and wake whichever task waits when they are called.

use std::{
    mem,
    sync::{Arc, Mutex},
    task::{Wake, Waker},
    time::Instant,
};

use ibex_base::sync::lock;

use crate::clock;

/// The task that waits for a group, and the alarm that is set for it.
#[derive(Debug, Default)]
pub struct WaitingTask(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    waker: Option<Waker>,
    /// The time of the alarm that is set, if there is one.
    alarm: Option<Instant>,
    /// A member was lost beside the task's polls.
    has_lost: bool,
}

impl WaitingTask {
    /// Has `waker` woken by all events of the group from now on.
    pub(super) fn set(&self, waker: &Waker) {
        let before = {
            let mut state = lock(&self.0);
            state.has_lost = false;
            match &state.waker {
                Some(present) if present.will_wake(waker) => None,
                _ => state.waker.replace(waker.clone()),
            }
        };
        // The drop of a waker is foreign code.
        drop(before);
    }

    /// Drops the waker of a task that does not wait any more.
    pub(super) fn clear(&self) {
        let before = lock(&self.0).waker.take();
        drop(before);
    }

    /// Wakes the task, if one waits.
    fn wake_task(&self) {
        let waker = lock(&self.0).waker.take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Notes that a member was lost whose own changes may not reach the task.
    pub(super) fn note_lost(&self) {
        lock(&self.0).has_lost = true;
    }

    /// Wakes the task if a member was lost since it last began to wait. For callers that hold no
    /// lock.
    pub fn wake_if_lost(&self) {
        let has_lost = mem::take(&mut lock(&self.0).has_lost);
        if has_lost {
            self.wake_task();
        }
    }

    /// Returns whether an alarm must be set for `at`, because none is to come by then. One that is
    /// late is not relied on.
    pub(super) fn wants_alarm(&self, at: Instant) -> bool {
        let mut state = lock(&self.0);
        let wants = state
            .alarm
            .is_none_or(|set| at < set || set <= clock::now());
        if wants {
            state.alarm = Some(at);
        }
        wants
    }

    /// Notes that the alarm was called, or could not be set.
    pub(super) fn alarm_is_over(&self) {
        lock(&self.0).alarm = None;
    }
}

/// The waker that members call.
impl Wake for WaitingTask {
    fn wake(self: Arc<Self>) {
        self.wake_task();
    }
}

/// The waker of the alarm. It is also called if the session whose engine keeps the alarm ends
/// before; the task sets another then.
pub(super) struct AlarmWaker(pub(super) Arc<WaitingTask>);

impl Wake for AlarmWaker {
    fn wake(self: Arc<Self>) {
        self.0.alarm_is_over();
        self.0.wake_task();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicU32, Ordering},
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

    /// An alarm that was set for one waker wakes the one that waits when it is called.
    #[test]
    fn an_alarm_wakes_the_present_task_and_may_be_set_again() {
        let waiting = Arc::new(WaitingTask::default());
        let alarm = Waker::from(Arc::new(AlarmWaker(waiting.clone())));
        let tasks: [Arc<Count>; 2] = Default::default();
        let at = Instant::now() + Duration::from_secs(60);
        waiting.set(&tasks[0].clone().into());
        assert!(waiting.wants_alarm(at));
        waiting.set(&tasks[1].clone().into());
        assert_eq!(Arc::strong_count(&tasks[0]), 1, "its waker is dropped");
        assert!(!waiting.wants_alarm(at), "one alarm is enough");
        alarm.wake_by_ref();
        let woken = tasks.each_ref().map(|task| task.0.load(Ordering::Relaxed));
        assert_eq!(woken, [0, 1]);
        assert!(waiting.wants_alarm(at));
    }

    #[test]
    fn a_loss_beside_the_task_wakes_it_once() {
        let waiting = WaitingTask::default();
        let task = Arc::new(Count::default());
        waiting.set(&task.clone().into());
        waiting.wake_if_lost();
        waiting.note_lost();
        waiting.wake_if_lost();
        waiting.set(&task.clone().into());
        waiting.wake_if_lost();
        assert_eq!(task.0.load(Ordering::Relaxed), 1);
    }
}
