//! The connection beside a queue pair. It tells that the peer lives, and carries one thing: the
//! [last word](last_word) of an end that gives the session up.
//!
//! The end of the connection is no such word: a network that fails looks the same.

use std::{
    io::{self, IoSliceMut},
    net::TcpStream,
};

use crate::wire::{
    Received,
    stream::{Layer, RecordLayer, last_word, say_last_word},
};

/// The listener to the connection, and the speaker.
pub(super) struct Beside {
    layer: Layer,
    /// Bytes that have come: none, or the beginning of a last word.
    heard: Vec<u8>,
}

impl Beside {
    /// Begins behind the handshake, whose surplus bytes are `leftover`; later bytes go through
    /// `layer`.
    pub(super) fn new(layer: Layer, leftover: &[u8]) -> Self {
        Self {
            layer,
            heard: leftover.to_vec(),
        }
    }

    /// Tells the peer that this end does not come back.
    pub(super) fn say_last_word(&mut self, stream: &TcpStream) {
        say_last_word(stream, &mut self.layer, 0);
    }

    /// Reads what has come over the connection, and tells what it means.
    pub(super) fn listen(&mut self, stream: &TcpStream) -> Received {
        let word = last_word(0);
        let received = loop {
            if self.heard.starts_with(&word) {
                break Received::Abandoned;
            }
            if !word.starts_with(&self.heard) {
                break Received::Strayed;
            }
            let mut bytes = [0; 64];
            match self.layer.read(stream, &mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => break Received::Ended,
                Ok(read) => self.heard.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Received::Nothing,
                Err(error) => break Received::Failed(error),
            }
        };
        // Nearly nothing ever comes.
        self.layer.rest();
        received
    }
}
