//! Addresses that a node connects to or listens on.
//!
//! Every kind of address becomes `host:port` or `vsock:CID:PORT`. A name is resolved when it is used,
//! because it may lead elsewhere at the next attempt.
#![forbid(unsafe_code)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

use ibex_base::Address;

/// An address for [`Node::connect`](crate::Node::connect) and
/// [`Node::listen`](crate::Node::listen): text of the form `host:port` with an IPv6 address in
/// brackets, or `vsock:CID:PORT`; an [`Address`] or [`SocketAddr`]; or a host and a port.
///
/// ```
/// # fn ways(node: &ibex::Node) -> Result<(), ibex::ConnectError> {
/// node.connect("replica.example:7000")?;
/// node.connect("[2001:db8::7]:7000")?;
/// node.connect(("replica.example", 7000))?;
/// node.connect(("2001:db8::7", 7000))?;
/// node.connect((std::net::Ipv4Addr::LOCALHOST, 7000))?;
/// node.connect("vsock:2:7000")?; // from a virtual machine to its host
/// # Ok(())
/// # }
/// ```
pub trait ToAddress {
    /// Returns the address as text.
    fn to_text(&self) -> String;
}

impl ToAddress for str {
    fn to_text(&self) -> String {
        self.to_owned()
    }
}

impl ToAddress for String {
    fn to_text(&self) -> String {
        self.clone()
    }
}

impl<T: ToAddress + ?Sized> ToAddress for &T {
    fn to_text(&self) -> String {
        (**self).to_text()
    }
}

impl ToAddress for (&str, u16) {
    fn to_text(&self) -> String {
        let (host, port) = self;
        // Without brackets, the address's last group would be taken for the port.
        match host.parse::<Ipv6Addr>() {
            Ok(address) => (address, *port).to_text(),
            Err(_) => format!("{host}:{port}"),
        }
    }
}

impl ToAddress for (String, u16) {
    fn to_text(&self) -> String {
        (self.0.as_str(), self.1).to_text()
    }
}

macro_rules! socket_addresses {
    ($($whole:ty),* ; $($host:ty),*) => {
        $(impl ToAddress for $whole {
            fn to_text(&self) -> String {
                self.to_string()
            }
        })*
        $(impl ToAddress for ($host, u16) {
            fn to_text(&self) -> String {
                SocketAddr::from(*self).to_string()
            }
        })*
    };
}
socket_addresses!(Address, SocketAddr, SocketAddrV4, SocketAddrV6; IpAddr, Ipv4Addr, Ipv6Addr);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_becomes_host_and_port() {
        let six: Ipv6Addr = "2001:db8::7".parse().expect("an address");
        let whole = SocketAddr::from((six, 7000));
        let text = "[2001:db8::7]:7000";
        let forms = [
            text.to_text(),
            text.to_owned().to_text(),
            whole.to_text(),
            Address::from(whole).to_text(),
            ("2001:db8::7", 7000).to_text(),
            ("2001:db8::7".to_owned(), 7000).to_text(),
            (six, 7000).to_text(),
            (IpAddr::from(six), 7000).to_text(),
        ];
        assert!(forms.iter().all(|form| form == text), "{forms:?}");
        assert_eq!(("replica", 7000).to_text(), "replica:7000");
        assert_eq!((Ipv4Addr::LOCALHOST, 1).to_text(), "127.0.0.1:1");
        // An address with a scope keeps its form, because brackets would hide it from the resolver.
        assert_eq!(("fe80::1%eth0", 1).to_text(), "fe80::1%eth0:1");
    }
}
