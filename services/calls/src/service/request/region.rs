//! Replies of bytes from memory of the program's own.

use std::time::Duration;

use ibex_core::{
    RegionSlice, SendError,
    codec::{Codec, Raw},
};

use super::{PATIENCE, Request};
use crate::frame::SliceContent;

/// Replies of bytes from memory of the program's own.
impl<Q: ?Sized> Request<Q, [u8], Raw>
where
    Raw: Codec<Q>,
{
    /// Answers the call with the bytes of a slice, as [`reply`](Self::reply) does, and from where
    /// they lie if [`send_region`](ibex_core::Sender::send_region) can. The caller gets an ordinary reply
    /// of bytes.
    ///
    /// Only [long](https://docs.rs/ibex/latest/ibex/guide/memory/index.html#large-payloads) replies are sent so, and only to callers
    /// whose version of ibex takes [headers](ibex_core::RegionMessage); others are copied. Until the
    /// reply has left the slice, the node holds a clone of it: over shared memory, until the caller has
    /// dropped the reply, so a slow caller keeps the value. The caller's channel bounds the regions
    /// that it maps, as the service's does; a few regions that hold many values each stay within that
    /// bound.
    ///
    /// ```
    /// use std::collections::HashMap;
    /// use ibex::{Raw, RegionSlice, RecvError, calls::Service};
    ///
    /// /// Serves what is kept, from where it lies if that can be.
    /// fn serve(
    ///     service: &mut Service<[u8], [u8], Raw>,
    ///     kept: &HashMap<Vec<u8>, RegionSlice>,
    /// ) -> Result<(), RecvError> {
    ///     while let Some(request) = service.next()? {
    ///         match kept.get(&request[..]) {
    ///             Some(value) => {
    ///                 if let Err(error) = request.reply_region(value) {
    ///                     eprintln!("no reply: {error}");
    ///                 }
    ///             }
    ///             None => request.fail(404, "it is not kept"),
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`reply`](Self::reply).
    pub fn reply_region(self, slice: &RegionSlice) -> Result<(), SendError> {
        self.reply_with(SliceContent(slice), PATIENCE)
    }

    /// Like [`reply_region`](Self::reply_region), for a task. Never waits.
    ///
    /// # Errors
    ///
    /// The errors of [`reply`](Self::reply).
    #[expect(clippy::unused_async, reason = "it is the form of all calls for tasks")]
    pub async fn reply_region_async(self, slice: &RegionSlice) -> Result<(), SendError> {
        self.reply_with(SliceContent(slice), Duration::ZERO)
    }

    /// Sends the bytes of a slice as one item of a stream, as [`send`](Self::send) does, and from
    /// where they lie as [`reply_region`](Self::reply_region) does.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub fn send_region(&mut self, slice: &RegionSlice) -> Result<(), SendError> {
        self.send_with(SliceContent(slice))
    }

    /// Like [`send_region`](Self::send_region), for a task. If the future is dropped, the item is
    /// sent whole or not at all.
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send).
    pub async fn send_region_async(&mut self, slice: &RegionSlice) -> Result<(), SendError> {
        self.send_with_async(SliceContent(slice)).await
    }
}
