//! The connection that a handshake runs on and a session keeps: one of TCP, or of vsock. Only this
//! file and `connect.rs` tell the two apart.
//!
//! A vsock connection is kept in a `TcpStream` as well: that type's reads, writes and shutdown are
//! those of any stream socket. Its `local_addr` and `peer_addr` read IP addresses only, so
//! [`own_address`] and [`peer_address`] stand in their place.
#![forbid(unsafe_code)]

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ibex_base::Address;
use socket2::{SockAddr, SockRef, TcpKeepalive};

/// The result of one read.
pub(super) enum ReadOutcome<'a> {
    Bytes(&'a [u8]),
    Nothing,
    /// The end of the stream, with the error if it was not an orderly one.
    Closed(Option<String>),
}

/// Sets the options that a session wants of its connection. A vsock connection has none: its
/// packets leave at once, and its driver notices the end of a machine.
pub(super) fn configure(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    if let Address::Vsock { .. } = own_address(stream)? {
        return Ok(());
    }
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(keepalive_idle())
        .with_interval(KEEPALIVE_INTERVAL)
        .with_retries(KEEPALIVE_RETRIES);
    SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

pub(super) fn read<'a>(mut stream: &TcpStream, buffer: &'a mut [u8]) -> ReadOutcome<'a> {
    loop {
        return match stream.read(buffer) {
            Ok(0) => ReadOutcome::Closed(None),
            Ok(length) => ReadOutcome::Bytes(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => ReadOutcome::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => ReadOutcome::Closed(Some(error.to_string())),
        };
    }
}

/// Writes from the front of `bytes`, as far as it goes without waiting, and removes what was
/// written.
///
/// A broken connection is not reported here. The peer's last bytes say more about the cause, and
/// the next read returns those, then the error.
pub(super) fn write(mut stream: &TcpStream, bytes: &mut Vec<u8>) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(written) => drop(bytes.drain(..written)),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
            Err(_) => bytes.clear(),
        }
    }
}

/// Returns the address that a socket is bound to, or that a connection has at this end.
///
/// # Errors
/// The kernel's, or that the socket is neither one of TCP nor one of vsock.
pub fn own_address(socket: impl AsFd) -> io::Result<Address> {
    address_of(&SockRef::from(&socket).local_addr()?)
}

/// Returns the address that a connection has at its other end.
pub(super) fn peer_address(stream: &TcpStream) -> io::Result<Address> {
    address_of(&SockRef::from(stream).peer_addr()?)
}

/// Returns the address that the kernel gave.
pub(super) fn address_of(address: &SockAddr) -> io::Result<Address> {
    match (address.as_socket(), address.as_vsock_address()) {
        (Some(address), _) => Ok(Address::Inet(canonical(address))),
        (None, Some((cid, port))) => Ok(Address::Vsock { cid, port }),
        (None, None) => Err(io::Error::other(
            "the socket is neither of TCP nor of vsock",
        )),
    }
}

/// Returns an address in IPv4 form for an IPv4 peer of a dual-stack listener.
fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, address.port())),
        // The scope stays, without which a link-local address leads nowhere.
        IpAddr::V6(_) => address,
    }
}

/// Returns the idle time after which keepalive begins. It differs between connections that follow
/// each other.
///
/// The kernel's loopback and veth devices drop packets beyond some 1,000 at a time
/// (`net.core.netdev_max_backlog`). Thousands of connections that fell silent together would
/// otherwise all be probed in one tick, most probes would be lost, and so would be their
/// repetitions.
fn keepalive_idle() -> Duration {
    static CONNECTIONS: AtomicU32 = AtomicU32::new(0);
    let turn = CONNECTIONS.fetch_add(1, Ordering::Relaxed) % KEEPALIVE_TURNS;
    KEEPALIVE_IDLE - Duration::from_secs(turn.into())
}

/// The reason why a session over vsock uses no RDMA device: no address of its connection is one of a
/// device's.
pub(super) const NO_RDMA: &str = "its connection is one of vsock, which no RDMA device belongs to";

/// The longest idle time after which keepalive begins. An idle connection whose peer's host is gone
/// is noticed after at most `KEEPALIVE_IDLE + KEEPALIVE_INTERVAL * KEEPALIVE_RETRIES` = 19 s.
/// Keepalive does not cover a busy one; see
/// [tcp(7)](https://man7.org/linux/man-pages/man7/tcp.7.html).
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);
/// Idle times, a second apart.
const KEEPALIVE_TURNS: u32 = 5;
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Many, since each is lost with others if they are sent together.
const KEEPALIVE_RETRIES: u32 = 9;

#[cfg(test)]
mod tests {
    use std::net::SocketAddrV6;

    use super::*;

    #[test]
    fn a_link_local_peer_keeps_its_scope_and_a_mapped_one_is_ipv4() {
        let link_local: SocketAddr =
            SocketAddrV6::new([0xfe80, 0, 0, 0, 0, 0, 0, 1].into(), 7000, 0, 3).into();
        assert_eq!(canonical(link_local), link_local);
        assert_eq!(canonical(link_local).to_string(), "[fe80::1%3]:7000");
        let mapped: SocketAddr = "[::ffff:192.0.2.1]:7000".parse().unwrap();
        assert_eq!(canonical(mapped).to_string(), "192.0.2.1:7000");
    }
}
