//! Room that is reserved for one message: lent, to build it in place, or promised by a permit.

use std::{
    marker::PhantomData,
    ops::{Deref, DerefMut},
    time::Duration,
};

use ibex_codec::{Codec, Raw};
use ibex_ring::parking::Patience;
use ibex_transport::channel::RawReservation;

use crate::{SendError, Sender, handles::message::DefaultCodec};

/// The loan of room for one message of bytes, to be built in place. See [`Sender::loan`].
///
/// Until they are written, the bytes hold those of earlier messages.
#[must_use = "dropping a loan sends nothing"]
pub struct Loan<'a> {
    raw: RawReservation<'a>,
}

impl<'a> Loan<'a> {
    #[inline(always)]
    pub(crate) fn new(raw: RawReservation<'a>) -> Self {
        Self { raw }
    }

    /// Publishes the message.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Disconnected`](crate::SendErrorKind::Disconnected) if the channel has ended
    /// since the room was lent; nothing was sent then.
    #[inline(always)]
    pub fn send(self) -> Result<u64, SendError> {
        self.raw.publish().map_err(SendError::from)
    }
}

ibex_base::debug_fields!([] Loan<'_>: |loan| bytes = loan.len());

impl Deref for Loan<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        self.raw.bytes()
    }
}

impl DerefMut for Loan<'_> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [u8] {
        self.raw.bytes_mut()
    }
}

impl Sender<[u8], Raw> {
    /// Lends room for a message of `length` bytes, to be built in place. Waits as
    /// [`send`](Self::send) does.
    ///
    /// Dropping the loan gives the room back. While it lives, clones of this
    /// sender wait. Leaking it with `mem::forget` closes the channel at this handle's
    /// next use or drop, with [`EndCause::SlotLeaked`](crate::EndCause::SlotLeaked).
    ///
    /// ```
    /// use std::io::{Read, Result};
    /// use ibex::{Raw, Sender};
    ///
    /// /// Reads from a file straight into the memory that is sent from.
    /// fn send_page(bytes: &mut Sender<[u8], Raw>, file: &mut impl Read) -> Result<u64> {
    ///     let mut page = bytes.loan(4096)?;
    ///     file.read_exact(&mut page)?;    // a failure here drops it: nothing is sent
    ///     Ok(page.send()?)
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    #[inline(always)]
    pub fn loan(&mut self, length: usize) -> Result<Loan<'_>, SendError> {
        self.loan_with(length, Patience::FOREVER)
    }

    /// Like [`loan`](Self::loan), if there is room now.
    ///
    /// # Errors
    ///
    /// The errors of [`try_send`](Self::try_send).
    #[inline]
    pub fn try_loan(&mut self, length: usize) -> Result<Loan<'_>, SendError> {
        self.loan_with(length, Patience::None)
    }

    /// Like [`loan`](Self::loan), waiting for room for up to `timeout`.
    pub fn loan_timeout(
        &mut self,
        length: usize,
        timeout: Duration,
    ) -> Result<Loan<'_>, SendError> {
        self.loan_with(length, Patience::at_most(timeout))
    }

    #[inline(always)]
    fn loan_with(&mut self, length: usize, patience: Patience) -> Result<Loan<'_>, SendError> {
        Ok(Loan::new(self.handle.reserve(length, patience)?))
    }
}

/// The right to send one message without waiting. See [`Sender::poll_reserve`].
///
/// A permit holds room in the ring for a message whose encoding takes up to [`bytes`](Self::bytes),
/// and its place in the window. Clones of the sender wait while it is held, and cannot take the
/// room away. The length of an encoding is known only afterwards, so `bytes` is the length of the
/// last message. A longer message is sent if it finds room.
///
/// Dropping the permit gives the room back and sends nothing. Leaking it with `mem::forget` closes
/// the channel, as with a [`Loan`].
#[must_use = "dropping a permit sends nothing"]
pub struct Permit<'a, T: ?Sized, C: Codec<T> = DefaultCodec> {
    raw: RawReservation<'a>,
    _types: PhantomData<fn(&T) -> C>,
}

impl<'a, T: ?Sized, C: Codec<T>> Permit<'a, T, C> {
    pub(crate) fn new(raw: RawReservation<'a>) -> Self {
        Self {
            raw,
            _types: PhantomData,
        }
    }

    /// Returns the encoded length up to which a message is certain to be sent.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.raw.len()
    }

    /// Sends a message.
    ///
    /// # Errors
    ///
    /// [`SendErrorKind::Full`](crate::SendErrorKind::Full) if the message is longer than
    /// [`bytes`](Self::bytes) and there is no room for it; nothing was sent then. Otherwise the
    /// errors of [`send`](Sender::send).
    pub fn send(self, value: &T) -> Result<u64, SendError> {
        let encode = Sender::<T, C>::encoder(value);
        let sent = self.raw.send(C::size(value), encode);
        sent.map_err(SendError::from)
    }
}

ibex_base::debug_fields! {
    [T: ?Sized, C: Codec<T>] Permit<'_, T, C>: |permit|
        bytes = permit.bytes()
}
