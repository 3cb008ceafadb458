//! The addresses at which nodes listen, and those of the ends of their connections.
#![forbid(unsafe_code)]

use std::{
    fmt, io,
    net::{IpAddr, SocketAddr, SocketAddrV4, SocketAddrV6, ToSocketAddrs},
    option,
    str::FromStr,
};

/// The address of one end of a connection: an IP address with a port, or a vsock address.
///
/// `Display` writes the text that `connect` and `listen` take: `192.0.2.1:7000`,
/// `[2001:db8::7]:7000`, `vsock:3:7000`. `FromStr` reads it, and no host names.
///
/// Vsock connects a virtual machine with its host without any network; see
/// [vsock(7)](https://man7.org/linux/man-pages/man7/vsock.7.html).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Address {
    /// An IP address and a TCP port.
    Inet(SocketAddr),
    /// A machine and a port of its vsock sockets: `vsock:CID:PORT`.
    Vsock {
        /// The machine's context identifier: 2 is the host, 1 the machine that asks, 3 and above
        /// are virtual machines. [`Address::ANY_CID`] is written `any`.
        cid: u32,
        /// The port, which has 32 bits.
        port: u32,
    },
}

impl Address {
    /// The CID at which a node listens for connections to every CID of its machine:
    /// `VMADDR_CID_ANY` of vsock(7).
    pub const ANY_CID: u32 = u32::MAX;

    /// Returns the IP address and the port; `None` for a vsock address.
    #[must_use]
    pub fn inet(self) -> Option<SocketAddr> {
        match self {
            Address::Inet(address) => Some(address),
            Address::Vsock { .. } => None,
        }
    }

    /// Returns the IP address; `None` for a vsock address.
    #[must_use]
    pub fn ip(self) -> Option<IpAddr> {
        self.inet().map(|address| address.ip())
    }

    /// Returns whether the address leads to this machine from wherever it is used: an IP address of
    /// the loopback interface, or the CID 1.
    #[must_use]
    pub fn is_loopback(self) -> bool {
        match self {
            Address::Inet(address) => address.ip().is_loopback(),
            Address::Vsock { cid, .. } => cid == LOCAL_CID,
        }
    }

    /// Returns whether processes outside this network namespace can connect to a listener at the
    /// address: at every address but those of the loopback interface. Vsock does not know network
    /// namespaces, so every container of the machine reaches a listener at the CID 1.
    #[must_use]
    pub fn is_open_to_strangers(self) -> bool {
        self.ip().is_none_or(|ip| !ip.is_loopback())
    }

    /// Returns whether a text is meant as a vsock address, whatever follows.
    #[doc(hidden)]
    #[must_use]
    pub fn is_vsock_text(text: &str) -> bool {
        text.starts_with(VSOCK)
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Address {
        Address::Inet(address)
    }
}

impl From<SocketAddrV4> for Address {
    fn from(address: SocketAddrV4) -> Address {
        Address::Inet(address.into())
    }
}

impl From<SocketAddrV6> for Address {
    fn from(address: SocketAddrV6) -> Address {
        Address::Inet(address.into())
    }
}

impl From<(IpAddr, u16)> for Address {
    fn from(address: (IpAddr, u16)) -> Address {
        Address::Inet(address.into())
    }
}

/// A vsock address is none of std's: the error has the kind
/// [`Unsupported`](io::ErrorKind::Unsupported), and names the address.
impl TryFrom<Address> for SocketAddr {
    type Error = io::Error;

    fn try_from(address: Address) -> io::Result<SocketAddr> {
        address.inet().ok_or_else(|| {
            let text = format!("{address} is a vsock address, and no IP address with a port");
            io::Error::new(io::ErrorKind::Unsupported, text)
        })
    }
}

/// So that std's sockets connect to it. The error is that of the conversion to [`SocketAddr`].
impl ToSocketAddrs for Address {
    type Iter = option::IntoIter<SocketAddr>;

    fn to_socket_addrs(&self) -> io::Result<Self::Iter> {
        SocketAddr::try_from(*self).map(|address| Some(address).into_iter())
    }
}

impl FromStr for Address {
    type Err = io::Error;

