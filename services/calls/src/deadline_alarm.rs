//! The time at which the next waiting call is woken because its deadline has passed.

#![forbid(unsafe_code)]

use std::{task::Waker, time::Instant};

/// The time of the next check of the deadlines of waiting calls, as far as one is arranged.
#[derive(Debug, Default)]
pub(super) struct DeadlineAlarm(Option<Instant>);

impl DeadlineAlarm {
    /// Returns whether a check must be arranged for a call's deadline, because the present one is
    /// later.
    pub(super) fn wants(&mut self, deadline: Instant) -> bool {
        let is_sooner = self.0.is_none_or(|arranged| deadline < arranged);
        if is_sooner {
            self.0 = Some(deadline);
        }
        is_sooner
    }

    /// Takes the wakers of the calls whose time is over, and returns when to check again. Each call
    /// comes with its deadline.
    pub(super) fn expire<'a>(
        &mut self,
        now: Instant,
        calls: impl Iterator<Item = (&'a mut Option<Waker>, Option<Instant>)>,
    ) -> (Vec<Waker>, Option<Instant>) {
        let mut late = Vec::new();
        if self.0.is_none_or(|arranged| arranged > now) {
            return (late, None);
        }
        self.0 = None;
        for (waker, deadline) in calls.filter(|(waker, _)| waker.is_some()) {
            match deadline {
                Some(deadline) if deadline <= now => late.extend(waker.take()),
                Some(deadline) => {
                    self.wants(deadline);
                }
                None => {}
            }
        }
        (late, self.0)
    }
}
