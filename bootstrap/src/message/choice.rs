//! *Choice*: the fabric that the dialer picked, and why.

use super::Text;
use crate::fabric::Fabric;

ibex_base::wire_structs! {
    /// The dialer's decision. The dialer sends it again, with another fabric, if the first fabric's
    /// endpoint cannot be reached.
    pub struct FabricChoice {
        /// The fabric that is to carry the data.
        pub fabric: Fabric = "fabric kind",
        /// The reason, for the acceptor's log.
        pub reason: Text = "reason",
    }

    /// The acceptor has no endpoint for the fabric just chosen, or could not connect its queue pair
    /// with the dialer's. The dialer then picks another fabric.
    pub struct Unavailable {
        /// The fabric that was chosen.
        pub fabric: Fabric = "fabric kind",
        /// The reason why the fabric cannot be had.
        pub reason: Text = "reason",
    }
}
