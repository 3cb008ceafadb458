//! Sending messages from memory that the program owns.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_codec::Raw;
use ibex_ring::{memory::RegionSlice, parking::Patience};

use crate::{SendError, Sender};

impl Sender<[u8], Raw> {
    /// Sends a message that consists of the slice's bytes, as [`send`](Self::send) does, and from
    /// where they lie if it can. The receiver gets an ordinary message of bytes.
    ///
    /// | over | a [long](crate::guide::memory#large-payloads) message |
    /// |---|---|
    /// | TCP | is written, or encrypted, from the slice |
    /// | RDMA, from [pages of its own](crate::Region::zeroed) or a [mapped file](crate::Region::map) | is sent from the slice by the device, with which all of the region is registered once |
    /// | RDMA, from a `Vec<u8>` | is copied once, as `send` copies it: registered pages are no longer a forked child's, and pages of the heap hold other objects as well |
    /// | shared memory | is copied once, as `send` copies it |
    ///
    /// Other messages are copied, since a short copy takes less time than to announce a message.
    /// Messages are also copied on a channel that [carries trace
    /// contexts](crate::ChannelBuilder::trace_context). So are those from a region that the device's
    /// driver refuses to register: beyond the limit on locked memory, or a file on a kernel before
    /// Linux 6.2, which registers no memory that cannot be written. The refusal is a warning in the
    /// log. The node does not try to register that region again until it opens the device again. A
    /// region stays registered until it and all slices are dropped, or the node is closed.
    /// Registering it is not within a time-out, and happens on the calling thread, also in a task.
    ///
    /// Until a message has left the slice, the node holds a clone of it. So no code can change the
    /// bytes or free them. [`Region::wait_free`](crate::Region::wait_free), or in a task
    /// [`wait_free_async`](crate::Region::wait_free_async), tells when they are the program's alone
    /// again: when the kernel or the device has the last byte, the receiver is dropped, or the
    /// session has ended. A session that [resumes](crate::Node#when-a-connection-breaks) holds the
    /// slice until the peer has confirmed the message, and sends it again from there.
    ///
    /// ```
    /// use std::time::Duration;
    /// use ibex::{Raw, Region, Sender};
    ///
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// /// Sends a snapshot to all replicas, and returns its buffer to be used again.
    /// fn send(snapshot: Vec<u8>, replicas: &mut [Sender<[u8], Raw>]) -> Result<Vec<u8>, Error> {
    ///     let region = Region::from(snapshot);
    ///     for replica in replicas {
    ///         replica.send_region(&region.slice(..))?;
    ///     }
    ///     while !region.wait_free(Duration::from_secs(10)) {
    ///         println!("the snapshot is still on its way");
    ///     }
    ///     region.into_vec().map_err(|_| "another slice was made".into())
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The errors of [`send`](Self::send). Nothing was sent then, and the node holds no clone.
    pub fn send_region(&mut self, slice: &RegionSlice) -> Result<u64, SendError> {
        self.send_region_with(slice, Patience::FOREVER)
    }

    /// Sends a slice as [`send_region`](Self::send_region) does, if there is room for it now.
    ///
    /// # Errors
    ///
    /// The errors of [`try_send`](Self::try_send).
    pub fn try_send_region(&mut self, slice: &RegionSlice) -> Result<u64, SendError> {
        self.send_region_with(slice, Patience::None)
    }

    /// Sends a slice as [`send_region`](Self::send_region) does, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`send_timeout`](Self::send_timeout).
    pub fn send_region_timeout(
        &mut self,
        slice: &RegionSlice,
        timeout: Duration,
    ) -> Result<u64, SendError> {
        self.send_region_with(slice, Patience::at_most(timeout))
    }

    /// Sends a slice as [`send_region`](Self::send_region) does, waiting until `deadline`, which several
    /// calls may share.
    ///
    /// # Errors
    ///
    /// The errors of [`send_timeout`](Self::send_timeout).
    pub fn send_region_deadline(
        &mut self,
        slice: &RegionSlice,
        deadline: Instant,
    ) -> Result<u64, SendError> {
        self.send_region_with(slice, Patience::Until(Some(deadline)))
    }

    fn send_region_with(
        &mut self,
        slice: &RegionSlice,
        patience: Patience,
    ) -> Result<u64, SendError> {
        let sent = self.handle.send_region(slice, patience);
        sent.map_err(SendError::from)
    }

    /// Sends a slice in a task, as [`send_region`](Self::send_region) does.
    ///
    /// If the future is dropped before it is ready, nothing is sent.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn send_region_async<'a>(
        &'a mut self,
        slice: &'a RegionSlice,
    ) -> impl Future<Output = Result<u64, SendError>> {
        SendRegionAsync {
            sender: self,
            slice,
        }
    }

    /// Polls to send a slice, as [`send_region_async`](Self::send_region_async) does. Pending means
    /// that nothing was sent. The sender keeps the waker as [`poll_send`](Self::poll_send) does.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn poll_send_region(
        &mut self,
        context: &mut Context<'_>,
        slice: &RegionSlice,
    ) -> Poll<Result<u64, SendError>> {
        let sent = self.handle.poll_send_region(context.waker(), slice);
        sent.map_err(SendError::from)
    }
}

/// A slice that is being sent; see [`Sender::send_region_async`].
struct SendRegionAsync<'a> {
    sender: &'a mut Sender<[u8], Raw>,
    slice: &'a RegionSlice,
}

impl Future for SendRegionAsync<'_> {
    type Output = Result<u64, SendError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.sender.poll_send_region(context, this.slice)
    }
}

impl Drop for SendRegionAsync<'_> {
    fn drop(&mut self) {
        self.sender.handle.leave_room();
    }
}
