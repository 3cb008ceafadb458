//! Sending messages from memory that the program owns, and receiving them into it.

use std::{
    future::Future,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use ibex_codec::Raw;
use ibex_protocol::format::message_extension::MessageExtension;
use ibex_ring::{
    memory::{Region, RegionSlice},
    parking::{self, Patience},
};
use ibex_transport::channel;

use crate::{Receiver, RecvError, SendError, Sender};

/// What [`send_region`](crate::Sender::send_region) sends: a slice, or a header of a few bytes and a
/// slice.
///
/// It is made from a slice, or from the two as a pair:
///
/// ```
/// use ibex::{Raw, Receiver, Region, Sender};
///
/// type Error = Box<dyn std::error::Error>;
///
/// /// Sends a part of a file with its place there.
/// fn send(to: &mut Sender<[u8], Raw>, file: &Region, offset: usize) -> Result<u64, Error> {
///     let part = file.slice(offset..file.len().min(offset + (1 << 20)));
///     let header = (offset as u64).to_le_bytes();
///     Ok(to.send_region((&header, &part))?)
/// }
///
/// /// Writes the parts to their places.
/// fn receive(
///     from: &mut Receiver<[u8], Raw>,
///     write_at: impl Fn(u64, &[u8]) -> std::io::Result<()>,
/// ) -> Result<(), Error> {
///     while let Some(message) = from.next()? {
///         let offset = message.header().first_chunk().ok_or("a part has no place")?;
///         write_at(u64::from_le_bytes(*offset), &message)?;
///     }
///     Ok(())
/// }
/// ```
///
/// The header is copied; only the slice is sent from where it lies. The receiver gets both as one
/// message: the body as the message's bytes, and the header by
/// [`Message::header`](crate::Message::header). The header is the program's own, as the body is: ibex
/// reads neither. It does not count in
/// [`max_message_bytes`](crate::ChannelBuilder::max_message_bytes).
///
/// A header costs its bytes, and over RDMA a question as well: a body of up to 64 KiB that is too long
/// for a receive buffer goes without one into memory that the receiver has granted ahead. With a
/// header it waits for a grant, as longer bodies do.
#[derive(Clone, Copy, Debug)]
pub struct RegionMessage<'a>(channel::SliceMessage<'a>);

impl RegionMessage<'_> {
    /// The most bytes of a header: 256.
    pub const MAX_HEADER_BYTES: usize = MessageExtension::MAX_HEADER_BYTES;
}

impl<'a> From<&'a RegionSlice> for RegionMessage<'a> {
    fn from(body: &'a RegionSlice) -> Self {
        Self(body.into())
    }
}

/// A header and a slice. An empty header is none.
impl<'a, H: AsRef<[u8]> + ?Sized> From<(&'a H, &'a RegionSlice)> for RegionMessage<'a> {
    fn from((header, body): (&'a H, &'a RegionSlice)) -> Self {
        let header = header.as_ref();
        Self(channel::SliceMessage { header, body })
    }
}

