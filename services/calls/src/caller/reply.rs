//! A reply, read where it arrived.

use std::ops::Deref;

use ibex_core::{codec::Codec, extend::DefaultCodec};

use crate::frame::DecodedPayload;

/// A reply where it came in, checked. [`Caller::call`](crate::Caller::call) returns it.
///
/// A reply dereferences to the codec's view, as a [`Message`](ibex_core::Message) does, and may be
/// dropped on any thread.
///
/// While a reply is held, it holds up the caller's channel of replies once the window behind it is
/// full, and so all calls of its [`Caller`](crate::Caller) and of its clones. A program that
/// keeps replies calls [`into_owned`](Self::into_owned), which copies the bytes out. Replies that were not
/// taken yet hold nothing up: they are copied out when the window needs it.
pub struct Reply<R: ?Sized, C: Codec<R> = DefaultCodec> {
    opened: DecodedPayload<R, C>,
}

impl<R: ?Sized, C: Codec<R>> Reply<R, C> {
    pub(crate) fn new(opened: DecodedPayload<R, C>) -> Self {
        Self { opened }
    }

    /// Copies the bytes into memory of their own, so that the reply holds nothing up however long
    /// it is kept.
    #[must_use]
    pub fn into_owned(mut self) -> Self {
        self.opened.copy_out();
        self
    }

    /// The bytes as the codec wrote them.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.opened.payload()
    }
}

impl<R: ?Sized, C: Codec<R>> Deref for Reply<R, C> {
    type Target = C::View;

    #[inline]
    fn deref(&self) -> &C::View {
        &self.opened
    }
}

ibex_core::extend::debug_fields! {
    [R: ?Sized, C: Codec<R>] Reply<R, C>: |reply|
        bytes = reply.bytes().len()
}
