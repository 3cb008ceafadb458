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
///
/// Types of other crates cannot have it.
pub trait ToAddress: private::AddressText {}

impl<T: private::AddressText + ?Sized> ToAddress for T {}

mod private {
    pub trait AddressText {
        fn to_text(&self) -> String;
    }
}

/// Returns the address as text.
pub fn text_of(address: &(impl ToAddress + ?Sized)) -> String {
    address.to_text()
}

impl private::AddressText for str {
    fn to_text(&self) -> String {
        self.to_owned()
    }
}

impl private::AddressText for String {
    fn to_text(&self) -> String {
        self.clone()
    }
}

impl<T: private::AddressText + ?Sized> private::AddressText for &T {
    fn to_text(&self) -> String {
        (**self).to_text()
    }
}

impl private::AddressText for (&str, u16) {
    fn to_text(&self) -> String {
        let (host, port) = self;
        // Without brackets, the address's last group would be taken for the port.
        match host.parse::<Ipv6Addr>() {
            Ok(address) => (address, *port).to_text(),
            Err(_) => format!("{host}:{port}"),
        }
    }
}

impl private::AddressText for (String, u16) {
    fn to_text(&self) -> String {
        (self.0.as_str(), self.1).to_text()
    }
}

macro_rules! socket_addresses {
    ($($whole:ty),* ; $($host:ty),*) => {
        $(impl private::AddressText for $whole {
            fn to_text(&self) -> String {
                self.to_string()
            }
        })*
        $(impl private::AddressText for ($host, u16) {
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
            text_of(text),
            text_of(&text.to_owned()),
            text_of(&whole),
            text_of(&Address::from(whole)),
            text_of(&("2001:db8::7", 7000)),
            text_of(&("2001:db8::7".to_owned(), 7000)),
            text_of(&(six, 7000)),
            text_of(&(IpAddr::from(six), 7000)),
        ];
        assert!(forms.iter().all(|form| form == text), "{forms:?}");
        assert_eq!(text_of(&("replica", 7000)), "replica:7000");
        assert_eq!(text_of(&(Ipv4Addr::LOCALHOST, 1)), "127.0.0.1:1");
        // An address with a scope keeps its form, because brackets would hide it from the resolver.
        assert_eq!(text_of(&("fe80::1%eth0", 1)), "fe80::1%eth0:1");
    }
}
