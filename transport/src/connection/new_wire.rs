//! The new wires of a session that continues.

use crate::wire::WireParts;

/// A new wire of a session.
#[derive(Debug)]
pub struct NewWire {
    /// The name of the session, which both ends know.
    pub session: [u8; 16],
    /// The number of the wire, its epoch.
    pub epoch: u64,
    /// The parts that the wire is made of.
    pub parts: WireParts,
}
