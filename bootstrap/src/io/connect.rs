//! A TCP connection to a peer's listener, begun and finished without waiting.
#![forbid(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use rustix::io::Errno;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::{host, tcp};

/// The reason why there is no connection.
#[derive(Debug)]
pub(super) enum NoConnection {
    /// No process takes connections there.
    Peer(io::Error),
    /// This process or host lacks something, which it may have in a moment.
    Shortage(&'static str, io::Error),
    /// This process cannot do its part.
    Environment(&'static str, io::Error),
}

/// Begins to connect. The socket is writable when the outcome is known.
pub(super) fn begin(address: SocketAddr) -> Result<TcpStream, NoConnection> {
    let failed = |error| lacking("make a socket", error);
    let domain = Domain::for_address(address);
    let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    match socket.connect(&address.into()) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(refused(address, error)),
    }
    Ok(socket.into())
}

/// Finishes to connect, once the socket is writable.
pub(super) fn finish(stream: &TcpStream, address: SocketAddr) -> Result<(), NoConnection> {
    match stream.take_error() {
        Ok(Some(error)) | Err(error) => return Err(refused(address, error)),
        Ok(None) => {}
    }
    match (stream.peer_addr(), stream.local_addr()) {
        (Ok(peer), Ok(ours)) if peer == ours => {
            reset_on_close(stream);
            let nobody = io::Error::from(io::ErrorKind::ConnectionRefused);
            return Err(NoConnection::Peer(nobody));
        }
        (Ok(_), _) => {}
        (Err(error), _) => return Err(NoConnection::Peer(error)),
    }
    tcp::configure(stream).map_err(|error| lacking("set up a connection", error))
}

/// Makes the close of the connection a reset, so that no end keeps its port in TIME-WAIT.
///
/// A socket that has connected to itself must be closed like that. A port of the ephemeral range
/// that no process listens on, dialed from the same host, can be the very port that the kernel
/// gives to the dialing socket. In TIME-WAIT it would keep the server that is waited for from
/// listening there for a minute.
pub(super) fn reset_on_close(stream: &TcpStream) {
    // A connection that is broken already needs no reset.
    let _ = SockRef::from(stream).set_linger(Some(Duration::ZERO));
}

pub(super) fn lacking(action: &'static str, error: io::Error) -> NoConnection {
    match host::is_shortage(&error) {
        true => NoConnection::Shortage(action, error),
        false => NoConnection::Environment(action, error),
    }
}

fn refused(address: SocketAddr, error: io::Error) -> NoConnection {
    match Errno::from_io_error(&error) {
        Some(Errno::ADDRNOTAVAIL) if has_source_for(address) => {
            NoConnection::Shortage(LOCAL_PORT, error)
        }
        // The kernel says this too, where it finds no free port.
        Some(Errno::AGAIN) => NoConnection::Shortage(LOCAL_PORT, error),
        _ if host::is_shortage(&error) => NoConnection::Shortage("connect", error),
        _ => NoConnection::Peer(error),
    }
}

/// Returns whether this host has an address from which it would connect to `address`. Without one
/// the kernel's error is the same as without a free port. A datagram socket looks for the address
/// in the same way, and has ports of its own.
fn has_source_for(address: SocketAddr) -> bool {
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    UdpSocket::bind(any).is_ok_and(|socket| socket.connect(address).is_ok())
}

/// The step that fails where every local port for the peer's address is in use.
pub(super) const LOCAL_PORT: &str = "get a local port for the connection";

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_socket_that_has_connected_to_itself_is_nobody_and_leaves_its_port_free() {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket
            .bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())
            .unwrap();
        let address = socket.local_addr().unwrap();
        // Each of the two SYNs is the answer to the other; see RFC 9293, section 3.5.
        socket.connect(&address).unwrap();
        let address = address.as_socket().unwrap();
        let stream = TcpStream::from(socket);
        let Err(NoConnection::Peer(error)) = finish(&stream, address) else {
            panic!("it has connected to itself");
        };
        assert_eq!(error.kind(), io::ErrorKind::ConnectionRefused);
        drop(stream);
        // std's listener sets SO_REUSEADDR, which a server need not.
        let server = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        server.bind(&address.into()).unwrap();
        server.listen(1).unwrap();
        drop(server);
        drop(TcpListener::bind(address).unwrap());
    }

    #[test]
    fn an_address_that_this_host_cannot_reach_is_no_lack_of_ports() {
        // No host has an address for the discard prefix of RFC 6666, unless it has a default route
        // for IPv6; then the connection is begun.
        let unreachable = "[100::1]:9".parse().unwrap();
        match begin(unreachable) {
            Ok(_) | Err(NoConnection::Peer(_)) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
}
