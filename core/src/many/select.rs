//! Waiting for the first of several receivers, fan-ins and acknowledgements.

use std::time::Duration;

use ibex_codec::Codec;
use ibex_ring::parking::Patience;
use ibex_transport::channel::{Awaited, Several};

use crate::{FanIn, Selectable, VersionedReceiver, handles::selectable::AwaitedSource};

/// Waits for the first of several receivers, fan-ins and acknowledgements.
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
///
/// [`ready`](Self::ready) returns the index of an end that has something. The ends may have different
/// message types and fabrics:
///
/// | end | has something when | then call |
/// |---|---|---|
/// | [`Receiver`](crate::Receiver) | a message, the orderly end or an error is there | [`try_recv`](crate::Receiver::try_recv) |
/// | [`FanIn`] | an event of any peer is there | [`try_next`](FanIn::try_next) |
/// | [`Sender::until_acked`](crate::Sender::until_acked) | the message is acknowledged, or never will be | [`wait_acked`](crate::Sender::wait_acked), which returns at once |
/// | `LogGroup::until_acked` | a quorum has the log up to a position, or the group has more to do | `try_acked` |
///
/// Ends that always have something take turns, so that none is starved.
///
/// A waiting call polls nothing and needs no other thread: a message, an acknowledgement, an end or
/// [`Node::close`](crate::Node::close) wakes it. Under [`Driver::Caller`](crate::Driver::Caller), one
/// call in 64 that finds something at once also runs a turn, so that sessions move even then.
///
/// Tasks use the `select!` of their runtime, over [`recv_async`](crate::Receiver::recv_async).
///
/// # Errors
///
/// There are none here. The call that takes what is there returns the end's error.
#[derive(Debug, Default)]
pub struct Select {
    several: Several,
}

impl<T: ?Sized, C: Codec<T>> Selectable for FanIn<T, C> {}

impl<T: ?Sized, C: Codec<T>> AwaitedSource for FanIn<T, C> {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited::Event(&mut self.gathered)
    }
}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> Selectable for VersionedReceiver<N, O, C> {}

impl<N: ?Sized, O: ?Sized, C: Codec<N> + Codec<O>> AwaitedSource for VersionedReceiver<N, O, C> {
    fn awaited(&mut self) -> Awaited<'_> {
        Awaited::Event(&mut self.handle)
    }
}

impl Select {
    /// Makes a `Select` that begins its round with the first end.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits until one of `ends` has something, and returns its index. A receiver that has ended, a
    /// fan-in whose node was closed, and a message that is acknowledged have something for ever, so
    /// leave them out of the next call.
    ///
    /// A receiver whose peer has not opened its end is waited for without `open_timeout`. After
    /// that time [an event](crate::Event::NotOpened) and the log name the channel, and the names
    /// that the peer has opened instead.
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

    /// Like [`ready`](Self::ready), for up to `timeout`; `None` if nothing came.
    ///
    /// # Panics
    ///
    /// The panics of [`ready`](Self::ready).
    #[track_caller]
    pub fn ready_timeout(
        &mut self,
        ends: &mut [&mut dyn Selectable],
        timeout: Duration,
    ) -> Option<usize> {
        self.wait(ends, Patience::at_most(timeout))
    }

    /// Like [`ready`](Self::ready), without waiting. Under
    /// [`Driver::Caller`](crate::Driver::Caller) it runs a turn when no end has something. The call
    /// asks the peer once for an acknowledgement that it looks for, so a program that calls it
    /// again and again is notified.
    ///
    /// # Panics
    ///
    /// The panics of [`ready`](Self::ready).
    #[track_caller]
    pub fn try_ready(&mut self, ends: &mut [&mut dyn Selectable]) -> Option<usize> {
        self.wait(ends, Patience::None)
    }

    #[track_caller]
    fn wait(&mut self, ends: &mut [&mut dyn Selectable], patience: Patience) -> Option<usize> {
        let awaited = self.several.ready(ends, |end| end.awaited(), patience);
        awaited.ok()
    }
}
