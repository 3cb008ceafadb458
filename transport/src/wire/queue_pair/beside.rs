//! The connection beside a queue pair. It shows that the peer lives, and carries one message: the
//! [last word](LastWord) of an end that gives the session up.
//!
//! The end of the connection does not mean that, because a failing network looks the same.

use std::{
    io::{self, IoSliceMut},
    net::TcpStream,
};

use crate::wire::{
    LastWord, Received,
    stream::{Layer, RecordLayer, parse_last_word, say_last_word},
};

/// The state for reading and writing the connection.
pub(super) struct Beside {
    layer: Layer,
    /// Bytes that have arrived: none, or the beginning of a last word.
    heard: Vec<u8>,
}

impl Beside {
    /// Begins after the handshake, whose surplus bytes are `leftover`; later bytes go through
    /// `layer`.
    pub(super) fn new(layer: Layer, leftover: &[u8]) -> Self {
        Self {
            layer,
            heard: leftover.to_vec(),
        }
    }

    /// Tells the peer why the wire ends.
    pub(super) fn say_last_word(&mut self, stream: &TcpStream, word: LastWord) {
        say_last_word(stream, &mut self.layer, 0, word);
    }

    /// Reads the bytes that have arrived over the connection, and returns their meaning.
    pub(super) fn listen(&mut self, stream: &TcpStream) -> Received {
        self.layer.begin_turn();
        let received = loop {
            match parse_last_word(&self.heard) {
                Received::Nothing => {}
                word => break word,
            }
            let mut bytes = [0; 64];
            match self.layer.read(stream, &mut [IoSliceMut::new(&mut bytes)]) {
                Ok(0) => break self.layer.ended(),
                Ok(read) => self.heard.extend_from_slice(&bytes[..read]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break Received::Nothing,
                Err(error) => break Received::Failed(error),
            }
        };
        // Almost no data ever arrives here, so no memory is kept for it.
        self.layer.rest();
        received
    }
}
