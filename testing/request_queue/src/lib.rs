//! A bounded queue of requests between two nodes, which stands on `ibex_core::extend` alone. It is
//! here to show that this suffices for crates of other authors.
//!
//! A [`Submitter`] puts requests into a queue, of which at most `capacity` are not done. The
//! [`Worker`] of that name at the peer takes them one by one.
#![forbid(unsafe_code)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use ibex_core::{
    OpenError, Peer, Raw, RecvError, SendError, WaitError,
    extend::{
        self, Abort, ChannelError, MessageVersions, RawMessage, ReceiveHandle, SendHandle,
        message_version, parking::Patience,
    },
};

/// The end of a queue where requests come from.
pub struct Submitter {
    handle: SendHandle,
    capacity: u64,
}

impl Submitter {
    /// Opens a queue in which at most `capacity` requests are not done.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: the channel cannot be opened.
    pub fn open(peer: &Peer, name: &str, capacity: u64) -> Result<Self, OpenError> {
        let channel = peer.channel(name).codec::<Raw>().window_messages(capacity);
        let offer = message_version::<[u8], Raw>().map(MessageVersions::of_one);
        Ok(Self {
            handle: extend::open_sender(&channel, offer)?,
            capacity,
        })
    }

    /// Puts a request into the queue, and waits for room. Returns its number, from 1 on.
    ///
    /// # Errors
    ///
    /// [`SendError`]: the channel is over.
    pub fn submit(&mut self, request: &[u8]) -> Result<u64, SendError> {
        let oldest = (self.handle.last_sequence() + 1).saturating_sub(self.capacity);
        if oldest > 0 {
            self.handle.wait_acked(oldest, Patience::FOREVER)?;
        }
        let encode = |slot: &mut [std::mem::MaybeUninit<u8>]| {
            let slot = slot.get_mut(..request.len()).ok_or(Abort::Overflow)?;
            for (place, byte) in slot.iter_mut().zip(request) {
                place.write(*byte);
            }
            Ok(request.len())
        };
        let length = Some(request.len());
        Ok(self.handle.send(length, Patience::FOREVER, encode)?)
    }

    /// Puts a request into the queue, unless the queue is full.
    ///
    /// # Errors
    ///
    /// [`SendError`]: the channel is over.
    pub fn try_submit(&mut self, request: &[u8]) -> Result<Option<u64>, SendError> {
        let waiting = self.handle.last_sequence() - self.handle.counts().acknowledged;
        match waiting < self.capacity {
            true => self.submit(request).map(Some),
            false => Ok(None),
        }
    }

    /// Waits until the worker is done with a request.
    ///
    /// # Errors
    ///
    /// [`WaitError`]: the channel is over before.
    pub fn wait_done(&self, number: u64) -> Result<(), WaitError> {
        Ok(self.handle.wait_acked(number, Patience::FOREVER)?)
    }

    /// Ends the queue: the worker takes what was submitted, and then finds the end.
    pub fn close(mut self) {
        self.handle.close();
    }
}

/// The end of a queue where requests are worked on.
pub struct Worker {
    handle: ReceiveHandle,
    /// The requests that were taken and are not done.
    running: Arc<AtomicU64>,
}

impl Worker {
    /// Takes the requests of the queue of this name at a peer.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: the channel cannot be opened.
    pub fn open(peer: &Peer, name: &str) -> Result<Self, OpenError> {
        let offer = message_version::<[u8], Raw>().map(MessageVersions::of_one);
        Ok(Self {
            handle: extend::open_receiver(&peer.channel(name).codec::<Raw>(), offer)?,
            running: Arc::default(),
        })
    }

    /// Takes the next request, and waits for it. `None` is the end of the queue.
    ///
    /// # Errors
    ///
    /// [`RecvError`]: the channel is over, and not in order.
    pub fn take(&mut self) -> Result<Option<Request>, RecvError> {
        match self.handle.receive(Patience::FOREVER) {
            Ok(message) => {
                self.running.fetch_add(1, Ordering::Relaxed);
                let running = self.running.clone();
                Ok(Some(Request { message, running }))
            }
            Err(ChannelError::Ended) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns how many requests the worker has taken and not done.
    #[must_use]
    pub fn running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }
}

/// A request that a worker has taken. One that is dropped is never done.
pub struct Request {
    message: RawMessage,
    running: Arc<AtomicU64>,
}

impl Request {
    /// Returns what was submitted.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        self.message.bytes()
    }

    /// Says that the request is done, which makes room in the queue.
    pub fn done(self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
        self.message.acknowledge();
    }
}
