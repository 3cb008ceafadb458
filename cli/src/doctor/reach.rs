//! The way to a node: name, connection, session.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::thread;
use std::time::Duration;

use ibex::Security;
use serde::Serialize;

use super::Diagnosis;
use crate::session::{self, Taken};

/// What happened on the way to `HOST:PORT`.
#[derive(Debug, Serialize)]
pub(crate) struct Reached {
    pub(crate) asked_for: String,
    pub(crate) addresses: Vec<Attempt>,
    pub(crate) session: Option<Taken>,
}

/// A TCP connection that was tried.
#[derive(Debug, Serialize)]
pub(crate) struct Attempt {
    pub(crate) address: SocketAddr,
    pub(crate) outcome: Outcome,
}

/// How a connection went.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Connected,
    /// The host answered that nobody listens there.
    Refused,
    /// A router or firewall answered that the way is closed.
    Filtered(String),
    /// Nobody answered.
    Silent,
    /// The kernel has no way there.
    NoRoute(String),
    Failed(String),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Connected => f.write_str("connected"),
            Self::Refused => {
                f.write_str("refused: the host answers, and nobody listens on the port")
            }
            Self::Filtered(error) => write!(f, "filtered, or the host is down: \"{error}\""),
            Self::Silent => write!(f, "silent: no answer within {} s", PATIENCE.as_secs()),
            Self::NoRoute(error) => write!(f, "no route: {error}"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// How long a connection is tried: a lost packet is sent again after 1 s.
const PATIENCE: Duration = Duration::from_secs(3);

/// Goes the way to a node, and adds what stands in it to `diagnosis`.
pub(super) fn reach(to: &str, security: Option<Security>, diagnosis: &mut Diagnosis) -> Reached {
    let mut reached = Reached {
        asked_for: to.to_owned(),
        addresses: Vec::new(),
        session: None,
    };
    // Over vsock there is no name and no route to look at, and the session's error tells the rest.
    if crate::address::vsock(to).is_none() && !takes_connections(&mut reached, diagnosis) {
        return reached;
    }
    match session::with(to, PATIENCE, security) {
        Ok(taken) => {
            diagnosis.fine("session", format!("{}: {}", taken.fabric, taken.reason));
            reached.session = Some(taken);
        }
        Err(error) => diagnosis.problem(
            "session",
            error,
            "The connection is there, and the node gives this command no session.",
            "what the text says; to a node with security this command proves itself by --secret, or \
             by --certificate, --key and --authorities",
        ),
    }
    reached
}

/// Tries the TCP connection to each address. Returns whether one takes it.
fn takes_connections(reached: &mut Reached, diagnosis: &mut Diagnosis) -> bool {
    let to = &reached.asked_for.clone();
    let addresses: Vec<SocketAddr> = match to.to_socket_addrs() {
        Ok(addresses) => addresses.collect(),
        Err(error) => {
            diagnosis.problem(
                "name",
                format!("The name in {to} is not found: {error}."),
                "Without an address nobody can be reached.",
                format!(
                    "getent hosts {}; then /etc/hosts and the DNS of this host or container",
                    host_of(to)
                ),
            );
            return false;
        }
    };
    let attempts = addresses.into_iter().map(|address| {
        thread::spawn(move || Attempt {
            address,
            outcome: outcome(address),
        })
    });
    let attempts: Vec<_> = attempts.collect();
    reached.addresses = attempts
        .into_iter()
        .filter_map(|attempt| attempt.join().ok())
        .collect();
    let is_connected = |attempt: &Attempt| matches!(attempt.outcome, Outcome::Connected);
    if !reached.addresses.iter().any(is_connected) {
        for attempt in &reached.addresses {
            explain(attempt, diagnosis);
        }
        return false;
    }
    diagnosis.fine("connection", format!("{to} takes connections"));
    true
}

fn outcome(address: SocketAddr) -> Outcome {
    let error = match TcpStream::connect_timeout(&address, PATIENCE) {
        Ok(_) => return Outcome::Connected,
        Err(error) => error,
    };
    let of_errno = |errno: rustix::io::Errno| error.raw_os_error() == Some(errno.raw_os_error());
    match error.kind() {
        ErrorKind::ConnectionRefused => Outcome::Refused,
        ErrorKind::TimedOut | ErrorKind::WouldBlock => Outcome::Silent,
        // The kernel's own answer and a router's ICMP message are the same error, but for these.
        ErrorKind::PermissionDenied => Outcome::Filtered(text(&error)),
        ErrorKind::HostUnreachable => Outcome::Filtered(text(&error)),
        _ if of_errno(rustix::io::Errno::PROTO) => Outcome::Filtered(text(&error)),
        ErrorKind::NetworkUnreachable | ErrorKind::AddrNotAvailable => {
            Outcome::NoRoute(text(&error))
        }
        _ => Outcome::Failed(text(&error)),
    }
}

/// Returns the kernel's words for an error, without its number.
fn text(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error")
        .next()
        .unwrap_or_default()
        .to_owned()
}

fn explain(attempt: &Attempt, diagnosis: &mut Diagnosis) {
    let address = attempt.address;
    let (ip, port) = (address.ip(), address.port());
    let (why, mend) = match &attempt.outcome {
        Outcome::Connected => return,
        Outcome::Refused => (
            "The host is there; no process listens on this port, or a firewall rejects with a reset.",
            format!(
                "on that host: `ss -ltn 'sport = {port}'`; start the node, or correct the port"
            ),
        ),
        Outcome::Filtered(_) => (
            "The way is closed by a rule, or the host is down.",
            format!(
                "allow TCP port {port} in the firewalls (`nft list ruleset` here and there); `ip neighbour show {ip}`"
            ),
        ),
        Outcome::Silent => (
            "A firewall drops the packets, or the host is down or has another address.",
            format!(
                "allow TCP port {port} in the firewalls between; `ping {ip}`, `traceroute -T -p {port} {ip}`"
            ),
        ),
        Outcome::NoRoute(_) => (
            "The kernel has no route to this address.",
            format!("`ip route get {ip}`; then `ip route add` or the network's configuration"),
        ),
        Outcome::Failed(_) => (
            "The kernel did not make the connection.",
            format!("`ip route get {ip}`, `ulimit -n`"),
        ),
    };
    diagnosis.problem(
        "connection",
        format!("{address}: {}.", attempt.outcome),
        why,
        mend,
    );
}

fn host_of(to: &str) -> &str {
    to.rsplit_once(':').map_or(to, |(host, _)| host)
}
