//! The frames of a service, to and from all peers.

use std::sync::Arc;

use iceoryx2_link_carrier::{Channel, Frame};

use crate::{ChannelError, ends::Ends, shared::Shared};

/// The frames of a service, to and from every peer that has a channel of the same descriptor open.
///
/// Each pair of open channels has an ibex channel in each direction, with a window of its own.
/// Frames that one peer leaves unread therefore take no room of another peer or service. A channel
/// that is opened again is another one, so no earlier frame comes out of it.
///
/// Dropping the channel closes it with every peer.
#[derive(Debug)]
pub struct IbexChannel {
    ends: Arc<Ends>,
    shared: Arc<Shared>,
}

impl IbexChannel {
    pub(crate) fn new(ends: Arc<Ends>, shared: Arc<Shared>) -> Self {
        Self { ends, shared }
    }
}

impl Channel for IbexChannel {
    type Error = ChannelError;

    /// Copies the frame once for each peer, into the memory that it is sent from or shared in, and
    /// never waits.
    ///
    /// A peer whose window is full does not get this frame. The loss is
    /// [counted](crate::ServiceStats::dropped) and is no error: after an error the link would hold
    /// back frames of other peers. A peer that has not opened the channel gets nothing, not even
    /// later.
    ///
    /// # Errors
    ///
    /// [`ChannelError::TooLong`] if a peer takes no frame of this length and no other peer got it,
    /// and [`ChannelError::NotCarried`].
    fn send(&mut self, frame: Frame<'_>) -> Result<(), ChannelError> {
        if self.shared.is_closed() {
            return Err(ChannelError::NotCarried);
        }
        let sent = self.ends.send(frame);
        match sent.too_long {
            Some(error) if sent.to == 0 => Err(ChannelError::TooLong(error)),
            _ => Ok(()),
        }
    }

    /// Lends the next frame where it lies. Peers take turns, and the frames of each come in order.
    ///
    /// # Errors
    ///
    /// [`ChannelError::NotCarried`], once all frames that had come were handed out. The loss of a
    /// peer is no error.
    fn receive<R>(&mut self, on_frame: impl FnOnce(&[u8]) -> R) -> Result<Option<R>, ChannelError> {
        match self.ends.receive(self.shared.waker()) {
            Some(frame) => Ok(Some(on_frame(&frame))),
            None if self.shared.is_closed() => Err(ChannelError::NotCarried),
            None => Ok(None),
        }
    }
}

impl Drop for IbexChannel {
    fn drop(&mut self) {
        self.shared.close(&self.ends);
    }
}