    /// Reads an address in numbers. An error has the kind
    /// [`InvalidInput`](io::ErrorKind::InvalidInput).
    fn from_str(text: &str) -> io::Result<Address> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidInput, why.to_owned());
        let Some(vsock) = text.strip_prefix(VSOCK) else {
            let address = text.parse().map(Address::Inet);
            return address.map_err(|_| invalid("it is no IP address with a port"));
        };
        let (cid, port) = vsock
            .split_once(':')
            .ok_or_else(|| invalid("a vsock address has a CID and a port"))?;
        let cid = match cid {
            "any" => Address::ANY_CID,
            cid => number(cid).ok_or_else(|| invalid("the CID is neither a number nor `any`"))?,
        };
        let port = number(port).ok_or_else(|| invalid("the port is no number up to 4294967294"))?;
        Ok(Address::Vsock { cid, port })
    }
}

/// Reads a CID or a port. The greatest number of 32 bits is neither: it stands for any.
fn number(text: &str) -> Option<u32> {
    let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| *number != u32::MAX);
    number.filter(|_| is_number)
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Inet(address) => address.fmt(f),
            Address::Vsock {
                cid: Address::ANY_CID,
                port,
            } => write!(f, "{VSOCK}any:{port}"),
            Address::Vsock { cid, port } => write!(f, "{VSOCK}{cid}:{port}"),
        }
    }
}

impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Serializes the text of `Display`.
#[cfg(feature = "serde")]
impl serde::Serialize for Address {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// The beginning of a vsock address.
const VSOCK: &str = "vsock:";

/// `VMADDR_CID_LOCAL` of vsock(7).
const LOCAL_CID: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        for text in [
            "127.0.0.1:7000",
            "[2001:db8::7]:7000",
            "vsock:3:7000",
            "vsock:any:0",
            "vsock:2:4294967294",
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        let guest = Address::Vsock {
            cid: 3,
            port: 70_000,
        };
        assert_eq!("vsock:3:70000".parse::<Address>().expect("one"), guest);
        assert_eq!((guest.inet(), guest.ip()), (None, None));
        let error = SocketAddr::try_from(guest).expect_err("of vsock");
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert!(error.to_string().starts_with("vsock:3:70000 is"), "{error}");
        let local = SocketAddr::from(([127, 0, 0, 1], 7000));
        assert_eq!(
            SocketAddr::try_from(Address::from(local)).expect("one"),
            local
        );
    }

    #[test]
    fn what_is_no_address_says_why() {
        for (text, why) in [
            ("vsock:", "a vsock address has a CID and a port"),
            ("vsock:3", "a vsock address has a CID and a port"),
            ("vsock:x:1", "the CID is neither a number nor `any`"),
            ("vsock::1", "the CID is neither a number nor `any`"),
            (
                "vsock:4294967295:1",
                "the CID is neither a number nor `any`",
            ),
            (
                "vsock:3:99999999999",
                "the port is no number up to 4294967294",
            ),
            (
                "vsock:3:4294967295",
                "the port is no number up to 4294967294",
            ),
            ("vsock:3:+1", "the port is no number up to 4294967294"),
            ("vsock:3:1:2", "the port is no number up to 4294967294"),
            ("replica:7000", "it is no IP address with a port"),
        ] {
            let error = text.parse::<Address>().expect_err(text);
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
            assert_eq!(error.to_string(), why, "{text}");
        }
    }

    #[test]
    fn only_addresses_of_this_machine_are_loopback_and_only_ip_ones_keep_strangers_out() {
        for (text, is_loopback, is_open) in [
            ("127.0.0.1:1", true, false),
            ("[::1]:1", true, false),
            ("192.0.2.1:1", false, true),
            ("0.0.0.0:1", false, true),
            ("vsock:1:1", true, true),
            ("vsock:2:1", false, true),
            ("vsock:any:1", false, true),
        ] {
            let address: Address = text.parse().expect(text);
            assert_eq!(address.is_loopback(), is_loopback, "{text}");
            assert_eq!(address.is_open_to_strangers(), is_open, "{text}");
        }
    }
}
