//! Encoding of a group's messages into its members' rings.

use std::{marker::PhantomData, mem::MaybeUninit};

use ibex_codec::Codec;
use ibex_transport::channel::{Abort, GroupMessage};

use crate::Sender;

/// A value on its way into a group or to subscribers.
pub(crate) struct GroupValue<'a, T: ?Sized, C> {
    value: &'a T,
    _codec: PhantomData<fn() -> C>,
}

impl<'a, T: ?Sized, C> GroupValue<'a, T, C> {
    pub(crate) fn new(value: &'a T) -> Self {
        Self {
            value,
            _codec: PhantomData,
        }
    }
}

impl<T: ?Sized, C: Codec<T>> GroupMessage for GroupValue<'_, T, C> {
    #[inline]
    fn size(&mut self) -> Option<usize> {
        C::size(self.value)
    }

    #[inline]
    fn encode(&mut self, slot: &mut [MaybeUninit<u8>]) -> Result<usize, Abort> {
        Sender::<T, C>::encoder(self.value)(slot)
    }
}
