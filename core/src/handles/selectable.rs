//! The ends that a [`Select`](crate::Select) can wait for.

use ibex_codec::Codec;
use ibex_transport::channel::Awaited;

use super::{Receiver, sender::UntilAcked};

/// An end that [`Select`](crate::Select) can wait for: a receiver (also of two versions), a fan-in,
/// the [acknowledgement of a message](crate::Sender::until_acked), or a quorum of a log.
pub trait Selectable: AwaitedSource {}

/// What a wait for an end registers at, and looks at. Crates above the core implement it for their
/// own ends.
pub trait AwaitedSource {
    /// Returns what the wait is for.
    fn awaited(&mut self) -> Awaited<'_>;
}

impl<T: ?Sized, C: Codec<T>> Selectable for Receiver<T, C> {}

impl<T: ?Sized, C: Codec<T>> AwaitedSource for Receiver<T, C> {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited::Event(&mut self.handle)
    }
}

impl Selectable for UntilAcked<'_> {}

impl AwaitedSource for UntilAcked<'_> {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited::Acknowledgement(self.handle, self.sequence)
    }
}
