//! The kinds of queue pairs, and the calls that not all of them have.

use std::marker::PhantomData;

use crate::{
    FirstSequence, LocalPort, Mtu, QueuePair, ReceiveQueue, RemoteEndpoint, SendBatch, VerbsError,
};

/// The kind of a reliable connection (RC).
#[derive(Debug)]
pub struct Reliable;

/// The kind of an unreliable connection (UC).
#[cfg(feature = "all")]
#[derive(Debug)]
pub struct Unreliable;

/// The kind of unreliable datagrams (UD).
#[cfg(feature = "all")]
#[derive(Debug)]
pub struct Datagram;

/// The kind of the sending end of an extended connection (XRC).
#[cfg(feature = "all")]
#[derive(Debug)]
pub struct XrcSend;

/// A kind whose queue pairs are connected with one peer.
pub trait Connected {}

impl Connected for Reliable {}
#[cfg(feature = "all")]
impl Connected for Unreliable {}
#[cfg(feature = "all")]
impl Connected for XrcSend {}

/// A kind whose messages nobody acknowledges, so that its queue pairs go on after a failed send.
#[cfg(feature = "all")]
pub trait Unacknowledged {}

#[cfg(feature = "all")]
impl Unacknowledged for Unreliable {}
#[cfg(feature = "all")]
impl Unacknowledged for Datagram {}

#[cfg(feature = "all")]
impl<K: Unacknowledged> QueuePair<K> {
    /// Lets the send queue go on after a send has failed: SQE → RTS. What was posted behind that
    /// send is flushed, and receives have gone on meanwhile.
    ///
    /// # Errors
    /// [`StateChangeError`](crate::StateChangeError) if the device refuses: no send has failed, or the
    /// queue pair is in ERR.
    pub fn recover_sends(&mut self) -> Result<(), VerbsError> {
        use crate::{QueuePairState, abi::queue_pair_attributes::QueuePairAttributes};

        let before = self.any.state.now;
        // The device has brought it there.
        self.any.state.now = QueuePairState::SendQueueError;
        let attributes = QueuePairAttributes::to(QueuePairState::ReadyToSend);
        let recovered = self.any.modify(&attributes);
        if recovered.is_err() {
            self.any.state.now = before;
        }
        recovered
    }
}

impl<K: Connected> QueuePair<K> {
    /// Connects the queue pair: INIT → RTR → RTS. Returns the path MTU.
    ///
    /// `first` is what the peer was told in [`endpoint`](Self::endpoint). The peer may
    /// send as soon as this end is at RTR, so receives are posted before.
    ///
    /// # Errors
    /// [`VerbsError`]: the ends do not fit, or [`StateChangeError`](crate::StateChangeError) with all
    /// attributes. The queue pair has to be dropped then.
    pub fn connect(
        &mut self,
        first: FirstSequence,
        local: LocalPort,
        remote: RemoteEndpoint,
    ) -> Result<Mtu, VerbsError> {
        let pair = &mut self.any;
        let context = &pair.inner.domain.context;
        let settings = (pair.settings, pair.reads);
        pair.state.connect(context, settings, first, local, remote)
    }

    /// Returns its own receive queue; `None` if it takes from a shared one, or has no receives.
    #[inline]
    pub fn receive_queue(&mut self) -> Option<&mut ReceiveQueue> {
        self.any.receives.as_mut()
    }

    /// Takes notice that this many sends, the oldest ones, are done. A signaled completion stands
    /// for its request and all unsignaled ones before it.
    ///
    /// # Panics
    /// If fewer sends were outstanding.
    #[inline]
    pub fn retire_sends(&mut self, sends: u32) {
        self.any.retire_sends(sends);
    }

    /// Begins a batch of sends.
    #[inline]
    #[must_use = "a batch that is dropped posts nothing"]
    pub fn send_batch<'memory>(&mut self) -> SendBatch<'_, 'memory, K> {
        self.any.table.clear();
        SendBatch {
            pair: &mut self.any,
            memory: PhantomData,
            kind: PhantomData,
        }
    }
}
