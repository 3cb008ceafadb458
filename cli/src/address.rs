//! Addresses on the command line: HOST, HOST:PORT or vsock:CID:PORT.

use std::net::Ipv6Addr;

use ibex::Address;

/// A host, with or without a port.
#[derive(Debug, PartialEq, Eq)]
struct HostAndPort<'a> {
    /// A name or an address, an IPv6 address without brackets.
    host: &'a str,
    port: Option<u16>,
}

impl<'a> HostAndPort<'a> {
    fn parse(text: &'a str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is neither HOST nor HOST:PORT, such as db1.example:7000, 127.0.0.1:7000 or \
                 [::1]:7000"
            )
        };
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or_else(wrong)?;
                if !is_ipv6(host) {
                    return Err(wrong());
                }
                match port {
                    "" => (host, None),
                    port => (host, Some(port.strip_prefix(':').ok_or_else(wrong)?)),
                }
            }
            None if is_ipv6(text) => (text, None),
            None => match text.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        if host.is_empty() || host.contains(char::is_whitespace) {
            return Err(wrong());
        }
        let port = port.map(|port| port.parse().map_err(|_| wrong()));
        let port = port.transpose()?;
        Ok(Self { host, port })
    }

    /// Returns HOST:PORT, an IPv6 address in brackets.
    fn with_port(&self, default: Option<u16>) -> Result<String, String> {
        let host = match self.host.contains(':') {
            true => format!("[{}]", self.host),
            false => self.host.to_owned(),
        };
        match self.port.or(default) {
            Some(port) => Ok(format!("{host}:{port}")),
            None => Err(format!(
                "the port is missing: give HOST:PORT, such as {host}:7000"
            )),
        }
    }
}

/// Reads the host of an address, whose port does not matter.
pub(crate) fn host(text: &str) -> Result<String, String> {
    if let Some(vsock) = vsock(text) {
        let vsock = vsock?;
        return Err(format!(
            "{vsock} is reached without a route and without an RDMA device; `ibex doctor --to {vsock}` \
             tries whether a node answers there"
        ));
    }
    HostAndPort::parse(text).map(|address| address.host.to_owned())
}

/// Reads HOST:PORT of a node that listens.
pub(crate) fn to_node(text: &str) -> Result<String, String> {
    to_node_at(text, None)
}

/// Reads HOST or HOST:PORT of a node that listens, by default at this port.
pub(crate) fn to_node_at(text: &str, default: Option<u16>) -> Result<String, String> {
    if let Some(vsock) = vsock(text) {
        return match vsock? {
            Address::Vsock { port: 0, .. } => Err(NO_PORT.to_owned()),
            address => Ok(address.to_string()),
        };
    }
    let address = HostAndPort::parse(text)?;
    match address.port {
        Some(0) => Err(NO_PORT.to_owned()),
        _ => address.with_port(default),
    }
}

/// Reads ADDRESS:PORT to listen at. The kernel chooses the port if it is 0.
pub(crate) fn to_listen(text: &str) -> Result<String, String> {
    listen_at(text, None)
}

/// Reads ADDRESS or ADDRESS:PORT to listen at, by default at this port.
pub(crate) fn to_listen_at(text: &str, default: u16) -> Result<String, String> {
    listen_at(text, Some(default))
}

fn listen_at(text: &str, default: Option<u16>) -> Result<String, String> {
    match vsock(text) {
        Some(vsock) => vsock.map(|address| address.to_string()),
        None => HostAndPort::parse(text)?.with_port(default),
    }
}

/// Reads a vsock address; `None` if the text is not meant as one.
pub(crate) fn vsock(text: &str) -> Option<Result<Address, String>> {
    text.starts_with("vsock:").then(|| {
        let form = |why| format!("`{text}` is not vsock:CID:PORT, such as vsock:3:7000: {why}");
        text.parse().map_err(form)
    })
}

/// The reason why nobody can be reached at port 0.
const NO_PORT: &str = "nobody listens at port 0; a port is 1 or more";

/// Returns whether this is an IPv6 address, with or without a zone.
fn is_ipv6(text: &str) -> bool {
    let address = text.split('%').next().unwrap_or(text);
    address.parse::<Ipv6Addr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_a_port_or_takes_the_default() {
        for (text, host_alone, with_default) in [
            ("localhost", "localhost", "localhost:7700"),
            ("db1.example:7000", "db1.example", "db1.example:7000"),
            ("127.0.0.1", "127.0.0.1", "127.0.0.1:7700"),
            ("::1", "::1", "[::1]:7700"),
            ("[::1]", "::1", "[::1]:7700"),
            ("[::1]:7000", "::1", "[::1]:7000"),
            ("fe80::1%eth0", "fe80::1%eth0", "[fe80::1%eth0]:7700"),
        ] {
            assert_eq!(host(text).as_deref(), Ok(host_alone));
            assert_eq!(to_node_at(text, Some(7700)).as_deref(), Ok(with_default));
        }
        let missing = to_node("localhost").expect_err("a port is needed");
        assert!(missing.contains("such as localhost:7000"), "{missing}");
        assert_eq!(to_listen("127.0.0.1:0").as_deref(), Ok("127.0.0.1:0"));
        assert_eq!(to_listen_at("0.0.0.0", 7700).as_deref(), Ok("0.0.0.0:7700"));
        assert!(to_node("localhost:0").is_err());
    }

    #[test]
    fn a_vsock_address_is_whole() {
        let text = "vsock:3:7000";
        assert_eq!(to_node_at(text, Some(7700)).as_deref(), Ok(text));
        assert_eq!(to_listen("vsock:any:0").as_deref(), Ok("vsock:any:0"));
        assert!(to_node("vsock:3:0").is_err() && host(text).is_err());
        let missing = to_listen_at("vsock:7000", 7700).expect_err("there is no CID");
        assert!(missing.contains("is not vsock:CID:PORT"), "{missing}");
    }

    #[test]
    fn what_is_no_address_is_refused() {
        let texts = [
            "",
            ":7000",
            "a:b",
            "a:70000",
            "a:1:2",
            "[::1",
            "[a]:1",
            "[::1]7000",
            "a b:1",
        ];
        for text in texts {
            let why = to_node_at(text, Some(1)).expect_err("it is no address");
            assert!(
                why.contains("is neither HOST nor HOST:PORT"),
                "{text}: {why}"
            );
        }
    }
}
