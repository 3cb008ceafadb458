//! *Choice*: the fabric that the dialer picked, and why.

use super::Text;
use crate::fabric::Fabric;

/// The dialer's decision. The dialer sends it again, with another fabric, if the first fabric's
/// endpoint cannot be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricChoice {
    /// The fabric that is to carry the data.
    pub fabric: Fabric,
    /// The reason, for the acceptor's log.
    pub reason: Text,
}

/// The acceptor has no endpoint for the fabric just chosen, or could not connect its queue pair
/// with the dialer's. The dialer then picks another fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The fabric that was chosen.
    pub fabric: Fabric,
    /// The reason why the fabric cannot be had.
    pub reason: Text,
}
