//! Sending batches.
#![forbid(unsafe_code)]

use std::{
    borrow::Borrow,
    future::Future,
    task::{Context, Poll, ready},
};

use ibex_codec::Codec;
use ibex_ring::parking::{self, Patience};

use crate::{SendError, Sender};

impl<T: ?Sized, C: Codec<T>> Sender<T, C> {
    /// Sends a batch: the values in order, each as a message of its own. Costs less than as many
    /// calls of [`send`](Self::send): up to 16 messages become visible at once, and a receiver that
    /// sleeps is woken once for them. Waits as `send` does, for room for each.
    ///
    /// Returns the place of the last message; without values, that of the message before.
    ///
    /// ```
    /// use ibex::{Pod, SendError, Sender};
    ///
    /// /// Sends the readings of one sweep, and returns the number of the last.
    /// fn sweep(to: &mut Sender<u64, Pod>, readings: &[u64]) -> Result<u64, SendError> {
    ///     to.send_all(readings)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`SendError`] of the first value that was not sent, as from [`send`](Self::send). Those before
    /// it were, and [`counts`](Self::counts) tells how many. A panic of a serializer comes through
    /// behind them.
    #[inline]
    pub fn send_all<V: Borrow<T>>(&mut self, values: &[V]) -> Result<u64, SendError> {
        self.send_from(values, &mut 0, Patience::FOREVER)
    }

    /// Sends the first values of a batch, as many as there is room for now. Returns their number.
    ///
    /// # Errors
    ///
    /// As [`try_send`](Self::try_send), if none was sent. An error behind values that were sent comes
    /// from the call with the rest.
    #[inline]
    pub fn try_send_all<V: Borrow<T>>(&mut self, values: &[V]) -> Result<usize, SendError> {
        let mut sent = 0;
        match self.send_from(values, &mut sent, Patience::None) {
            Err(error) if sent == 0 => Err(error),
            _ => Ok(sent),
        }
    }

    /// Sends values from index `sent` on, and counts them there.
    #[inline]
    fn send_from<V: Borrow<T>>(
        &mut self,
        values: &[V],
        sent: &mut usize,
        patience: Patience,
    ) -> Result<u64, SendError> {
        let size = |value: &V| C::size(value.borrow());
        let encode = |value: &V, slot: &mut [_]| Self::encoder(value.borrow())(slot);
        let last = self.handle.send_all((values, sent), patience, size, encode);
        last.map_err(SendError::from)
    }

    /// Sends a batch in a task, as [`send_all`](Self::send_all) does. Pending while the channel's
    /// window is full, or while the peer has not opened its end.
    ///
    /// If the future is dropped before it is ready, the first values may have been sent, and
    /// [`counts`](Self::counts) tells how many.
    ///
    /// # Errors
    ///
    /// The errors of [`send_all`](Self::send_all), except that the future waits for the peer to open
    /// its end without a time limit.
    pub fn send_all_async<'a, V: Borrow<T>>(
        &'a mut self,
        values: &'a [V],
    ) -> impl Future<Output = Result<u64, SendError>> {
        parking::future(
            (self, 0),
            move |(sender, sent), context| sender.poll_send_from(context, values, sent),
            |(sender, _)| _ = sender.handle.leave_room(),
        )
    }

    fn poll_send_from<V: Borrow<T>>(
        &mut self,
        context: &mut Context<'_>,
        values: &[V],
        sent: &mut usize,
    ) -> Poll<Result<u64, SendError>> {
        loop {
            match self.send_from(values, sent, Patience::None) {
                Err(error) if error.is_transient() => {}
                ended => return Poll::Ready(ended),
            }
            // Leaves a waker, unless there is room by now.
            let last = ready!(self.poll_send(context, values[*sent].borrow()))?;
            *sent += 1;
            if *sent == values.len() {
                return Poll::Ready(Ok(last));
            }
        }
    }
}
