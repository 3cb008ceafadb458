//! What a group puts into its members' places.

use std::{borrow::Borrow, marker::PhantomData, mem::MaybeUninit};

use ibex_codec::Codec;
use ibex_transport::channel::{Abort, GroupMessage};

use crate::{Sender, versions::fingerprint};

/// A message of the one type.
pub(super) struct Single<'a, T: ?Sized, C> {
    value: &'a T,
    _codec: PhantomData<fn() -> C>,
}

/// A message of the newer version, and of the older one for members that have that.
pub(super) struct Either<'a, N: ?Sized, O: ?Sized, C, F, B> {
    value: &'a N,
    downgrade: Option<F>,
    /// What came of that, once a member has the older version.
    older: Option<B>,
    newer: [u8; 16],
    _versions: PhantomData<fn(&O) -> C>,
}

impl<'a, T: ?Sized, C> Single<'a, T, C> {
    pub(super) fn new(value: &'a T) -> Self {
        Self {
            value,
            _codec: PhantomData,
        }
    }
}

impl<T: ?Sized, C: Codec<T>> GroupMessage for Single<'_, T, C> {
    const VERSIONS: usize = 1;

    fn version(&self, _: [u8; 16]) -> usize {
        0
    }

    #[inline]
    fn size(&mut self, _: usize) -> Option<usize> {
        C::size(self.value)
    }

    #[inline]
    fn encode(&mut self, _: usize, slot: &mut [MaybeUninit<u8>]) -> Result<usize, Abort> {
        Sender::<T, C>::encoder(self.value)(slot)
    }
}

impl<'a, N: ?Sized, O: ?Sized, C, F, B> Either<'a, N, O, C, F, B>
where
    C: Codec<N> + Codec<O>,
    F: FnOnce(&N) -> B,
    B: Borrow<O>,
{
    pub(super) fn new(value: &'a N, downgrade: F) -> Self {
        Self {
            value,
            downgrade: Some(downgrade),
            older: None,
            newer: fingerprint::<N, C>(),
            _versions: PhantomData,
        }
    }

    fn older(&mut self) -> &O {
        if let Some(downgrade) = self.downgrade.take() {
            self.older = Some(downgrade(self.value));
        }
        match &self.older {
            Some(older) => older.borrow(),
            None => panic!("the call that was to make the older version of the message panicked"),
        }
    }
}

impl<N: ?Sized, O: ?Sized, C, F, B> GroupMessage for Either<'_, N, O, C, F, B>
where
    C: Codec<N> + Codec<O>,
    F: FnOnce(&N) -> B,
    B: Borrow<O>,
{
    const VERSIONS: usize = 2;

    fn version(&self, settled: [u8; 16]) -> usize {
        match settled == self.newer {
            true => NEWER,
            false => OLDER,
        }
    }

    fn size(&mut self, version: usize) -> Option<usize> {
        match version {
            NEWER => <C as Codec<N>>::size(self.value),
            _ => <C as Codec<O>>::size(self.older()),
        }
    }

    fn encode(&mut self, version: usize, slot: &mut [MaybeUninit<u8>]) -> Result<usize, Abort> {
        match version {
            NEWER => Sender::<N, C>::encoder(self.value)(slot),
            _ => Sender::<O, C>::encoder(self.older())(slot),
        }
    }
}

const NEWER: usize = 0;
const OLDER: usize = 1;
