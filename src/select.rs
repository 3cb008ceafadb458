//! Waiting for the first of several receivers, fan-ins and acknowledgements.

use std::time::Duration;

use ibex_codec::Codec;
use ibex_ring::parking::Patience;
use ibex_transport::channel::{Awaited, Ends, Several};

use crate::{FanIn, Receiver, UntilAcked, VersionedReceiver};

/// Waits for the first of several receivers, fan-ins and acknowledgements, of whatever types
/// and fabrics.
///
/// It says which one has something. A receiver's [`try_recv`](Receiver::try_recv) returns it
/// without waiting: a message, the orderly end, or an error. So does a fan-in's
/// [`try_next`](FanIn::try_next). With [`until_acked`](crate::Sender::until_acked) it is that a message is acknowledged, or never
/// will be, which [`wait_acked`](crate::Sender::wait_acked) then tells at once. Those that have
/// something all the time get their turns one after the other, so none is starved.
///
/// While it waits nothing is polled and no thread stands between: a message, an
/// acknowledgement, an end or [`Node::close`](crate::Node::close) wakes it, at whichever of
/// them. Where callers turn the engine, one call in 64 that finds something at once runs a turn
/// as well, so that what comes by turns has its turns beside what does not. Tasks have their own
/// `select!`, over [`recv_async`](Receiver::recv_async).
///
/// ```
/// use ibex::{Raw, Receiver, RecvError, RecvErrorKind, Select};
///
/// /// Handles commands and data as they come, until the commands end.
/// fn serve(
///     commands: &mut Receiver<[u8], Raw>,
///     data: &mut Receiver<[u8], Raw>,
/// ) -> Result<(), RecvError> {
///     let mut select = Select::new();
///     loop {
///         match select.ready(&mut [commands, data]) {
///             0 => match commands.try_recv() {
///                 Ok(command) => println!("command of {} bytes", command.len()),
///                 Err(error) if error.kind() == RecvErrorKind::Ended => return Ok(()),
///                 Err(error) => return Err(error),
///             },
///             _ => println!("{} bytes", data.try_recv()?.len()),
///         }
///     }
/// }
/// ```
#[derive(Debug, Default)]
pub struct Select {
    several: Several,
}

/// What [`Select`] can wait for: receivers, those of two versions and of all peers included, and
/// that a message [is acknowledged](crate::Sender::until_acked).
pub trait Selectable: sealed::Sealed {}

impl<T: ?Sized, C: Codec<T>> Selectable for Receiver<T, C> {}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Selectable for VersionedReceiver<N, O, C> {}

impl<T: ?Sized, C: Codec<T>> Selectable for FanIn<T, C> {}

impl Selectable for UntilAcked<'_> {}

mod sealed {
    use super::{Awaited, Codec, FanIn, Receiver, UntilAcked, VersionedReceiver};

    pub trait Sealed {
        fn awaited(&mut self) -> Awaited<'_>;
    }

    impl Sealed for UntilAcked<'_> {
        fn awaited(&mut self) -> Awaited<'_> {
            Awaited::Acknowledgement(self.handle, self.sequence)
        }
    }

    impl<T: ?Sized, C: Codec<T>> Sealed for Receiver<T, C> {
        fn awaited(&mut self) -> Awaited<'_> {
            Awaited::Message(&mut self.handle)
        }
    }

    impl<T: ?Sized, C: Codec<T>> Sealed for FanIn<T, C> {
        fn awaited(&mut self) -> Awaited<'_> {
            Awaited::OfAnyPeer(&mut self.gathered)
        }
    }

    impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Sealed for VersionedReceiver<N, O, C> {
        fn awaited(&mut self) -> Awaited<'_> {
            Awaited::Message(&mut self.handle)
        }
    }
}

impl Select {
    /// Begins its round with the first of them.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until one of `ends` has something, and gives its index. A receiver that has ended,
    /// a fan-in whose node was closed and a message that is acknowledged have something for
    /// ever: leave them out of the next call.
    ///
    /// A receiver whose peer has not opened its end is waited for without `open_timeout`; after
    /// as long [an event](crate::Event::NotOpened) and the log name the channel, and what the
    /// peer has opened instead.
    ///
    /// # Panics
    ///
    /// If there are no ends, or, under [`Driver::Caller`](crate::Driver::Caller), of more
    /// than one node, since a call turns one engine.
    #[track_caller]
    pub fn ready(&mut self, ends: &mut [&mut dyn Selectable]) -> usize {
        self.wait(ends, Patience::FOREVER)
            .expect("without a deadline no time is up")
    }

    /// The same, waiting for up to `timeout`; `None` if nothing came.
    ///
    /// # Panics
    ///
    /// As [`ready`](Self::ready).
    #[track_caller]
    pub fn ready_timeout(
        &mut self,
        ends: &mut [&mut dyn Selectable],
        timeout: Duration,
    ) -> Option<usize> {
        self.wait(ends, Patience::at_most(timeout))
    }

    /// The same without waiting. Under [`Driver::Caller`](crate::Driver::Caller) it runs a turn
    /// when nothing is there. The peer is asked once for an acknowledgement that is looked for,
    /// so a program that calls this again and again hears of it.
    ///
    /// # Panics
    ///
    /// As [`ready`](Self::ready).
    #[track_caller]
    pub fn try_ready(&mut self, ends: &mut [&mut dyn Selectable]) -> Option<usize> {
        self.wait(ends, Patience::None)
    }

    #[track_caller]
    fn wait(&mut self, ends: &mut [&mut dyn Selectable], patience: Patience) -> Option<usize> {
        self.several.ready(&mut Of(ends), patience).ok()
    }
}

struct Of<'a, 'r>(&'a mut [&'r mut dyn Selectable]);

impl Ends for Of<'_, '_> {
    fn count(&self) -> usize {
        self.0.len()
    }

    fn end(&mut self, number: usize) -> Awaited<'_> {
        self.0[number].awaited()
    }
}
