//! Addresses of this machine: which interface has one, and which one leads to a peer.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

/// An address and the interface that has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalAddress {
    /// The interface's name.
    pub netdev: String,
    /// The interface's address.
    pub address: IpAddr,
}

/// Returns this machine's own address on the way to a host, by the kernel's routes. Sends nothing.
///
/// # Errors
/// If the name is not known, or no route leads there.
pub fn address_towards(host: &str) -> io::Result<IpAddr> {
    // This is the port that RoCE v2 uses. Any port would do, since connecting a UDP socket sends
    // nothing.
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for peer in (host, 4791).to_socket_addrs()? {
        match source_towards(peer) {
            Ok(address) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn source_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = match peer {
        SocketAddr::V4(_) => ([0_u8; 4], 0).into(),
        SocketAddr::V6(_) => ([0_u16; 8], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Returns all addresses of all interfaces.
///
/// # Errors
/// If the kernel does not tell.
pub fn local_addresses() -> io::Result<Vec<LocalAddress>> {
    let mut head = std::ptr::null_mut();
    // SAFETY: `head` is written to; the list is freed below.
    if unsafe { libc::getifaddrs(&raw mut head) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let mut found = Vec::new();
    let mut next = head;
    while !next.is_null() {
        // SAFETY: an entry of the list, which exists until it is freed; its name is a C
        // string, and its address, unless null, is of the family that it names.
        unsafe {
            if let Some(address) = ip_of((*next).ifa_addr) {
                let netdev = std::ffi::CStr::from_ptr((*next).ifa_name);
                found.push(LocalAddress {
                    netdev: netdev.to_string_lossy().into_owned(),
                    address,
                });
            }
            next = (*next).ifa_next;
        }
    }
    // SAFETY: the list came from `getifaddrs`, and nothing of it is kept.
    unsafe { libc::freeifaddrs(head) };
    Ok(found)
}

/// # Safety
/// `address` is null or points to a socket address of the family that it names.
unsafe fn ip_of(address: *const libc::sockaddr) -> Option<IpAddr> {
    if address.is_null() {
        return None;
    }
    // SAFETY: the caller's contract.
    unsafe {
        match i32::from((*address).sa_family) {
            libc::AF_INET => {
                let v4 = &*address.cast::<libc::sockaddr_in>();
                Some(IpAddr::from(v4.sin_addr.s_addr.to_ne_bytes()))
            }
            libc::AF_INET6 => {
                let v6 = &*address.cast::<libc::sockaddr_in6>();
                Some(IpAddr::from(v6.sin6_addr.s6_addr))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_way_to_oneself_is_over_the_loopback_address() {
        let address = address_towards("127.0.0.1").unwrap();
        assert_eq!(address, IpAddr::from([127, 0, 0, 1]));
        assert!(address_towards("no.such.host.invalid").is_err());
    }
    #[test]
    fn the_loopback_interface_is_found_by_its_address() {
        let found = local_addresses().unwrap();
        let loopback = IpAddr::from([127, 0, 0, 1]);
        let entry = found.iter().find(|entry| entry.address == loopback);
        assert_eq!(entry.unwrap().netdev, "lo");
    }
}
