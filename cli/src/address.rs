//! Addresses on the command line: HOST or HOST:PORT.

use std::net::Ipv6Addr;

/// A host, with or without a port.
#[derive(Debug, PartialEq, Eq)]
struct Address<'a> {
    /// A name or an address, an IPv6 address without brackets.
    host: &'a str,
    port: Option<u16>,
}

impl<'a> Address<'a> {
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
    Address::parse(text).map(|address| address.host.to_owned())
}

/// Reads HOST:PORT of a node that listens.
pub(crate) fn to_node(text: &str) -> Result<String, String> {
    to_node_at(text, None)
}

/// Reads HOST or HOST:PORT of a node that listens, by default at this port.
pub(crate) fn to_node_at(text: &str, default: Option<u16>) -> Result<String, String> {
    let address = Address::parse(text)?;
    match address.port {
        Some(0) => Err("nobody listens at port 0; a port is 1 to 65535".to_owned()),
        _ => address.with_port(default),
    }
}

/// Reads ADDRESS:PORT to listen at. The kernel chooses the port if it is 0.
pub(crate) fn to_listen(text: &str) -> Result<String, String> {
    Address::parse(text)?.with_port(None)
}

/// Reads ADDRESS or ADDRESS:PORT to listen at, by default at this port.
pub(crate) fn to_listen_at(text: &str, default: u16) -> Result<String, String> {
    Address::parse(text)?.with_port(Some(default))
}

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
