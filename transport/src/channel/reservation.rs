//! Room for one payload, built in place and then published.

use std::mem::{ManuallyDrop, MaybeUninit};

use ibex_base::fork;
use ibex_ring::parking::Patience;

use super::send_handle::{Abort, Reserved, SendHandle};
use crate::session::ChannelError;

/// Room for one payload, to be built in place and then published.
///
/// Dropping a reservation gives the room back and delays nothing. Leaking it ends the channel.
///
/// It is small, so that it travels in registers. A value that is stored in words and loaded in
/// larger pieces defeats store forwarding: the load waits for every earlier store, including the
/// payload's, and delays the record's header.
#[derive(Debug)]
pub struct RawReservation<'a> {
    pub(super) handle: &'a mut SendHandle,
    pub(super) length: usize,
}

impl RawReservation<'_> {
    /// Returns the number of reserved bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "it is asked for how many")]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Encodes a message and publishes it, as [`SendHandle::send`] does without waiting. A message
    /// longer than the reservation may find no room.
    pub fn send(
        self,
        size: Option<usize>,
        encode: impl FnMut(&mut [MaybeUninit<u8>]) -> Result<usize, Abort>,
    ) -> Result<u64, ChannelError> {
        if fork::is_child() {
            return Err(self.handle.end.used_after_fork());
        }
        let mut this = ManuallyDrop::new(self);
        // This happens before the encoder runs, which may panic.
        let mut entered = this.handle.take_reserved_entry();
        if let Some(producer) = entered.producer() {
            producer.reserved_large = None;
        }
        entered.send(size, Patience::None, encode)
    }

    /// Returns the payload's bytes. Until they are written, they hold bytes of earlier messages.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let producer = self.handle.peek_reserved_producer();
        producer.map_or(&[], |producer| producer.reserved(self.length))
    }

    /// Returns the reserved bytes, to be written.
    #[inline(always)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let length = self.length;
        match self.handle.reserved_producer() {
            Some(producer) => producer.reserved_mut(length),
            None => &mut [],
        }
    }

    /// Publishes the payload. If the channel has ended since, nothing is published.
    #[inline(always)]
    pub fn publish(self) -> Result<u64, ChannelError> {
        if fork::is_child() {
            return Err(self.handle.end.used_after_fork());
        }
        if self.handle.end.state.is_over() {
            return Err(self.handle.end.error());
        }
        let mut this = ManuallyDrop::new(self);
        let length = this.length;
        let mut entered = this.handle.reserved_entry();
        let sequence = entered.publish_reserved(length);
        drop(entered); // Leaves as `enter` came in.
        this.handle.reserved = Reserved::No;
        Ok(sequence)
    }
}

impl Drop for RawReservation<'_> {
    #[inline]
    fn drop(&mut self) {
        if fork::is_child() {
            return;
        }
        // Gives the right back in the way in which `enter` took it.
        let mut entered = self.handle.reserved_entry();
        if let Some(producer) = entered.producer() {
            producer.reserved_large = None;
        }
        drop(entered);
        self.handle.reserved = Reserved::No;
    }
}
