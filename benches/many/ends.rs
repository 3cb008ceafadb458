//! A connection for round trips.

use std::{
    error::Error,
    io::{Read, Write},
    net::TcpStream,
};

use ibex::{Peer, Raw, Receiver, Sender};

use crate::BYTES;

/// One end of it.
pub(crate) enum Pair {
    Channels(Box<Channels>),
    Socket(TcpStream),
}

/// A channel in each direction.
pub(crate) struct Channels {
    there: Sender<[u8], Raw>,
    back: Receiver<[u8], Raw>,
}

impl Pair {
    /// Opens the channels of the end that asks.
    pub(crate) fn asking(peer: &Peer) -> Result<Self, Box<dyn Error>> {
        let there = peer.channel("there").codec::<Raw>().sender()?;
        let back = peer.channel("back").codec::<Raw>().receiver()?;
        Ok(Self::Channels(Box::new(Channels { there, back })))
    }

    /// Opens the channels of the end that answers.
    pub(crate) fn answering(peer: &Peer) -> Result<Self, Box<dyn Error>> {
        let there = peer.channel("back").codec::<Raw>().sender()?;
        let back = peer.channel("there").codec::<Raw>().receiver()?;
        Ok(Self::Channels(Box::new(Channels { there, back })))
    }

    pub(crate) fn send(&mut self) -> Result<(), Box<dyn Error>> {
        let message = [7; BYTES];
        match self {
            Self::Channels(ends) => drop(ends.there.send(&message)?),
            Self::Socket(socket) => socket.write_all(&message)?,
        }
        Ok(())
    }

    pub(crate) fn receive(&mut self) -> Result<(), Box<dyn Error>> {
        match self {
            Self::Channels(ends) => drop(ends.back.recv()?),
            Self::Socket(socket) => socket.read_exact(&mut [0; BYTES])?,
        }
        Ok(())
    }

    /// Answers until the other end is gone.
    pub(crate) fn answer(mut self) {
        while self.receive().and_then(|()| self.send()).is_ok() {}
    }
}
