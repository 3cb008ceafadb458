//! The identity that the command line gives: whether a node could use it, and for how long.

use std::time::{Duration, SystemTime};

use ibex::{Node, Security};

use super::Diagnosis;
use crate::date;

/// The time before its end at which a certificate is worth a warning.
pub(crate) const EXPIRES_SOON: Duration = Duration::from_secs(30 * 86_400);

pub(super) fn check(security: Option<&Security>, diagnosis: &mut Diagnosis) {
    let Some(security) = security else {
        return;
    };
    let node = match Node::builder().security(security.clone()).build() {
        Ok(node) => node,
        Err(error) => {
            return diagnosis.problem(
                "identity",
                error.to_string(),
                "A node with these files is not made, and its peers could not accept it.",
                "what the text says; `ibex keygen node` makes a certificate for tests",
            );
        }
    };
    let stats = node.stats().security;
    let Some(expires) = stats.and_then(|stats| stats.certificate_expires) else {
        return diagnosis.fine("identity", "a shared secret, which does not expire");
    };
    let left = expires.duration_since(SystemTime::now());
    let left = left.unwrap_or_default();
    let days = left.as_secs() / 86_400;
    let until = format!("until {}, {days} days", date::text(expires));
    if left < EXPIRES_SOON {
        return diagnosis.warning(
            "identity",
            format!("The certificate is valid {until}."),
            "From then on peers refuse new connections of this node, also of sessions that break.",
            "renew the file, then call `Node::reload_certificates` or restart the node",
        );
    }
    diagnosis.fine("identity", format!("the certificate is valid {until}"));
}
