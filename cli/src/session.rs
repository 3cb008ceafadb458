//! Real sessions, which tell the fabric and its reason.

use std::net::{TcpStream, ToSocketAddrs};
use std::time::Duration;

use ibex::{Node, Security, SecurityError, SharedSecret};
use serde::Serialize;

use crate::{address, options::Identity};

/// The fabric that a session took.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Taken {
    pub(crate) fabric: String,
    /// The reason, without the fabric's name before it.
    pub(crate) reason: String,
    /// Variables of the environment that changed the choice.
    pub(crate) environment: Vec<String>,
}

/// Begins a session between two nodes of this process, over the loopback address.
pub(crate) fn on_this_host() -> Result<Taken, String> {
    let listener = Node::listen("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().ok_or("the node has no address")?;
    with(&address.to_string(), Duration::from_secs(5), None)
}

/// Begins a session with the node that listens at `address`, and ends it.
pub(crate) fn with(
    address: &str,
    timeout: Duration,
    security: Option<Security>,
) -> Result<Taken, String> {
    let mut builder = Node::builder().name("ibex").connect_timeout(timeout);
    if let Some(security) = security {
        builder = builder.security(security);
    }
    let node = builder.build().map_err(|error| error.to_string())?;
    let peer = node.connect(address).map_err(|error| error.to_string())?;
    // It begins with the fabric, or with `vsock`.
    let reason = peer.fabric_reason();
    let (fabric, reason) = reason.split_once(": ").unwrap_or((reason, ""));
    let environment = node.environment().iter();
    Ok(Taken {
        fabric: fabric.to_string(),
        reason: reason.to_owned(),
        environment: environment
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
    })
}

/// The time for the first connection, so that people see something within a second.
const FIRST_LOOK: Duration = Duration::from_millis(900);

/// Returns why no address of the peer takes connections; `None` if one does, or if only a session can
/// tell, as over vsock.
pub(crate) fn closed(to: &str) -> Option<String> {
    if address::vsock(to).is_some() {
        return None;
    }
    let addresses = match to.to_socket_addrs() {
        Ok(addresses) => addresses,
        Err(error) => return Some(format!("{to}: {error}")),
    };
    let mut last = format!("{to} has no address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, FIRST_LOOK) {
            Ok(_) => return None,
            Err(error) => last = format!("{address}: {error}; `ibex doctor --to {to}` says more"),
        }
    }
    Some(last)
}

/// Returns the security that the command line asks for.
///
/// # Errors
/// A file cannot be read, or has not what it must have.
pub(crate) fn security(identity: &Identity) -> Result<Option<Security>, SecurityError> {
    if let Some(secret) = &identity.secret {
        let secret = SharedSecret::from_file(secret)?;
        return Ok(Some(Security::shared_secret(secret)));
    }
    let (Some(certificate), Some(key), Some(authorities)) =
        (&identity.certificate, &identity.key, &identity.authorities)
    else {
        return Ok(None);
    };
    Security::certificates(certificate, key, authorities).map(Some)
}
