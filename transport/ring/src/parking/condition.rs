//! A condition that a thread waits for, as the thread and the engine see it.

/// An event that a thread can wait for.
pub trait Condition {
    /// The result of the condition when it has come true.
    type Output;

    /// Looks whether it is there. Cheap: called again and again while spinning.
    fn look(&mut self) -> Option<Self::Output>;

    /// Returns whether a look may succeed, as far as the cheapest of signs tells; a look comes now
    /// and then in any case.
    fn glance(&mut self) -> bool {
        true
    }

    /// The first looks have found nothing: what costs nobody a frame is told now, as the other
    /// side may be waiting for just that.
    fn keep_nothing_back(&mut self) {}

    /// Tells the other side what is waited for, so that it does not keep it back. Called
    /// when looking has not helped for a while, and again from time to time.
    fn ask(&mut self) {}

    /// The caller is about to sleep: arms what must wake it. A look follows.
    fn arm(&mut self) {}

    /// The caller does not wait any more, or not for now.
    fn disarm(&mut self) {}
}

impl<T, F: FnMut() -> Option<T>> Condition for F {
    type Output = T;

    fn look(&mut self) -> Option<T> {
        self()
    }
}
