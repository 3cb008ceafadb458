//! RDMA devices: which there are on this machine, which one would be taken for what, and
//! how a node uses them ([`RdmaSettings`]).
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! let inventory = ibex::rdma::discover()?;
//! print!("{inventory}");
//! let choice = ibex::rdma::choose(&inventory, &ibex::rdma::Wish::Netdev("eth0".to_owned()))?;
//! println!("{choice}");
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod node_devices;
mod settings;

use std::sync::Arc;

use ibex_transport::fabric::verbs::discovery::{self, Sysfs};
use ibex_transport::fabric::verbs::provider::{Libibverbs, Provider};

pub use ibex_transport::fabric::verbs::discovery::{
    Choice, DeviceDetails, DeviceInfo, DeviceKind, GidInfo, Inventory, Obstacle, PortInfo, Wish,
    address_towards,
};
pub use ibex_transport::fabric::verbs::{Mtu, VerbsError};
pub(crate) use node_devices::NodeDevices;
pub use settings::RdmaSettings;

/// Takes the inventory: devices, ports, GIDs, partitions and limits, as they are now.
///
/// # Errors
/// [`VerbsError`] if there is no libibverbs, no kernel support or no device at all. A
/// device that cannot be used is in the inventory, with the reason.
pub fn discover() -> Result<Inventory, VerbsError> {
    let provider: Arc<dyn Provider> = Arc::new(Libibverbs::load()?);
    discovery::discover(&provider, &Sysfs::default())
}

/// Chooses one port and GID of an inventory, and says why these.
///
/// # Errors
/// [`VerbsError`]: nothing fits, with what there is.
pub fn choose(inventory: &Inventory, wish: &Wish) -> Result<Choice, VerbsError> {
    // An address that the kernel will not list is told as one that nobody has.
    let addresses = discovery::local_addresses().unwrap_or_default();
    inventory.choose(wish, &addresses)
}
