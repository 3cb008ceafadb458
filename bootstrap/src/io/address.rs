//! Addresses as text: `host:port`, or `vsock:CID:PORT`.
#![forbid(unsafe_code)]

use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6, ToSocketAddrs, UdpSocket};

use ibex_base::Address;
use rustix::net::netdevice::name_to_index;

/// The meaning of an address that a program gave as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Destination {
    /// An address in numbers.
    Literal(Address),
    /// A name with a port, which the system's resolver knows, or may know at another time.
    Name,
}

/// Reads `host:port`. The host is a name, an IPv4 address, or an IPv6 address in brackets, which
/// may have a zone: `[fe80::1%eth0]:7000`. Reads `vsock:CID:PORT` as well; a host of that name is
/// written `vsock.:7000`.
///
/// # Errors
/// The text is neither, or a link-local address lacks the zone that it needs.
pub(super) fn parse(text: &str) -> io::Result<Destination> {
    let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
    if Address::is_vsock_text(text) {
        return text.parse().map(Destination::Literal);
    }
    let (host, port) = text
        .rsplit_once(':')
        .ok_or_else(|| invalid("there is no port"))?;
    let port = port
        .parse::<u16>()
        .map_err(|_| invalid("the port is no number up to 65535"))?;
    if host.is_empty() {
        return Err(invalid("there is no host"));
    }
    let bracketed = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'));
    let (ip, zone) = match bracketed.unwrap_or(host).split_once('%') {
        Some((ip, zone)) => (ip, Some(zone)),
        None => (bracketed.unwrap_or(host), None),
    };
    let ip = match (ip.parse::<IpAddr>(), bracketed, zone) {
        (Ok(IpAddr::V6(ip)), ..) => ip,
        (Ok(IpAddr::V4(ip)), None, None) => {
            let address = SocketAddr::from((ip, port));
            return Ok(Destination::Literal(address.into()));
        }
        (_, None, None) => return Ok(Destination::Name),
        _ => return Err(invalid("it is no IPv6 address")),
    };
    let scope = zone.map_or(Ok(0), scope_of)?;
    let address = SocketAddr::V6(SocketAddrV6::new(ip, port, 0, scope));
    match lacks_zone(&address.into()) {
        true => Err(invalid(LACKS_ZONE)),
        false => Ok(Destination::Literal(address.into())),
    }
}

/// Returns the port of an address that [`parse`] has read.
pub(super) fn port_of(text: &str) -> Option<u32> {
    text.rsplit_once(':')?.1.parse().ok()
}

/// Resolves `host:port` or `vsock:CID:PORT` on the calling thread, which may take as long as the system's resolver.
///
/// # Errors
/// The text is no address, or a link-local address lacks the zone that it needs, as in
/// `[fe80::1%eth0]:7000`; both are of the kind [`InvalidInput`](io::ErrorKind::InvalidInput).
/// Otherwise the resolver's error.
pub fn resolve(address: &str) -> io::Result<Vec<Address>> {
    match parse(address)? {
        Destination::Literal(address) => Ok(vec![address]),
        Destination::Name => Ok(address.to_socket_addrs()?.map(Address::from).collect()),
    }
}

/// Returns whether the address leads nowhere, since it does not say over which interface.
pub(super) fn lacks_zone(address: &Address) -> bool {
    matches!(address, Address::Inet(SocketAddr::V6(v6)) if v6.scope_id() == 0 && v6.ip().is_unicast_link_local())
}

/// Returns the number of an interface, which is given by its name or by that number.
fn scope_of(zone: &str) -> io::Result<u32> {
    if let Ok(scope) = zone.parse::<u32>()
        && scope != 0
    {
        return Ok(scope);
    }
    // The call needs a socket of any kind.
    let socket =
        UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).or_else(|_| UdpSocket::bind(("0.0.0.0", 0)))?;
    name_to_index(&socket, zone).map_err(|_| {
        let why = format!("this host has no network interface named {zone:?}");
        io::Error::new(io::ErrorKind::InvalidInput, why)
    })
}

/// The reason why a link-local address alone is not enough.
pub(super) const LACKS_ZONE: &str = "a link-local address needs its interface, as in \
                                     [fe80::1%eth0]:7000";

#[cfg(test)]
mod tests {
    use super::*;

    fn literal(text: &str) -> Address {
        match parse(text) {
            Ok(Destination::Literal(address)) => address,
            other => panic!("{text}: {other:?}"),
        }
    }

    fn why_not(text: &str) -> String {
        let error = parse(text).expect_err(text);
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
        error.to_string()
    }

    #[test]
    fn a_literal_is_read_whatever_its_form() {
        for text in [
            "127.0.0.1:7000",
            "[2001:db8::7]:7000",
            "[::1]:0",
            "vsock:3:7000",
        ] {
            assert_eq!(literal(text).to_string(), text);
        }
        assert_eq!(literal("2001:db8::7:7000"), literal("[2001:db8::7]:7000"));
        assert_eq!(literal("[fe80::1%7]:7000").to_string(), "[fe80::1%7]:7000");
        for name in ["replica:7000", "fe80:7000", "127.1:7000", "vsock.:7000"] {
            assert_eq!(parse(name).unwrap(), Destination::Name, "{name}");
        }
    }

    #[test]
    fn an_interface_is_given_by_its_name_too() {
        // Every network namespace has a loopback interface, whose number is 1.
        assert_eq!(literal("[fe80::1%lo]:7000"), literal("[fe80::1%1]:7000"));
        assert_eq!(literal("fe80::1%lo:7000"), literal("[fe80::1%1]:7000"));
    }

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(why_not("[fe80::1]:7000"), LACKS_ZONE);
        assert_eq!(why_not("[febf::1]:7000"), LACKS_ZONE);
        let text = "this host has no network interface named \"no-such\"";
        assert_eq!(why_not("[fe80::1%no-such]:7000"), text);
        assert_eq!(why_not("replica"), "there is no port");
        assert_eq!(why_not(":7000"), "there is no host");
        assert_eq!(
            why_not("replica:70000"),
            "the port is no number up to 65535"
        );
        assert_eq!(why_not("[replica]:7000"), "it is no IPv6 address");
    }
}
