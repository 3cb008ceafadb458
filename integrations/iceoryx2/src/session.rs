//! The control stream to a peer on one session.

use std::{
    collections::VecDeque,
    sync::Arc,
    task::{Context, Poll},
};

use ibex::{Peer, PeerAt, Raw, Sender};

use crate::control::{MAX_WORD_BYTES, STREAM};

/// A session, and the words that are to be sent on it.
pub(crate) struct Session {
    pub(crate) at: PeerAt,
    pub(crate) peer: Peer,
    /// Set once the peer has opened its stream: a carrier is there.
    pub(crate) has_joined: bool,
    stream: Option<Sender<[u8], Raw>>,
    /// Words that wait for room.
    waiting: VecDeque<Arc<[u8]>>,
}

impl Session {
    pub(crate) fn new(peer: Peer) -> Self {
        let mut session = Self {
            at: peer.at(),
            peer,
            has_joined: false,
            stream: None,
            waiting: VecDeque::new(),
        };
        session.open();
        session
    }

    /// Opens the stream if there is none.
    pub(crate) fn open(&mut self) {
        if self.stream.is_none() {
            let stream = self.peer.channel(STREAM).codec::<Raw>();
            // A stream that has just ended may still exist; opening is then tried again.
            self.stream = stream.max_message_bytes(MAX_WORD_BYTES).sender().ok();
        }
    }

    /// Ends the stream, since the peer's carrier has left; another may come on the same session.
    pub(crate) fn part(&mut self) {
        self.has_joined = false;
        self.waiting.clear();
        self.stream = None;
        self.open();
    }

    /// Begins with a full account, which replaces all waiting words.
    pub(crate) fn begin(&mut self, account: Vec<Arc<[u8]>>) {
        self.waiting = account.into();
    }

    /// Adds a word to those that wait. Returns false, and adds none, if so many words wait that a
    /// full account is shorter.
    pub(crate) fn tell(&mut self, word: &Arc<[u8]>, account_words: usize) -> bool {
        if self.waiting.len() > 2 * account_words + MOST_WAITING {
            return false;
        }
        self.waiting.push_back(word.clone());
        true
    }

    /// Sends as many words as there is room for, and registers the waker for the rest.
    pub(crate) fn flush(&mut self, context: &mut Context<'_>) {
        while let (Some(stream), Some(word)) = (&mut self.stream, self.waiting.front()) {
            match stream.poll_send(context, word) {
                Poll::Ready(Ok(_)) => drop(self.waiting.pop_front()),
                Poll::Ready(Err(error)) => {
                    // The end of the peer's own stream decides what follows.
                    tracing::debug!(peer = %self.at, %error, "the control stream has ended");
                    self.stream = None;
                }
                Poll::Pending => return,
            }
        }
    }
}

/// Changes that wait for a peer that does not read, beside twice a full account of them.
const MOST_WAITING: usize = 1024;
