//! Room for one payload, built in place and then published.

use std::sync::atomic::Ordering;

use super::send_handle::{Entered, Place, SendHandle};
use crate::engine::record::RecordKind;

/// Room for one payload, to be built in place and then published.
///
/// Dropping it gives the room back and stalls nobody. Leaking it ends the channel.
#[derive(Debug)]
pub struct RawReservation<'a> {
    pub(super) handle: &'a mut SendHandle,
    /// `None` once published.
    pub(super) place: Option<Place>,
    pub(super) length: usize,
}

impl RawReservation<'_> {
    /// The payload's bytes. What stands there before is left over from earlier messages.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        let entered = self.handle.reserved_entry();
        let Some(producer) = entered.producer() else {
            return &[];
        };
        std::mem::forget(entered);
        let slot = match &self.place {
            Some(Place::Ring) => producer.ring.slot(),
            Some(Place::Large(place)) => producer.large_bytes(place),
            None => return &[],
        };
        // SAFETY: as in `bytes_mut`.
        unsafe { &*(std::ptr::from_ref(&slot[..self.length]) as *const [u8]) }
    }

    /// The same, to be written.
    #[inline]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let entered = self.handle.reserved_entry();
        let Some(producer) = entered.producer() else {
            return &mut [];
        };
        std::mem::forget(entered);
        let slot = match &self.place {
            Some(Place::Ring) => producer.ring.slot(),
            Some(Place::Large(place)) => producer.large_bytes(place),
            None => return &mut [],
        };
        let slot = &mut slot[..self.length];
        // SAFETY: ring and message memory comes from the kernel, zeroed, and only ever
        // gets bytes written, so it is initialised; `u8` and `MaybeUninit<u8>` have the
        // same layout.
        unsafe { &mut *(std::ptr::from_mut(slot) as *mut [u8]) }
    }

    /// Publishes the payload.
    #[inline]
    pub fn publish(mut self) -> u64 {
        let entered = self.handle.reserved_entry();
        let sequence = match (entered.producer(), self.place.take()) {
            (Some(producer), Some(Place::Ring)) => {
                entered.publish(producer, RecordKind::Data, self.length)
            }
            (Some(producer), Some(Place::Large(place))) => {
                entered.publish_large(producer, place, self.length)
            }
            _ => unreachable!("a reservation has a producer and is published once"),
        };
        std::mem::forget(entered);
        sequence
    }
}

impl Drop for RawReservation<'_> {
    fn drop(&mut self) {
        self.handle.reserved = false;
        // Leaves as `enter` came in.
        drop(self.handle.reserved_entry());
    }
}

impl SendHandle {
    /// What `enter` gave when the reservation was made and nobody took back since.
    fn reserved_entry(&self) -> Entered<'_> {
        // A clone made meanwhile would need `&self` of a handle that the reservation
        // borrows, so the flag has not changed for this handle's right.
        Entered {
            end: &self.end,
            cloned: self.end.is_cloned.load(Ordering::Relaxed),
        }
    }
}
