//! A connection to a peer's listener, begun and finished without waiting.
#![forbid(unsafe_code)]

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use ibex_base::Address;
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, Type};

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
pub(super) fn begin(address: Address) -> Result<TcpStream, NoConnection> {
    let failed = |error| lacking("make a socket", error);
    let (socket, address_in_kernel) = socket_for(address).map_err(failed)?;
    socket.set_nonblocking(true).map_err(failed)?;
    match socket.connect(&address_in_kernel) {
        Ok(()) => {}
        Err(error) if error.raw_os_error() == Some(Errno::INPROGRESS.raw_os_error()) => {}
        Err(error) => return Err(refused(address, error)),
    }
    Ok(socket.into())
}

/// Finishes to connect, once the socket is writable.
pub(super) fn finish(stream: &TcpStream, address: Address) -> Result<(), NoConnection> {
    match stream.take_error() {
        Ok(Some(error)) | Err(error) => return Err(refused(address, error)),
        Ok(None) => {}
    }
    match (tcp::peer_address(stream), tcp::own_address(stream)) {
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

/// Makes a socket that can be bound or connected to `address`, which it returns in the kernel's form.
///
/// # Errors
/// The kernel has no such sockets, or the process no descriptor or memory.
pub(super) fn socket_for(address: Address) -> io::Result<(Socket, SockAddr)> {
    match address {
        Address::Vsock { cid, port } => match Socket::new(Domain::VSOCK, Type::STREAM, None) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::AFNOSUPPORT) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, NO_VSOCK))
            }
            socket => Ok((socket?, SockAddr::vsock(cid, port))),
        },
        Address::Inet(address) => {
            let domain = Domain::for_address(address);
            let socket = Socket::new(domain, Type::STREAM, Some(Protocol::TCP))?;
            Ok((socket, address.into()))
        }
        _ => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// Returns the address with the port that has the kernel choose a free one, if its port is 0.
pub(super) fn to_bind(address: Address) -> Address {
    match address {
        Address::Vsock { cid, port: 0 } => Address::Vsock {
            cid,
            port: VMADDR_PORT_ANY,
        },
        _ => address,
    }
}

fn refused(address: Address, error: io::Error) -> NoConnection {
    let error = match address {
        Address::Vsock { cid, .. } => refused_by_vsock(cid, error),
        _ => error,
    };
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
fn has_source_for(address: Address) -> bool {
    let Some(address) = address.inet() else {
        return true;
    };
    let any = match address {
        SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    };
    UdpSocket::bind(any).is_ok_and(|socket| socket.connect(address).is_ok())
}

/// Returns the error of a vsock connection as the one of TCP that says the same, in words.
///
/// The drivers reset a connection to a port at which nobody listens (`virtio_transport_recv_listen`
/// and `virtio_transport_reset_no_sock` in net/vmw_vsock/virtio_transport_common.c), and none of
/// them can tell where a CID leads.
fn refused_by_vsock(cid: u32, error: io::Error) -> io::Error {
    match Errno::from_io_error(&error) {
        Some(Errno::CONNRESET) => io::Error::new(
            io::ErrorKind::ConnectionRefused,
            "nobody listens on that port there",
        ),
        Some(Errno::NODEV) => io::Error::new(
            io::ErrorKind::HostUnreachable,
            format!(
                "this kernel leads to no machine with CID {cid}: see whether that machine runs and \
                 has a vsock device, and whether the module is loaded (vhost_vsock on a host, \
                 vmw_vsock_virtio_transport in a guest, vsock_loopback for CID 1)"
            ),
        ),
        _ => error,
    }
}

/// The port with which the kernel chooses one:
/// [vsock(7)](https://man7.org/linux/man-pages/man7/vsock.7.html).
const VMADDR_PORT_ANY: u32 = u32::MAX;

/// The reason why there is no vsock socket.
const NO_VSOCK: &str = "this kernel has no vsock; load its module `vsock`, or give a host and port";

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
        let Err(NoConnection::Peer(error)) = finish(&stream, address.into()) else {
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
