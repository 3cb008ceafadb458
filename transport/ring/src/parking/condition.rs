//! A condition that a thread waits for, as the thread and the engine see it.

/// An event that a thread can wait for.
pub trait Condition {
    /// The result of the condition when it has come true.
    type Output;

    /// Looks whether the event has happened. Cheap: called again and again while spinning.
    fn look(&mut self) -> Option<Self::Output>;

    /// Returns whether a look may succeed, judging by the cheapest sign. A look follows now and
    /// then in any case.
    fn glance(&mut self) -> bool {
        true
    }

    /// The first looks have found nothing. News that costs no frame is told now, since the other
    /// side may be waiting for it.
    fn keep_nothing_back(&mut self) {}

    /// Tells the other side what the caller waits for, so that the other side does not hold it
    /// back. Called when looking has not helped for a while, and again from time to time.
    fn ask(&mut self) {}

    /// The caller is about to sleep: arms what must wake it. A look follows.
    fn arm(&mut self) {}

    /// The caller no longer waits, or pauses its wait.
    fn disarm(&mut self) {}
}

impl<T, F: FnMut() -> Option<T>> Condition for F {
    type Output = T;

    fn look(&mut self) -> Option<T> {
        self()
    }
}