impl Sender<[u8], Raw> {
    /// Sends a message that consists of the slice's bytes, as [`send`](Self::send) does, and from
    /// where they lie if it can. The receiver gets an ordinary message of bytes. It gets a
    /// [header](crate::RegionMessage) too if one is given: `send_region((&header, &slice))`.
    ///
    /// | over | a [long](https://docs.rs/ibex/latest/ibex/guide/memory/index.html#large-payloads) message |
    /// |---|---|
    /// | TCP | is written, or encrypted, from the slice; that of a mapped file is copied once to be encrypted or checked |
    /// | RDMA, from [pages of its own](crate::Region::zeroed) or a [mapped file](crate::Region::map) | is sent from the slice by the device, with which all of the region is registered once |
    /// | RDMA, from a `Vec<u8>` or an [owner](crate::Region::from_owner) | is copied once, as `send` copies it: registered pages are no longer a forked child's, and pages of the heap hold other objects as well |
    /// | shared memory, from [pages of its own](crate::Region::zeroed), to a process of the same user | is read where it lies by the peer, which maps all of the region for reading |
    /// | shared memory, otherwise | is copied once, as `send` copies it |
    ///
    /// Other messages are copied, since a short copy takes less time than to announce a message. So
    /// are those with a [trace context](crate::ChannelBuilder::trace_context) to a peer that takes no
    /// headers, and those from a region that the device's driver refuses to register: beyond the limit on locked memory, or a file on a kernel before
    /// Linux 6.2, which registers no memory that cannot be written. The refusal is a warning in the
    /// log. The node does not try to register that region again until it opens the device again. A
    /// region stays registered until it and all slices are dropped, or the node is closed.
    /// Registering it is not within a time-out, and happens on the calling thread, also in a task.
    ///
    /// Over shared memory, a channel's peer maps at most 60 regions, of together at most 64 MiB by
    /// default: four times `max_message_bytes`, or, where
    /// [`max_unreleased_bytes`](crate::ChannelBuilder::max_unreleased_bytes) is set at both ends, twice
    /// what that is beyond the window. Messages from further regions, and from longer ones, are
    /// copied, which [`region_bytes_copied`](crate::stats::ChannelStats::region_bytes_copied) counts.
    /// To map a region takes longer than to copy a message from it. So a region takes the place of
    /// others that the program still has only once in 64 long messages, and that of a dropped one at
    /// once. More than four copies that the peer has not released take places of regions too. Keep many
    /// values in few regions. The first message that the peer reads in
    /// a region moves all of it to a memory file, on the calling thread, also in a task: that takes as long as
    /// to copy the region, and at most 2 MiB, or a 64th of it, more memory. A slice may begin anywhere, so
    /// the bytes that the receiver reads are aligned as the slice is. The peer maps a region until about
    /// a second after it is dropped, or until the channel is silent.
    ///
    /// Until a message has left the slice, the node holds a clone of it. So no code can change the
    /// bytes or free them. [`Region::wait_free`](crate::Region::wait_free), or in a task
    /// [`wait_free_async`](crate::Region::wait_free_async), tells when they are the program's alone
    /// again: when the kernel or the device has the last byte, the receiver is dropped, or the
    /// session has ended. A region that the peer reads is busy until the peer's program has released the
    /// message, or the channel or the session has ended. If the peer still holds the message then, it keeps
    /// the pages, and the region is copied to others if the program [changes](crate::Region::get_mut) it. A session that [resumes](crate::Node#when-a-connection-breaks) holds the
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
    /// The errors of [`send`](Self::send). Nothing was sent then, and the node holds no clone. A
    /// header above 256 bytes is [`TooLong`](crate::SendErrorKind::TooLong).
    pub fn send_region<'a>(
        &mut self,
        message: impl Into<RegionMessage<'a>>,
    ) -> Result<u64, SendError> {
        self.send_region_with(message.into(), Patience::FOREVER)
    }

    /// Sends a slice as [`send_region`](Self::send_region) does, if there is room for it now.
    ///
    /// # Errors
    ///
    /// The errors of [`try_send`](Self::try_send).
    pub fn try_send_region<'a>(
        &mut self,
        message: impl Into<RegionMessage<'a>>,
    ) -> Result<u64, SendError> {
        self.send_region_with(message.into(), Patience::None)
    }

    /// Sends a slice as [`send_region`](Self::send_region) does, waiting for up to `timeout`.
    ///
    /// # Errors
    ///
    /// The errors of [`send_timeout`](Self::send_timeout).
    pub fn send_region_timeout<'a>(
        &mut self,
        message: impl Into<RegionMessage<'a>>,
        timeout: Duration,
    ) -> Result<u64, SendError> {
        self.send_region_with(message.into(), Patience::at_most(timeout))
    }

    /// Sends a slice as [`send_region`](Self::send_region) does, waiting until `deadline`, which several
    /// calls may share.
    ///
    /// # Errors
    ///
    /// The errors of [`send_timeout`](Self::send_timeout).
    pub fn send_region_deadline<'a>(
        &mut self,
        message: impl Into<RegionMessage<'a>>,
        deadline: Instant,
    ) -> Result<u64, SendError> {
        self.send_region_with(message.into(), Patience::Until(Some(deadline)))
    }

    pub(crate) fn send_region_with(
        &mut self,
        message: RegionMessage<'_>,
        patience: Patience,
    ) -> Result<u64, SendError> {
        let sent = self.handle.send_region(message.0, patience);
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
        message: impl Into<RegionMessage<'a>>,
    ) -> impl Future<Output = Result<u64, SendError>> {
        let message = message.into();
        parking::future(
            self,
            move |sender, context| sender.poll_send_region(context, message),
            |sender| _ = sender.handle.leave_room(),
        )
    }

    /// Polls to send a slice, as [`send_region_async`](Self::send_region_async) does. Pending means
    /// that nothing was sent. The sender keeps the waker as [`poll_send`](Self::poll_send) does.
    ///
    /// # Errors
    ///
    /// The errors of [`send_async`](Self::send_async).
    pub fn poll_send_region<'a>(
        &mut self,
        context: &mut Context<'_>,
        message: impl Into<RegionMessage<'a>>,
    ) -> Poll<Result<u64, SendError>> {
        let message = message.into().0;
        let sent = self.handle.poll_send_region(context.waker(), message);
        sent.map_err(SendError::from)
    }
}

