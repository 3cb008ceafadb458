//! An attempt to connect.
#![forbid(unsafe_code)]

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;

use rustix::event::PollFlags;
use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use super::patience::{Cancelled, Patience};
use super::tcp;

/// Returns a connected stream. The inner error means that no process listens there yet.
pub(super) fn connect(
    address: SocketAddr,
    patience: &Patience<'_>,
) -> Result<Result<TcpStream, io::Error>, Broken> {
    let environment = |error| Broken::Environment("make a socket", error);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(environment)?;
    socket.set_nonblocking(true).map_err(environment)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {
            if let Err(Cancelled) = patience.wait(&[(socket.as_fd(), PollFlags::OUT)]) {
                return Err(Broken::Cancelled);
            }
            match socket.take_error() {
                Ok(Some(error)) | Err(error) => return Ok(Err(error)),
                Ok(None) => {}
            }
        }
        Err(error) => return Ok(Err(error)),
    }
    let stream = TcpStream::from(socket);
    match (stream.peer_addr(), stream.local_addr()) {
        // The socket has connected to itself. A port of the ephemeral range that no process listens
        // on, dialed from the same host, can be the very port that the kernel gave to this socket.
        (Ok(peer), Ok(ours)) if peer == ours => {
            return Ok(Err(io::Error::from(io::ErrorKind::ConnectionRefused)));
        }
        (Ok(_), _) => {}
        (Err(_), _) => return Ok(Err(io::Error::from(io::ErrorKind::TimedOut))),
    }
    tcp::configure(&stream).map_err(environment)?;
    Ok(Ok(stream))
}

pub(super) fn random_bytes(bytes: &mut [u8]) -> io::Result<()> {
    getrandom::fill(bytes).map_err(io::Error::other)
}

/// The reason why an attempt shows nothing about the peer.
pub(super) enum Broken {
    Cancelled,
    Environment(&'static str, io::Error),
}

pub(super) const RANDOM: &str = "draw random bytes";
