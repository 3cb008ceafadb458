//! The receiving end of many plain sockets: epoll, and one read of up to 64 KiB for each socket
//! that has something.

use std::{
    error::Error,
    io::{ErrorKind, Read},
    net::{TcpListener, TcpStream},
    os::fd::OwnedFd,
};

use rustix::event::epoll;

use crate::BYTES;

/// Sockets that were accepted.
pub(crate) struct Sockets {
    epoll: OwnedFd,
    sockets: Vec<TcpStream>,
    buffer: Vec<u8>,
}

impl Sockets {
    /// Accepts this many sockets.
    pub(crate) fn accept(listener: &TcpListener, count: usize) -> Result<Self, Box<dyn Error>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut sockets = Vec::new();
        for number in 0..count {
            let (socket, _) = listener.accept()?;
            socket.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &socket, data, epoll::EventFlags::IN)?;
            sockets.push(socket);
        }
        let buffer = vec![0; 64 << 10];
        Ok(Self {
            epoll,
            sockets,
            buffer,
        })
    }

    /// Reads this many messages.
    pub(crate) fn receive(&mut self, messages: u64) -> Result<(), Box<dyn Error>> {
        let mut missing = messages * BYTES as u64;
        let mut events = Vec::with_capacity(256);
        while missing > 0 {
            events.clear();
            epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            )?;
            for event in &events {
                let socket = &mut self.sockets[event.data.u64() as usize];
                match socket.read(&mut self.buffer) {
                    Ok(0) => return Err("a socket has ended".into()),
                    Ok(bytes) => missing -= bytes as u64,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }
}