impl Receiver<[u8], Raw> {
    /// Provides memory of the program for a long message to arrive in, before the message begins.
    ///
    /// Each [long](https://docs.rs/ibex/latest/ibex/guide/memory/index.html#large-payloads) message takes the first of the regions that has
    /// room for it, when its bytes begin to come. The receiving calls return it as any other message, and
    /// [`Message::into_region`](crate::Message::into_region) returns the region with it. A message that
    /// finds no region, because none waits or each is too short, comes in memory of the node, within
    /// [`memory_limit`](crate::NodeBuilder::memory_limit). Short messages never take one. A region does not
    /// count against `memory_limit`.
    ///
    /// | over | a message in a region |
    /// |---|---|
    /// | TCP | is read from the socket into the region; of an encrypted session, decrypted and copied once |
    /// | RDMA, [pages of its own](crate::Region::zeroed) | is read or written by the device, without a copy; if the peer's device writes it, the region is registered for that message alone |
    /// | RDMA, a `Vec<u8>` or a region that the device's driver refuses to register | is copied once |
    /// | shared memory | is copied once, by the receiving call |
    ///
    /// Up to 64 regions wait. The call does not wait for a message, so it suits a task. But it has the
    /// kernel give a region of its own pages all its memory.
    ///
    /// ```
    /// use ibex::{Raw, Receiver, Region};
    ///
    /// type Error = Box<dyn std::error::Error>;
    ///
    /// const SEGMENT: usize = 4 << 20;
    ///
    /// /// Stores segments of a log. Two regions take turns: one is filled while the other is stored.
    /// fn store_all(
    ///     segments: &mut Receiver<[u8], Raw>,
    ///     store: impl Fn(&[u8]) -> Result<(), Error>,
    /// ) -> Result<(), Error> {
    ///     for _ in 0..2 {
    ///         segments.provide(Region::zeroed(SEGMENT)?)?;
    ///     }
    ///     while let Some(message) = segments.next()? {
    ///         match message.ack_on_drop().into_region() {
    ///             Ok((region, length)) => {
    ///                 store(&region[..length])?;
    ///                 segments.provide(region)?;
    ///             }
    ///             // It is short, or was on its way before the regions were there.
    ///             Err(message) => store(&message)?,
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # When a message does not arrive
    ///
    /// A region is the receiver's while a message arrives in it. So an incomplete message may be left at
    /// any time. If the session [resumes](crate::Node#when-a-connection-breaks) after an outage, the message
    /// arrives again from its beginning, in that region if it has not been taken. If the channel ends, the
    /// region comes back to the receiver once no device can write there: over TCP when the session drops
    /// what it has of the channel, over RDMA when the queue pair is gone too.
    /// [`take_regions`](Self::take_regions) returns those that are back. Dropping the receiver drops the
    /// others.
    ///
    /// A peer's device that wrote a message cannot write to the region any more when a receiving call
    /// returns the message: its key is invalid by then.
    ///
    /// # Errors
    ///
    /// [`RecvErrorKind::RegionRefused`](crate::RecvErrorKind::RegionRefused): the region has slices, is a
    /// mapped file or memory of an owner, gets no memory from the kernel, or is the 65th.
    /// [`RecvErrorKind::UsedAfterFork`](crate::RecvErrorKind::UsedAfterFork) in a child of `fork`.
    /// [`RecvError::into_region`] returns the region.
    pub fn provide(&mut self, region: Region) -> Result<(), RecvError> {
        let provided = self.handle.provide(region);
        provided.map_err(|(region, error)| RecvError::of_region(region, error))
    }

    /// Takes back the [provided](Self::provide) regions in which no message arrives, the first one
    /// first. In a child of `fork` there are none.
    ///
    /// ```
    /// use ibex::{Raw, Receiver, Region};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let node = ibex::Node::listen("127.0.0.1:0")?;
    /// # let client = ibex::Node::client()?;
    /// # let peer = client.connect(node.local_addr().unwrap())?;
    /// let mut segments: Receiver<[u8], Raw> = peer.channel("segments").codec::<Raw>().receiver()?;
    /// segments.provide(Region::zeroed(1 << 20)?)?;
    /// assert_eq!(segments.take_regions()[0].len(), 1 << 20);
    /// assert!(segments.take_regions().is_empty());
    /// # Ok(())
    /// # }
    /// ```
    #[must_use = "the regions are dropped otherwise"]
    pub fn take_regions(&mut self) -> Vec<Region> {
        self.handle.take_regions()
    }
}

#[cfg(test)]
mod tests;
